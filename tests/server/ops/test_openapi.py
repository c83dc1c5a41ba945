"""/openapi.json: complete, valid, and as strict as the routes themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from asgi_client import call
from fake_engine import FakeEngine, FakeInfo
from openapi_spec_validator.schemas import schema_v31
from starlette.applications import Starlette
from starlette.routing import Route
from test_protocol import CASES

import quire
from quire.server.app import build_app
from quire.server.ops.openapi import document, entries_of
from quire.server.settings import ServerSettings

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def public() -> Starlette:
    return build_app(FakeEngine(info=FakeInfo(model_name="quire-tiny")), ServerSettings())


@pytest.fixture(scope="module")
def described(public: Starlette) -> dict[str, Any]:
    return document(public.routes)


@pytest.fixture(params=["public", "admin"])
def side(request: pytest.FixtureRequest, public: Starlette) -> tuple[Starlette, dict[str, Any]]:
    """An application and its document."""
    app = public if request.param == "public" else public.state.admin
    return app, document(app.routes)


def test_it_is_served(side: tuple[Starlette, dict[str, Any]]) -> None:
    app, described = side
    assert call(app, "/openapi.json").json() == described


def test_it_has_every_route_and_no_other(side: tuple[Starlette, dict[str, Any]]) -> None:
    app, described = side
    served = set()
    for route in app.routes:
        assert isinstance(route, Route)
        for method in (route.methods or {"GET"}) - {"HEAD"}:
            served.add((re.sub(r":\w+}", "}", route.path), method.lower()))
    documented = {(path, method) for path, item in described["paths"].items() for method in item}
    assert documented == served


def test_it_names_the_apis(described: dict[str, Any]) -> None:
    """One for each folder with routes of an API."""
    folders = {"openai": "OpenAI", "anthropic": "Anthropic", "ollama": "Ollama"}
    folders |= {"llama_cpp": "llama.cpp", "common": ""}
    for folder in (Path(quire.__file__).parent / "server/api").glob("*/"):
        if folder.name != "__pycache__":
            assert folders[folder.name] in described["info"]["description"]


def test_it_is_valid(side: tuple[Starlette, dict[str, Any]]) -> None:
    _, described = side
    jsonschema.Draft202012Validator(dict(schema_v31)).validate(described)
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_reference_leads_somewhere(side: tuple[Starlette, dict[str, Any]]) -> None:
    _, described = side
    schemas = described["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/([^']+)'", str(described))) == set(schemas)


def test_models_in_a_query_are_documented(side: tuple[Starlette, dict[str, Any]]) -> None:
    app, described = side
    (path,) = {"/live", "/stats"} & set(described["paths"])
    documented = described["paths"][path]["get"]
    assert [given["name"] for given in documented["parameters"]] == ["model"]
    for query, status in (("", 200), ("model=quire-tiny", 200), ("model=x", 404)):
        assert call(app, path, query=query).status == status
        assert str(status) in documented["responses"]


def test_examples_of_the_admin_endpoints_are_taken(public: Starlette) -> None:
    routes = public.state.admin.routes
    described = document(routes)
    for entry in entries_of(routes):
        if entry.body is not None:
            assert validator(described, entry.path).is_valid(entry.example)


def test_examples_are_taken(app: Starlette, described: dict[str, Any]) -> None:
    for entry in entries_of(app.routes):
        assert (entry.body is None) == (entry.example is None)
        if entry.body is not None:
            assert validator(described, entry.path).is_valid(entry.example)
            assert call(app, entry.path, entry.example).status == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize("encoding", ["float", "base64", "bytes", "bytes_only"])
def test_content_types_of_embeddings_are_documented(
    app: Starlette, described: dict[str, Any], path: str, encoding: str
) -> None:
    reply = call(app, path, {"input": "red shoes", "encoding_format": encoding})
    assert reply.status == 200
    documented = described["paths"][path]["post"]["responses"]["200"]["content"]
    assert reply.headers["content-type"] in documented


def test_patterns_are_those_of_json_schema(described: dict[str, Any]) -> None:
    patterns = re.findall(r"'pattern': '(.*?)'", str(described))
    assert len(patterns) > 5
    assert [p for p in patterns if "\\A" in p or "\\Z" in p] == []


def test_operations_list_their_failures(described: dict[str, Any]) -> None:
    responses = described["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "401", "404", "408", "413", "415", "429", "500", "503", "504"} <= set(
        responses
    )
    anthropic = described["paths"]["/v1/messages"]["post"]["responses"]["400"]["$ref"]
    (content,) = described["components"]["responses"][anthropic.split("/")[-1]]["content"].values()
    assert content["schema"]["$ref"].endswith("/AnthropicError")


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("get", "/v1/models", {"400"}),  # a page's limit, under Anthropic's version
        ("get", "/v1/responses/{response_id}", {"429", "504"}),  # they wait as token counts do
        ("delete", "/v1/responses/{response_id}", {"429", "504"}),
        ("post", "/v1/responses/{response_id}/cancel", {"429", "504"}),
    ],
)
def test_failures_of_requests_without_a_body_are_listed(
    described: dict[str, Any], method: str, path: str, statuses: set[str]
) -> None:
    assert statuses <= set(described["paths"][path][method]["responses"])


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a", "temperature": 0.5, "logprobs": 3}),
    ("/v1/completions", {"prompt": [1, 2], "n": 2}),
    ("/v1/completions", {"prompt": "a", "temperature": -1}),
    ("/v1/completions", {"prompt": "a", "n": 0}),
    ("/v1/completions", {"prompt": "a", "logprobs": -2}),
    ("/v1/completions", {"prompt": {"a": 1}}),
    ("/v1/rerank", {"query": "a", "documents": "b"}),
    ("/v1/rerank", {"query": "a", "documents": {"text": "b"}}),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "texts": ["b"]}),
    ("/detokenize", {"tokens": [1685], "use_cache": True}),
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
    ("/v1/embeddings", {"input": "a", "dimensions": 3}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64"}),
    ("/v1/embeddings", {"input": [1, 2]}),
    ("/v1/embeddings", {"input": [[1], []]}),
    ("/v1/embeddings", {"input": ""}),
    ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}),
    ("/v1/embeddings", {"input": "a", "dimensions": 0}),
    ("/v1/embeddings", {}),
    ("/tokenize", {"prompt": "a"}),
    ("/detokenize", {"tokens": [-1]}),
]


def each_item_once(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword `items`, for lists that have the same number a hundred thousand times."""
    if isinstance(instance, list) and all(type(item) is int for item in instance):
        instance = list(dict.fromkeys(instance))
    yield from jsonschema.Draft202012Validator.VALIDATORS["items"](
        validator, items, instance, schema
    )


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"items": each_item_once})


