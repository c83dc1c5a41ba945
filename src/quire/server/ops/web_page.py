"""WebPage: the page at `/`, a chat playground and a live view of the engine, as static files.

The files of the folder `page/` are read once and are the same for everybody, so they need no API
key; the endpoints that they call do. All but the index have a path with the hash of all files, so a
browser may cache them for ever and never mixes two versions. `/docs`, the API for people, is the
OpenAPI document as a static page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.http_errors import HttpError
from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.ops.api_html import api_html
from quire.server.ops.openapi import document

FOLDER = Path(__file__).parents[1] / "page"
INDEX = "index.html"
DOCS_PATH = "/docs"
PLACEHOLDER = b"{assets}"  # in the index: where the other files are

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Scripts, styles and data come from this server only. Styles set by scripts go through the DOM.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class WebPage:
    """The files and their routes.

    paths: of all files; they need no API key. assets: the folder of all but the index, relative to
    `/`.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        self.version = _version(files)
        self.assets = base = f"page/{self.version}"
        index = files.pop(INDEX).replace(PLACEHOLDER, base.encode())
        self._index = PageFile(index, INDEX, "no-cache")
        self._assets = {
            f"/{base}/{name}": PageFile(content, name, "public, max-age=31536000, immutable")
            for name, content in files.items()
        }
        self.paths = frozenset({"/", *self._assets})

    @property
    def routes(self) -> list[ApiRoute]:
        """GET and HEAD of the page and its files."""
        index = OpenApiEntry("/", "The page.", media="text/html", needs_key=False)
        assets = OpenApiEntry(
            "/page/{path:path}", "A file of the page.", media="*/*", errors=(404,), needs_key=False
        )
        return [ApiRoute(self._index.answer, index), ApiRoute(self._asset, assets)]

    async def _asset(self, request: Request) -> Response:
        asset = self._assets.get(request.scope["path"])
        if asset is None:
            text = "no such file of the page; load the page again"
            raise HttpError(404, text, code="not_found")
        return await asset.answer(request)


class PageFile:
    """A static file of the page with its response headers."""

    def __init__(self, content: bytes, name: str, cache_control: str) -> None:
        self._content = content
        self._headers = HEADERS | {
            "cache-control": cache_control,
            "content-type": MEDIA_TYPES[Path(name).suffix],
            "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        }

    async def answer(self, request: Request) -> Response:
        """The file, or 304 for a browser that has it."""
        known = request.headers.get("if-none-match", "")
        if self._headers["etag"] in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


def _version(files: Mapping[str, bytes]) -> str:
    """A hash of the names and contents of all files."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def docs_route(assets: str) -> ApiRoute:
    """The route of the page. assets: path of the style sheets, relative to `/`."""

    @cache  # made for the first request
    def page(app: Starlette) -> PageFile:
        return PageFile(api_html(document(app.routes), assets).encode(), "docs.html", "no-cache")

    async def answer(request: Request) -> Response:
        return await page(request.app).answer(request)

    entry = OpenApiEntry(DOCS_PATH, "This API as a page.", media="text/html", needs_key=False)
    return ApiRoute(answer, entry)
