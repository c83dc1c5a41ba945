"""The engine's outboxes: which client owns which request, and the deltas not sent yet.

Deltas of one request are joined while their client does not read, so memory is bounded by the
answers. No sockets here.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.messages import EngineView, RequestDelta


class Outbox:
    """The output of one client that has not been sent yet.

    ready: one joined delta per request id. wants_view: the client has asked for the next engine
    view; view: one that has not been sent yet. is_full: the client did not read at the last try;
    the next try comes with statistics, as each one encodes all that has accumulated.
    """

    def __init__(self) -> None:
        self.ready: dict[str, RequestDelta] = {}
        self.wants_view = False
        self.view: EngineView | None = None
        self.is_full = False

    @property
    def has_pending(self) -> bool:
        """Whether there is output to send now."""
        return (bool(self.ready) or self.view is not None) and not self.is_full

    def clear(self) -> None:
        """Remove everything, after it has been sent."""
        self.ready.clear()
        self.view = None
        self.is_full = False

    def put(self, delta: RequestDelta) -> None:
        """Add a delta, joined with an unsent one of the same request."""
        request_id = delta.request_id
        unsent = self.ready.get(request_id)
        if unsent is None:
            self.ready[request_id] = delta
        else:
            unsent.join(delta)


class ClientOutboxes:
    """All clients' outboxes, and which of them owns each request."""

    def __init__(self) -> None:
        self._outboxes: dict[bytes, Outbox] = {}
        self._owners: dict[str, Outbox] = {}  # by request id

    def add(self, client: bytes, request_id: str) -> bool:
        """Register a client's request. Returns False if the request id is in use."""
        if request_id in self._owners:
            return False
        self._owners[request_id] = self.outbox_of(client)
        return True

    def outbox_of(self, client: bytes) -> Outbox:
        """The outbox of a client; a new one if the client is new."""
        outbox = self._outboxes.get(client)
        if outbox is None:
            outbox = self._outboxes[client] = Outbox()
        return outbox

    def put(self, deltas: Iterable[RequestDelta]) -> None:
        """Put a step's deltas into the outboxes of their clients."""
        for delta in deltas:
            outbox = self._owners.get(delta.request_id)
            if outbox is not None:
                outbox.put(delta)
                if delta.finish_reason is not None:
                    del self._owners[delta.request_id]

    def put_view(self, view: EngineView) -> None:
        """Give a view to the clients that want one; it replaces an unsent one."""
        for outbox in self._outboxes.values():
            if outbox.wants_view:
                outbox.wants_view, outbox.view = False, view

    def forget(self, client: bytes) -> list[str]:
        """Remove a client; returns its unfinished request ids."""
        outbox = self._outboxes.pop(client, None)
        orphans = [i for i, owner in self._owners.items() if owner is outbox]
        for request_id in orphans:
            del self._owners[request_id]
        return orphans

    def waiting(self, *, everyone: bool = False) -> list[tuple[bytes, Outbox]]:
        """Clients with something to send, or all of them, with their outboxes."""
        pairs = self._outboxes.items()
        return [(client, outbox) for client, outbox in pairs if outbox.has_pending or everyone]
