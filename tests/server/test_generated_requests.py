"""Requests made of the OpenAPI document itself, right ones and wrong ones, by schemathesis.

A short and repeatable relative of benchmarks/api_fuzz.py, which does the same to running servers
and for longer.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import schemathesis
from asgi_client import JSON, Reply, call
from fake_engine import FakeEngine, FakeInfo
from house_files import load_program
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core import NOT_SET
from starlette.applications import Starlette

from quire.server.app import build_app
from quire.server.http.openapi_entry import OpenApiEntry
from quire.server.ops.openapi import document, entries_of
from quire.server.settings import ServerSettings

HOOKS = Path(__file__).parents[2] / "benchmarks" / "api_fuzz_hooks.py"
_APP = build_app(FakeEngine(), ServerSettings())
ROUTES = {"public": _APP.routes, "admin": _APP.state.admin.routes}
DOCUMENTS = {side: document(routes) for side, routes in ROUTES.items()}
SCHEMAS = {side: schemathesis.openapi.from_dict(document) for side, document in DOCUMENTS.items()}
MODES = list(schemathesis.GenerationMode)
POSTS = [
    pytest.param(side, operation, id=operation.path)
    for side, routes in ROUTES.items()
    for operation in entries_of(routes)
    if operation.body is not None
]
EXAMPLES = 4


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """The rules by which the long run judges refusals, too."""
    return load_program(HOOKS)


@pytest.fixture(scope="module")
def apps() -> dict[str, Starlette]:
    public = build_app(FakeEngine(info=FakeInfo(model_name="quire")), ServerSettings())
    return {"public": public, "admin": public.state.admin}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize(("side", "operation"), POSTS)
def test_requests_are_answered_as_the_document_says(
    apps: dict[str, Starlette], hooks: ModuleType, side: str, operation: OpenApiEntry, mode: Any
) -> None:
    document = DOCUMENTS[side]
    described = SCHEMAS[side][operation.path]["POST"]

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        hooks.before_call(None, case, {})
        sent = {name.lower(): str(value) for name, value in (case.headers or {}).items()}
        reply = call(apps[side], operation.path, bytes_of(case.body), headers=JSON | sent)
        check_reply(document, operation, reply)
        if reply.status == 408:
            assert hooks.own_timeout(case)
        elif mode is schemathesis.GenerationMode.NEGATIVE:
            assert reply.status in (400, 404), (case.body, case.headers)
        elif reply.status == 400:
            error = reply.json()["error"]  # Ollama's is the sentence itself
            text = error if isinstance(error, str) else error["message"]
            assert hooks.rule_of(text) is not None, reply.body

    ask()


def bytes_of(body: Any) -> bytes:
    """A body as it is sent; wrong ones may be none, or no JSON."""
    if isinstance(body, bytes) or body is NOT_SET:
        return body if isinstance(body, bytes) else b""
    return json.dumps(body).encode()


def check_reply(document: dict[str, Any], operation: OpenApiEntry, reply: Reply) -> None:
    """Whether the document tells this status, and this form of its body."""
    response = document["paths"][operation.path]["post"]["responses"][str(reply.status)]
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    kind = reply.headers["content-type"].partition(";")[0]
    schema = response["content"][kind]["schema"] | {"components": document["components"]}
    if kind == "application/json":
        jsonschema.Draft202012Validator(schema).validate(reply.json())
    elif kind == "application/x-ndjson":
        for line in reply.body.splitlines():
            jsonschema.Draft202012Validator(schema).validate(json.loads(line))
    elif kind != "application/octet-stream":  # vectors as bytes
        assert reply.body.endswith(b"\n\n")
