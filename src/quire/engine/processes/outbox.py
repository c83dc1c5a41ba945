"""What the engine still has to tell its clients: who asked for what, and news that waits.

News is joined per request while it waits for a client that does not read, so that memory is bounded
by the answers themselves. No sockets here.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.messages import EngineView, RequestDelta


class Outbox:
    """One client's news.

    ready: what can be sent, at most one entry for each request. is_watching: whether the client
    has asked for the next view; view: which is here until it is sent.
    """

    def __init__(self) -> None:
        self.ready: dict[str, RequestDelta] = {}
        self.is_watching = False
        self.view: EngineView | None = None

    @property
    def has_news(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.ready) or self.view is not None

    def clear(self) -> None:
        """All of it has been sent."""
        self.ready.clear()
        self.view = None

    def put(self, delta: RequestDelta) -> None:
        """Add a step's news of one request."""
        request_id = delta.request_id
        unread = self.ready.get(request_id)
        if unread is None:
            self.ready[request_id] = delta
        else:
            unread.join(delta)


class Clients:
    """All clients' outboxes, and the request ids of each."""

    def __init__(self) -> None:
        self._outboxes: dict[bytes, Outbox] = {}
        self._owners: dict[str, Outbox] = {}  # by request id

    def add(self, client: bytes, request_id: str) -> bool:
        """A client asks for something. False if the id is in use: it would take another's news."""
        if request_id in self._owners:
            return False
        self._owners[request_id] = self.know(client)
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
            outbox = self._owners.get(delta.request_id)
            if outbox is not None:
                outbox.put(delta)
                if delta.finish_reason is not None:
                    del self._owners[delta.request_id]

    def show(self, view: EngineView) -> None:
        """Tell those who watch; a newer view takes the place of one that is not sent yet."""
        for outbox in self._outboxes.values():
            if outbox.is_watching:
                outbox.is_watching, outbox.view = False, view

    def forget(self, client: bytes) -> list[str]:
        """Drop a client; returns its requests, which nobody waits for any more."""
        outbox = self._outboxes.pop(client, None)
        orphans = [i for i, owner in self._owners.items() if owner is outbox]
        for request_id in orphans:
            del self._owners[request_id]
        return orphans

    def waiting(self, *, everyone: bool = False) -> list[tuple[bytes, Outbox]]:
        """Clients that can be told something, or all of them."""
        pairs = self._outboxes.items()
        return [(client, outbox) for client, outbox in pairs if outbox.has_news or everyone]
