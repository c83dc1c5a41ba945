"""ApiPage: `/docs`, the API for people: the OpenAPI document as a static page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.ops.api_html import api_html
from quire.server.ops.openapi import document
from quire.server.ops.web_page import PageFile

PATH = "/docs"


class ApiPage:
    """The page, made for the first request. assets: path of the style sheets, relative to `/`."""

    def __init__(self, assets: str) -> None:
        self._assets = assets
        self._file: PageFile | None = None

    @property
    def route(self) -> ApiRoute:
        """GET and HEAD of the page."""
        entry = OpenApiEntry(
            path=PATH, summary="This API as a page.", media="text/html", needs_key=False
        )
        return ApiRoute(self.answer, entry)

    async def answer(self, request: Request) -> Response:
        """The page, or 304 for a browser that has it."""
        if self._file is None:
            text = api_html(document(request.app.routes), self._assets)
            self._file = PageFile(text.encode(), "docs.html", "no-cache")
        return await self._file.answer(request)
