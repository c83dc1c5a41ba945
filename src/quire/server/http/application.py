"""Starlette's routes behind our envelope, without its own layers.

Each of those layers costs a request about as much as reading its body does, and the envelope does
what they are for. A request that does work, a POST to a plain path, finds its route in a map.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send


class Application(Starlette):
    """envelope: wraps the routes; whatever fails inside, it has to answer."""

    def __init__(
        self,
        routes: Sequence[Route],
        envelope: Callable[[ASGIApp], ASGIApp],
        lifespan: Lifespan[Starlette] | None = None,
    ) -> None:
        super().__init__(routes=routes, lifespan=lifespan)
        self.router.redirect_slashes = False  # it would be built from the client's Host header
        self._work = {route.path: route.app for route in routes if route.methods == {"POST"}}
        self._envelope = envelope(self._route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the server's start and end."""
        scope["app"] = self
        await self._envelope(scope, receive, send)

    def _route(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        work = None
        if scope["type"] == "http" and scope["method"] == "POST":
            work = self._work.get(scope["path"])
        return (work or self.router)(scope, receive, send)
