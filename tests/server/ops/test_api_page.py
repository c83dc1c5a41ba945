"""/docs: everything of the OpenAPI document, escaped, without scripts, without a key."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.app import build_app
from quire.server.ops.api_html import api_html
from quire.server.ops.openapi import document
from quire.server.ops.web_page import CONTENT_SECURITY_POLICY
from quire.server.settings import ServerSettings

VOID = {"meta", "link", "img", "wbr"}


class Reader(HTMLParser):
    """Elements with their attributes, and the text; fails where they do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


@pytest.fixture(scope="module")
def app() -> Starlette:
    return build_app(FakeEngine(), ServerSettings(api_key="sesame"))


@pytest.fixture(scope="module")
def page(app: Starlette) -> Reader:
    reply = call(app, "/docs")
    assert reply.status == 200
    return Reader(reply.body.decode())


def test_it_is_served_without_a_key_as_the_pages_files_are(app: Starlette) -> None:
    reply = call(app, "/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert call(app, "/docs", headers={"if-none-match": reply.headers["etag"]}).status == 304
    assert call(app, "/docs", method="HEAD").status == 200
    assert call(app, "/openapi.json").status == 401


def test_it_has_all_of_the_document(app: Starlette, page: Reader) -> None:
    described = document(app.routes)
    schemas = described["components"]["schemas"]
    fields = [name for schema in schemas.values() for name in schema.get("properties", ())]
    names = [f"{m.upper()} {path}" for path, item in described["paths"].items() for m in item]
    short = [name.rpartition(".")[2] for name in schemas]
    assert len(names) > 15
    assert len(fields) > 200
    assert [name for name in (*names, *short, *fields) if name not in page.text] == []


def test_links_lead_somewhere_and_nothing_runs(app: Starlette, page: Reader) -> None:
    ids = [found["id"] for _, found in page.found if "id" in found]
    assert len(ids) == len(set(ids))
    addresses = {found[key] for _, found in page.found for key in ("href", "src") if key in found}
    assert {a.removeprefix("#") for a in addresses if a and a.startswith("#")} <= set(ids)
    files = {a for a in addresses if a and not a.startswith("#")}
    assert {call(app, f"/{a.partition('#')[0].removeprefix('./')}").status
            for a in files - {"openapi.json"} if a} == {200}  # fmt: skip
    tags = {tag for tag, _ in page.found}
    assert not tags & {"script", "style", "iframe", "object", "form"}
    assert [name for _, found in page.found for name in found if name.startswith("on")] == []


def test_texts_are_escaped() -> None:
    evil = "<script>alert('\"1')</script>"
    field = {"type": "string", "pattern": evil, "description": evil, "default": evil}
    schema = {"properties": {evil: field, "b": {"enum": [evil]}}, "description": evil}
    operation: dict[str, Any] = {
        "operationId": "x",
        "summary": evil,
        "description": f"Rules:\n\n- {evil}",
        "parameters": [{"name": evil, "in": "query", "schema": field, "description": evil}],
        "requestBody": {
            "content": {"application/json": {"schema": {"type": evil}, "example": evil}}
        },
        "responses": {"200": {"content": {evil: {"schema": {"$ref": f"#/{evil}"}}}}},
    }
    described = {
        "info": {"version": evil, "description": evil},
        "paths": {f"/{evil}": {"get": operation}},
        "components": {"responses": {}, "schemas": {evil: schema}},
    }
    text = api_html(described, "page/x")
    assert "<script" not in text
    Reader(text)
