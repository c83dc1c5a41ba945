"""Prefixes that are being computed now, and the requests that wait for them. No torch.

When many requests with the same long prefix arrive together, the first computes it and the others
wait until it is in the prefix cache. This file owns the claims of running requests on hashes that
they will register, and the requests that wait for each. A claim ends when its hash is registered or
its owner leaves the batch; both make the waiting requests ready, so none waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.request import Request


class InFlightPrefixes:
    """Claims: block hash → the running request that will register it."""

    def __init__(self) -> None:
        self._owner_of: dict[bytes, Request] = {}
        self._claims: dict[str, list[bytes]] = {}  # request_id → hashes it has claimed
        self._waiters: dict[bytes, list[Request]] = {}
        self._ready: list[Request] = []

    def claim(self, request: Request, hashes: Iterable[bytes]) -> None:
        """Claim the hashes that an admitted request will register.

        Earlier claims stand, but for those of lower priority.
        """
        fresh = [h for h in hashes if not self._is_claimed(h, request)]
        self._owner_of.update(dict.fromkeys(fresh, request))
        self._claims[request.request_id] = fresh

    def wait(self, request: Request, hashes: Iterable[bytes]) -> bool:
        """Let a request wait if the first of these hashes is claimed; returns whether it waits.

        It waits for the last of the consecutive claimed hashes, and for nobody of lower priority,
        whose turn may come much later than its own.
        """
        last = None
        for block_hash in hashes:
            if not self._is_claimed(block_hash, request):
                break
            last = block_hash
        if last is None:
            return False
        self._waiters.setdefault(last, []).append(request)
        return True

    def mark_registered(self, block_hash: bytes) -> None:
        """End the claim on a hash that has been registered."""
        if self._owner_of.pop(block_hash, None) is not None:
            self._ready += self._waiters.pop(block_hash, ())

    def release(self, request_id: str) -> None:
        """End all claims of a request that leaves the batch."""
        for block_hash in self._claims.pop(request_id, ()):
            owner = self._owner_of.get(block_hash)
            if owner is not None and owner.request_id == request_id:
                self.mark_registered(block_hash)

    def release_all(self) -> None:
        """Release the claims of all requests."""
        for request_id in list(self._claims):
            self.release(request_id)

    def take_ready(self) -> list[Request]:
        """Requests that need not wait any longer, each once, without those that have ended."""
        ready, self._ready = self._ready, []
        return [request for request in ready if not request.is_finished]

    def _is_claimed(self, wanted: bytes, request: Request) -> bool:
        """Whether one of the same priority as the request, or a higher one, has a claim on it."""
        owner = self._owner_of.get(wanted)
        return owner is not None and owner.priority <= request.priority
