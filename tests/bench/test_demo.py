"""The demonstration against a scripted server: what is sent, shown and counted."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from scripted_server import Script, Seen, chat_events, chunked, event, scripted_server

from quire.bench.demo import DemoResult, Example, print_result, read_examples, run_demo
from quire.errors import ConfigError

EXAMPLES = [
    Example("rewrite", [{"role": "user", "content": "blak shoos"}], "black shoes"),
    Example("rewrite", [{"role": "user", "content": "rd dres"}], "red dress"),
    Example("small_talk", [{"role": "user", "content": "[hello]"}]),
]


def run(script: Script, seen: Seen | None = None) -> tuple[DemoResult, str]:
    async def ask() -> DemoResult:
        async with scripted_server(script, seen) as url:
            console = Console(quiet=True)
            return await run_demo(EXAMPLES, url=url, concurrency=2, console=console)

    result = asyncio.run(ask())
    out = io.StringIO()
    print_result(result, Console(file=out, width=100))
    return result, out.getvalue()


def test_demo() -> None:
    seen = Seen()
    result, text = run(chunked(chat_events("black shoes")), seen)
    assert not result.failed
    assert [body["messages"] for body in seen.bodies] == [e.messages for e in EXAMPLES]
    assert all(body["stream"] and body["temperature"] == 0 for body in seen.bodies)
    assert "rewrite: 1 of 2 exactly as expected" in text
    assert "✓ blak shoos → black shoes\n" in text
    assert "· rd dres → black shoes  (expected: red dress)" in text
    assert "small talk\n  · [hello] → black shoes" in text
    assert "20%" in text
    assert "quire chat" in text


def test_failures_are_shown() -> None:
    result, text = run(chunked([event({"error": {"message": "it broke"}})]))
    assert result.failed
    assert text.count("✗") == 3
    assert "3 of 3" in text


def test_json() -> None:
    result, _ = run(chunked(chat_events("black shoes")))
    found = json.loads(result.as_json())
    assert found["summary"]["num_requests"] == 3
    assert found["answers"][0] == {
        "task": "rewrite",
        "input": "blak shoos",
        "output": "black shoes",
        "expected": "black shoes",
        "ttft_ms": found["answers"][0]["ttft_ms"],
        "error": None,
    }


def test_examples_file(tmp_path: Path) -> None:
    path = tmp_path / "examples.json"
    with pytest.raises(ConfigError, match="missing"):
        read_examples(path)
    path.write_text('[{"task": 1}]')
    with pytest.raises(ConfigError, match="damaged"):
        read_examples(path)
    item = {"task": "small_talk", "messages": [{"role": "user", "content": "a"}], "expected": None}
    path.write_text(json.dumps([item]))
    assert read_examples(path) == [Example("small_talk", item["messages"])]  # type: ignore[arg-type]
