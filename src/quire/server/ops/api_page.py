"""`/docs`, the API for people: the OpenAPI document as a static page."""

from __future__ import annotations

from functools import cache

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.openapi_entry import ApiRoute, OpenApiEntry
from quire.server.ops.api_html import api_html
from quire.server.ops.openapi import document
from quire.server.ops.web_page import PageFile

PATH = "/docs"


def docs_route(assets: str) -> ApiRoute:
    """The route of the page. assets: path of the style sheets, relative to `/`."""

    @cache  # made for the first request
    def page(app: Starlette) -> PageFile:
        return PageFile(api_html(document(app.routes), assets).encode(), "docs.html", "no-cache")

    async def answer(request: Request) -> Response:
        return await page(request.app).answer(request)

    entry = OpenApiEntry(
        path=PATH, summary="This API as a page.", media="text/html", needs_key=False
    )
    return ApiRoute(answer, entry)