def validator(described: dict[str, Any], path: str) -> Any:
    content = described["paths"][path]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"] | {"components": described["components"]}
    return Validator(schema)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_schemas_take_what_the_routes_take(
    app: Starlette, described: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    is_valid = validator(described, path).is_valid(body)
    assert is_valid == (call(app, path, body).status == 200)


# Fields of which the schema takes some values that the route refuses, because they hang on the
# model or on other fields, or because JSON Schema cannot say it (1.0 is an integer to it, and its
# lengths are characters); each reason is told in the operation's description or in the document's.
BY_RULE = {
    "allowed_token_ids": 1, "logprob_token_ids": 1, "logprobs": 2, "prompt_logprobs": 2,
    "chat_template_kwargs": 7, "guided_whitespace_pattern": 1, "logit_bias": 1,
    "max_completion_tokens": 2, "max_tokens": 3,
    "messages": 1, "min_tokens": 1, "n": 1, "prompt": 5,
    "response_format": 1, "stop_token_ids": 1, "tool_choice": 1, "tools": 1, "top_logprobs": 3,
    "thinking_token_budget": 3, "truncate_prompt_tokens": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("route", "path", "needed"),
    [
        ("complete", "/v1/completions", {"prompt": "abc"}),
        ("chat", "/v1/chat/completions", {"messages": [USER]}),
    ],
)
def test_schemas_have_the_bounds_of_each_field(
    described: dict[str, Any], route: str, path: str, needed: dict[str, Any]
) -> None:
    takes = validator(described, path).is_valid
    found = Counter[str]()
    for name, field, value, good in CASES:
        if name == route and takes(needed | {field: value}) != good:
            assert not good, f"the schema refuses {field}: {value!r}, which is taken"
            found[field] += 1
    assert {field: count for field, count in found.items() if count > BY_RULE.get(field, 0)} == {}


def test_what_a_path_leaves_open_is_a_parameter(side: tuple[Starlette, dict[str, Any]]) -> None:
    for path, methods in side[1]["paths"].items():
        for operation in methods.values():
            found = [p["name"] for p in operation.get("parameters", ()) if p.get("in") == "path"]
            assert found == re.findall(r"\{(\w+)\}", path)


def test_fields_that_are_taken_without_effect_are_documented(described: dict[str, Any]) -> None:
    """Also names of other engines, on every route that reads a body."""
    schemas = described["components"]["schemas"]
    bodies = [
        schemas[ref.rpartition("/")[2]]
        for path in described["paths"].values()
        for ref in re.findall(r"'requestBody': .*?'\$ref': '([^']*)'", str(path.get("post", "")))
    ]
    assert len(bodies) > 20
    assert all("use_cache" in body["properties"] for body in bodies)
