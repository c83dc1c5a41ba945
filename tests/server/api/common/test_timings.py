"""llama.cpp's `return_progress` and `timings_per_token`, in all APIs that stream text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgi_client import call
from starlette.applications import Starlette

APIS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/completion": {"prompt": "hello"},
    "/v1/responses": {"input": "hello", "store": False},
}
BOTH = {"stream": True, "return_progress": True, "timings_per_token": True}


def events_of(app: Starlette, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The data of a stream's events, whether they have names or not."""
    lines = call(app, path, APIS[path] | fields).body.decode().splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def text_of(event: dict[str, Any]) -> str:
    choice = (event.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    found = (delta.get("content"), choice.get("text"), event.get("content"), event.get("delta"))
    return next((text for text in found if text), "")


@pytest.mark.parametrize("path", APIS)
def test_progress_has_events_of_its_own_before_the_answer(app: Starlette, path: str) -> None:
    events = events_of(app, path, **BOTH)
    reports = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    total = reports[0]["total"]
    processed = [report["processed"] for report in reports]
    assert processed == list(range(1, total + 1)), "each report is an event, in order"
    assert {report["cache"] for report in reports} == {1}
    assert [report["time_ms"] for report in reports] == [125.0 * done for done in processed]
    assert not any(text_of(event) for event in events if "prompt_progress" in event)
    assert "".join(text_of(event) for event in events) == "Hello!"
    first = events[next(i for i, event in enumerate(events) if "prompt_progress" in event)]
    assert (first["timings"]["prompt_n"], first["timings"]["predicted_n"]) == (0, 0)
    timed = [event["timings"]["predicted_n"] for event in events if text_of(event)]
    assert timed == list(range(1, 7))
    assert events[-1]["timings"]["predicted_n"] == 6


def test_a_response_is_in_progress_once_for_each_report(app: Starlette) -> None:
    events = events_of(app, "/v1/responses", **BOTH)
    shown = [event for event in events if event["type"] == "response.in_progress"]
    assert shown
    assert all("prompt_progress" in event for event in shown)


@pytest.mark.parametrize("path", APIS)
def test_nothing_of_it_without_being_asked(app: Starlette, path: str) -> None:
    plain = events_of(app, path, stream=True)
    assert not any("prompt_progress" in event for event in plain)
    own = {"timings"} if path == "/completion" else set()  # its last chunk always has them
    assert {"timings"} & {name for event in plain for name in event} == own


@pytest.mark.parametrize("path", APIS)
def test_replies_have_timings_and_no_progress(app: Starlette, path: str) -> None:
    reply = call(app, path, APIS[path] | BOTH | {"stream": False})
    assert reply.json()["timings"]["predicted_n"] == 6
    assert "prompt_progress" not in reply.json()
    assert "return_progress has no effect" in reply.headers["x-quire-no-effect"]
