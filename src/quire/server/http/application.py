"""Application: starlette's routes inside our own middleware, without starlette's own layers.

Each of those layers costs a request about as much as reading its body, and our middleware does
their work. A POST to a path without variables finds its route in a dict. A path that does not exist
is refused with what to use, or the nearest that does.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from quire.compat.http_paths import FOREIGN_PATHS, foreign_path
from quire.server.http.http_errors import HttpError

MAX_CHARS = 128  # of a path that is compared
CUTOFF = 0.75  # of difflib's ratio, below which two paths are not alike
_PREFIXES = frozenset({"", "v1", "api", "openai"})  # segments that clients double or leave out
_ELSEWHERE = "the API is under /v1, such as /v1/chat/completions"
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


class UnknownPath:
    """An ASGI application that answers 404. paths: those that exist."""

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = {_core(path): path for path in paths if _core(path)}
        self._versioned = {_core(path): path for path in paths if path.startswith("/v1/")}

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        """Raises HttpError."""
        if (text := foreign_path(scope["path"][:MAX_CHARS])) is not None:
            raise HttpError(404, text, code="not_found")
        near = self._nearest(scope["path"])
        fix = _ELSEWHERE if near is None else f"did you mean {near}?"
        raise HttpError(404, f"no such path; {fix}", code="not_found")

    def _nearest(self, path: str) -> str | None:
        """A path under /v1 is compared with others there first."""
        if "/v1/" in path and (found := _close(path, self._versioned)):
            return found
        return _close(path, self._paths)


def _close(path: str, known: Mapping[str, str]) -> str | None:
    """The known path that is most alike, or that begins with the path. known: by their cores."""
    core = _core(path[:MAX_CHARS])
    beginnings = [other for other in known if core and other.startswith(f"{core}/")]
    found = difflib.get_close_matches(core, known, n=1, cutoff=CUTOFF) or beginnings
    return known[found[0]] if found else None


def _core(path: str) -> str:
    """A path without what clients get wrong: slashes, letters' case, and the segments before."""
    segments = [segment for segment in path.lower().split("/") if segment]
    while segments and segments[0] in _PREFIXES:
        segments.pop(0)
    return "/".join(segments)
