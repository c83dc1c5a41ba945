"""The demonstration against a scripted server: what is sent, shown and counted."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from scripted_server import Script, Seen, chat_events, chunked, event, raw, scripted_server

from quire.bench.client import RequestResult
from quire.bench.demo import DemoResult, Example, print_result, read_examples, run_demo
from quire.bench.report import summarize
from quire.cli import demo
from quire.errors import ConfigError

EXAMPLES = [
    Example("rewrite", [{"role": "user", "content": "blak shoos"}], "black shoes"),
    Example("rewrite", [{"role": "user", "content": "rd dres"}], "red dress"),
    Example("small_talk", [{"role": "user", "content": "[hello]"}]),
]


def run(
    script: Script, seen: Seen | None = None, examples: list[Example] = EXAMPLES
) -> tuple[DemoResult, str]:
    async def ask() -> DemoResult:
        async with scripted_server(script, seen) as url:
            console = Console(quiet=True)
            return await run_demo(examples, url=url, concurrency=2, console=console)

    result = asyncio.run(ask())
    out = io.StringIO()
    print_result(result, Console(file=out, width=100))
    return result, out.getvalue()


def test_demo() -> None:
    seen = Seen()
    result, text = run(chunked(chat_events("black shoes")), seen)
    assert result.problems == ["1 of 2 answers are exactly as expected; at least 90% should be"]
    assert [body["messages"] for body in seen.bodies] == [e.messages for e in EXAMPLES]
    assert all(body["stream"] and body["temperature"] == 0 for body in seen.bodies)
    assert "rewrite: 1 of 2 exactly as expected" in text
    assert "✓ blak shoos → black shoes\n" in text
    assert "· rd dres → black shoes  (expected: red dress)" in text
    assert "small talk\n  · [hello] → black shoes" in text
    assert "20%" in text
    assert "quire chat" in text


def test_an_answer_that_is_not_for_a_terminal_is_one_line() -> None:
    _, text = run(chunked(chat_events("black shoes " * 20)))
    assert "rd dres → " + "black shoes " * 20 + " (expected: red dress)\n" in text


@pytest.mark.parametrize(
    ("words", "variable", "sent"),
    [
        ([], None, None),
        ([], "one", "one"),
        ([], "one, two", "one"),
        (["--api-key", "two"], "one", "two"),
    ],
)
def test_the_key_of_a_server_that_asks_for_one(
    words: list[str],
    variable: str | None,
    sent: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QUIRE_API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv("QUIRE_API_KEY", variable)
    monkeypatch.setattr("quire.bench.demo.read_examples", lambda: EXAMPLES[2:])
    seen = Seen()

    async def ask() -> int:
        async with scripted_server(chunked(chat_events("hello")), seen) as url:
            return await asyncio.to_thread(demo.run, ["--url", f"{url}/v1/", *words, "--json"])

    assert asyncio.run(ask()) == 0
    (head,) = seen.heads
    assert head.startswith("post /v1/chat/completions ")
    assert ("authorization" in head) == (sent is not None)
    assert sent is None or f"authorization: bearer {sent}\r\n" in head
    with pytest.raises(ConfigError, match="api_key is for --url; use both or none"):
        demo.run(["--api-key", "two"])


def test_failures_are_shown() -> None:
    result, text = run(chunked([event({"error": {"message": "it broke"}})]))
    assert "3 of 3 requests failed, most of them with: it broke" in result.problems
    assert text.count("✗") == 3
    assert "3 of 3" in text


def test_a_missing_key_is_one_error() -> None:
    refuse = raw(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}")
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:\d+ needs another API key; set"):
        run(refuse)


def test_no_server_is_one_error_and_not_one_for_each_request() -> None:
    console = Console(quiet=True)
    demo = run_demo(EXAMPLES, url="http://127.0.0.1:1", concurrency=2, console=console)
    with pytest.raises(ConfigError, match=r"no server answers at http://127.0.0.1:1 .*quire serve"):
        asyncio.run(demo)


@pytest.mark.parametrize(("num_exact", "problems"), [(10, 0), (9, 0), (8, 1), (0, 1)])
def test_nine_of_ten_answers_must_be_exact(num_exact: int, problems: int) -> None:
    texts = ["red dress"] * num_exact + ["red dres"] * (10 - num_exact)
    results = [RequestResult(0.0, text=text) for text in [*texts, "hello"]]
    examples = [EXAMPLES[1]] * 10 + [EXAMPLES[2]]
    result = DemoResult(examples, results, summarize(results))
    assert len(result.problems) == problems


def test_without_an_expected_answer_none_is_wrong() -> None:
    results = [RequestResult(0.0, text="hello")]
    assert DemoResult(EXAMPLES[2:], results, summarize(results)).problems == []


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (chunked(chat_events("black shoes")), 0),
        (chunked(chat_events("black shoe")), 1),
        (chunked([event({"error": {"message": "it broke"}})]), 1),
    ],
)
def test_exit_status(
    script: Script, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = run(script, examples=EXAMPLES[:1])

    async def replay(*_: object, **__: object) -> DemoResult:
        return result

    monkeypatch.setattr("quire.bench.demo.run_demo", replay)
    assert demo.run(["--json"]) == status
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err == "".join(f"quire demo: {problem}\n" for problem in result.problems)


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


def command_of(pid: str) -> str:
    """A process's command line; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("later", [0.0, 0.4, 0.7, 0.85])
def test_its_server_ends_with_it(later: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "quire", "demo"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end, found = time.monotonic() + 60, list[str]()
    while not found and time.monotonic() < end:
        time.sleep(0.02)  # a fork tries whether there are threads; the server is another program
        found = [each for each in children.read_text().split() if command_of(each).count("serve")]
    time.sleep(later)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) in (130, 0)  # unless it was done by then
    with pytest.raises(ProcessLookupError):
        os.kill(int(found[0]), 0)
