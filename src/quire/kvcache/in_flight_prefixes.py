"""Prefixes that are being computed right now, and who waits for them. No torch.

When many requests with the same long prefix arrive together, the first computes it and the others
wait until it is in the prefix cache, instead of computing it again side by side. This file owns
the claims of running requests on hashes they will register, and the waiters of each; it decides
nothing about blocks. Nobody waits for ever: a claim ends when its hash is registered or when its
owner leaves the batch, whichever comes first, and both wake the waiters.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.request import Request


class InFlightPrefixes:
    """Claims: block hash → the running request that will register it."""

    def __init__(self) -> None:
        self._owner_of: dict[bytes, str] = {}
        self._claims: dict[str, list[bytes]] = {}  # request_id → hashes it has claimed
        self._waiters: dict[bytes, list[Request]] = {}
        self._ready: list[Request] = []

    def claim(self, request_id: str, hashes: Iterable[bytes]) -> None:
        """A request starts to run and will register these; a claim made earlier stands."""
        fresh = [h for h in hashes if h not in self._owner_of]
        self._owner_of.update(dict.fromkeys(fresh, request_id))
        self._claims[request_id] = fresh

    def wait(self, request: Request, hashes: Iterable[bytes]) -> bool:
        """Let a request wait if the first of these hashes is claimed; returns whether it does.

        It waits for the last of the claimed ones in a row: to be woken earlier would only let
        it find the next one claimed.
        """
        last = None
        for block_hash in hashes:
            if block_hash not in self._owner_of:
                break
            last = block_hash
        if last is None:
            return False
        self._waiters.setdefault(last, []).append(request)
        return True

    def mark_registered(self, block_hash: bytes) -> None:
        """The hash is registered, by whomever: its claim ends."""
        if self._owner_of.pop(block_hash, None) is not None:
            self._ready += self._waiters.pop(block_hash, ())

    def withdraw(self, request_id: str) -> None:
        """The request has left the batch: all its claims end."""
        for block_hash in self._claims.pop(request_id, ()):
            if self._owner_of.get(block_hash) == request_id:
                self.mark_registered(block_hash)

    def withdraw_all(self) -> None:
        """End all claims."""
        for request_id in list(self._claims):
            self.withdraw(request_id)

    def take_ready(self) -> list[Request]:
        """The requests that need not wait any more, each once; those that have ended are gone."""
        ready, self._ready = self._ready, []
        return [request for request in ready if not request.is_finished]
