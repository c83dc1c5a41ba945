"""One line per request: what it was and what it cost, never what it said."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.logs import JsonFormatter
from quire.server.app import build_app
from quire.server.settings import ServerSettings

Lines = Callable[[], list[logging.LogRecord]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    with caplog.at_level(logging.INFO, logger="quire.access"):
        yield lambda: caplog.records


def as_json(line: logging.LogRecord) -> dict[str, object]:
    found: dict[str, object] = json.loads(JsonFormatter().format(line))
    return found


def test_an_answer(app: Starlette, lines: Lines) -> None:
    call(app, "/v1/completions", {"prompt": ["ab", "c"]}, headers=headers("label"))
    (line,) = lines()
    fields = as_json(line)
    assert (fields["method"], fields["path"], fields["status"]) == ("POST", "/v1/completions", 200)
    assert (fields["prompt_tokens"], fields["completion_tokens"]) == (3, 12)
    assert (fields["finish_reason"], fields["request_id"]) == ("stop", "label")
    assert line.getMessage().startswith("POST /v1/completions 200 0.0")
    assert line.getMessage().endswith("s, 3 + 12 tokens, stop [label]")


def headers(label: str) -> dict[str, str]:
    return {"content-type": "application/json", "x-request-id": label}


def test_a_refusal_says_its_code(app: Starlette, lines: Lines) -> None:
    call(app, "/v1/completions", {"prompt": "a", "temprature": 1})
    assert as_json(lines()[0])["error_code"] == "unknown_parameter"
    assert "unknown_parameter" in lines()[0].getMessage()


def test_a_client_that_leaves(app: Starlette, lines: Lines) -> None:
    call(app, "/v1/completions", {"prompt": "a", "stream": True}, leave_after=2)
    assert as_json(lines()[0])["finish_reason"] == "abort"


def test_probes_are_for_those_who_debug(
    app: Starlette, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    call(app, "/health")
    call(app, "/live")
    assert lines() == []
    caplog.set_level(logging.DEBUG, logger="quire.access")
    call(app, "/health")
    assert len(caplog.records) == 1


def test_a_server_may_log_no_requests(engine: FakeEngine, lines: Lines) -> None:
    app = build_app(engine, ServerSettings(access_log=False))
    assert call(app, "/v1/completions", {"prompt": "a"}).status == 200
    assert lines() == []


def test_no_words_and_no_keys(engine: FakeEngine, lines: Lines) -> None:
    app = build_app(engine, ServerSettings(api_key="sesame"))
    engine.script = "canary"
    sent = headers("x") | {"authorization": "Bearer sesame"}
    call(app, "/v1/completions", {"prompt": "canary bird"}, headers=sent)
    call(app, "/v1/completions", {"prompt": "canary bird"}, headers=headers("x"))
    said = " ".join(json.dumps(as_json(line)) + line.getMessage() for line in lines())
    assert len(lines()) == 2
    assert "canary" not in said
    assert "sesame" not in said


def test_a_path_cannot_forge_a_line(app: Starlette, lines: Lines) -> None:
    call(app, "/a\nPOST /v1/completions 200" + "x" * 5000)
    assert "\n" not in lines()[0].getMessage()
    assert len(lines()[0].getMessage()) < 400
