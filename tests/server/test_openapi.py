"""/openapi.json: complete, resolvable, and as strict as the routes themselves."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from asgi_client import call
from starlette.applications import Starlette
from starlette.routing import Route

from quire.server.openapi import document

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document()


def test_it_is_served(app: Starlette, described: dict[str, Any]) -> None:
    assert call(app, "/openapi.json").json() == described


def test_it_has_every_route_and_no_other(app: Starlette, described: dict[str, Any]) -> None:
    served = set()
    for route in app.routes:
        assert isinstance(route, Route)
        for method in (route.methods or {"GET"}) - {"HEAD"}:
            served.add((re.sub(r":\w+}", "}", route.path), method.lower()))
    told = {(path, method) for path, item in described["paths"].items() for method in item}
    assert told == served


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for name in re.findall(r"#/components/schemas/([^']+)'", str(described)):
        assert name in schemas


def test_operations_tell_their_failures(described: dict[str, Any]) -> None:
    responses = described["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "401", "404", "408", "413", "415", "429", "500", "503", "504"} <= set(
        responses
    )
    anthropic = described["paths"]["/v1/messages"]["post"]["responses"]["400"]["content"]
    assert anthropic["application/json"]["schema"]["$ref"].endswith("AnthropicError")


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a", "temperature": 0.5, "logprobs": 3}),
    ("/v1/completions", {"prompt": [1, 2], "n": 2}),
    ("/v1/completions", {"prompt": "a", "temperature": -1}),
    ("/v1/completions", {"prompt": "a", "n": 0}),
    ("/v1/completions", {"prompt": "a", "logprobs": 21}),
    ("/v1/completions", {"prompt": {"a": 1}}),
    ("/v1/chat/completions", {"messages": [USER], "top_p": 0.5, "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [USER], "unknown": 1}),
    ("/v1/chat/completions", {"messages": [USER], "top_p": 1.5}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/responses", {"input": [USER | {"type": "message"}]}),
    ("/v1/responses", {"input": [{"type": "ghost"}]}),
    ("/v1/responses", {"input": 3}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 3}),
    ("/v1/messages", {"messages": [USER]}),
    ("/v1/messages", {"messages": [USER | {"x": 1}], "max_tokens": 3}),
    ("/tokenize", {"prompt": "a"}),
    ("/detokenize", {"tokens": [-1]}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_schemas_take_what_the_routes_take(
    app: Starlette, described: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    content = described["paths"][path]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"] | {"components": described["components"]}
    is_valid = jsonschema.Draft202012Validator(schema).is_valid(body)
    assert is_valid == (call(app, path, body).status == 200)
