"""What the engine still has to tell its clients: who asked for what, and news that waits.

News is joined per request while it waits, for the end of a request that does not stream or for a
client that does not read, so that memory is bounded by the answers themselves. No sockets here.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.messages import AddRequest, RequestDelta


class Outbox:
    """One client's news. `ready` is what can be sent, at most one entry for each request."""

    def __init__(self) -> None:
        self.ready: dict[str, RequestDelta] = {}
        self._held: dict[str, RequestDelta] = {}  # of requests that do not stream

    def put(self, delta: RequestDelta, *, stream: bool) -> None:
        """Add a step's news of one request."""
        request_id = delta.request_id
        if not stream:
            held = self._held.get(request_id)
            if held is not None:
                held.join(delta)
                delta = held
            elif delta.finish_reason is None:
                self._held[request_id] = delta
            if delta.finish_reason is None:
                return
            self._held.pop(request_id, None)
        unread = self.ready.get(request_id)
        if unread is None:
            self.ready[request_id] = delta
        else:
            unread.join(delta)


class Clients:
    """All clients' outboxes, and the request ids of each."""

    def __init__(self) -> None:
        self._outboxes: dict[bytes, Outbox] = {}
        self._owners: dict[
            str, tuple[Outbox, bool]
        ] = {}  # request id → its outbox, whether streams

    def add(self, client: bytes, message: AddRequest) -> bool:
        """A client asks for something. False if the id is in use: it would take another's news."""
        if message.request_id in self._owners:
            return False
        self._owners[message.request_id] = (self.know(client), message.stream)
        return True

    def know(self, client: bytes) -> Outbox:
        """Tell this client from now on what everyone is told, even if it never asks for more."""
        outbox = self._outboxes.get(client)
        if outbox is None:
            outbox = self._outboxes[client] = Outbox()
        return outbox

    def put(self, deltas: Iterable[RequestDelta]) -> None:
        """Sort a step's news into the outboxes; nobody's news is dropped."""
        for delta in deltas:
            owner = self._owners.get(delta.request_id)
            if owner is not None:
                outbox, stream = owner
                outbox.put(delta, stream=stream)
                if delta.finish_reason is not None:
                    del self._owners[delta.request_id]

    def forget(self, client: bytes) -> list[str]:
        """Drop a client; returns its requests, which nobody waits for any more."""
        outbox = self._outboxes.pop(client, None)
        orphans = [i for i, (owner, _) in self._owners.items() if owner is outbox]
        for request_id in orphans:
            del self._owners[request_id]
        return orphans

    def waiting(self, *, everyone: bool = False) -> list[tuple[bytes, Outbox]]:
        """Clients that can be told something, or all of them."""
        pairs = self._outboxes.items()
        return [(client, outbox) for client, outbox in pairs if outbox.ready or everyone]
