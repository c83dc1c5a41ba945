"""Application: starlette's routes inside our own middleware, without starlette's own layers.

Each of those layers costs a request about as much as reading its body, and our middleware does
their work. A POST to a path without variables finds its route in a dict.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from quire.compat.http_paths import FOREIGN_PATHS
from quire.server.http.unknown_path import UnknownPath

# as llama.cpp's server has these paths, too
UNVERSIONED = frozenset(
    f"/{path}{count}"
    for path in ("chat/completions", "responses")
    for count in ("", "/input_tokens")
) | {"/models"}


class Application(Starlette):
    """A starlette application. middleware: wraps the routes and answers whatever fails inside."""

    def __init__(
        self,
        routes: Sequence[Route],
        middleware: Callable[[ASGIApp], ASGIApp],
        lifespan: Lifespan[Starlette] | None = None,
    ) -> None:
        super().__init__(routes=routes, lifespan=lifespan)
        self.router.redirect_slashes = False  # it would be built from the client's Host header
        self.router.default = UnknownPath([route.path for route in routes])
        self._posts = {
            route.path: route.app
            for route in routes
            if route.methods == {"POST"} and not route.param_convertors
        }
        self._foreign = FOREIGN_PATHS.keys() - {route.path for route in routes}
        self._middleware = middleware(self._route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan messages."""
        scope["app"] = self
        await self._middleware(scope, receive, send)

    def _route(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        app = None
        if scope["type"] == "http":
            if scope["path"] in UNVERSIONED:
                scope["path"] = f"/v1{scope['path']}"
            if scope["method"] == "POST":
                app = self._posts.get(scope["path"])
            if app is None and scope["path"] in self._foreign:  # may look like a path with an id
                app = self.router.default
        return (app or self.router)(scope, receive, send)
