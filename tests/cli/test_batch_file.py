"""Batch files: good lines, bad lines, refused requests, and the command as a whole."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from child_process import run_to_end
from fake_engine import FakeEngine

from quire.cli import batch_file, main
from quire.cli.answer_file import AnswerFile
from quire.cli.batch_file import BatchResult, bounded_lines, run_lines
from quire.errors import ConfigError
from quire.server.app import build_app
from quire.server.settings import ServerSettings

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def line(name: str, body: Any = CHAT, **fields: Any) -> bytes:
    url = {"method": "POST", "url": "/v1/chat/completions"}
    return json.dumps({"custom_id": name, **url, "body": body} | fields).encode()


def run(lines: list[bytes], engine: FakeEngine, num_at_once: int = 4) -> list[Any]:
    async def collect() -> list[BatchResult]:
        app = build_app(engine, ServerSettings())
        return [result async for result in run_lines(lines, app, num_at_once=num_at_once)]

    return [json.loads(msgspec.json.encode(result)) for result in asyncio.run(collect())]


def test_all_urls_are_answered() -> None:
    text = line("b", {"prompt": "abc"}, url="/v1/completions")
    words = line("c", {"input": "abc"}, url="/v1/responses")
    message = line("d", CHAT | {"max_tokens": 9}, url="/v1/messages")
    lines = [line("a"), text, words, message]
    results = {result["custom_id"]: result for result in run(lines, FakeEngine())}
    assert results["a"]["response"]["status_code"] == 200
    assert results["a"]["response"]["request_id"]
    assert results["a"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello!"
    assert results["b"]["response"]["body"]["choices"][0]["text"] == "Hello!"
    assert results["c"]["response"]["body"]["output"][0]["content"][0]["text"] == "Hello!"
    assert results["d"]["response"]["body"]["content"] == [{"type": "text", "text": "Hello!"}]
    assert results["a"]["error"] is None


def test_embeddings_are_answered() -> None:
    text = line("a", {"input": ["ab", "c"]}, url="/v1/embeddings")
    (results,) = run([text], FakeEngine())
    vectors = [item["embedding"][:2] for item in results["response"]["body"]["data"]]
    assert vectors == [[97, 2], [99, 1]]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"not json", "it is not JSON (JSON is malformed: invalid character (byte 4)); correct it"),
        (b"\xff", "; correct it"),
        (b"[]", "it must be a JSON object; correct it"),
        (b"{}", "custom_id: it is missing; send it"),
        (b'{"custom_id": 1}', "custom_id: must be a string, not an integer"),
        (line("x", url="/v1/ghosts"), "url: "),
        (line("x", method="GET"), "method: "),
        (line(""), "custom_id: "),
        (line("a"), "custom_id: another line"),
        (line("x", CHAT | {"stream": True}), "body.stream: "),
        (line("x", {"input": "a", "background": True}, url="/v1/responses"), "body.background: "),
        (line("x", {"input": "a", "encoding_format": "bytes"}, url="/v1/embeddings"), "base64"),
        (line("x").replace(b'"hi"', b"[" * 5000 + b"]" * 5000), "nested too deeply; flatten it"),
        (line("x", extra=1), "extra: not supported; leave it out"),
    ],
)
def test_a_bad_line_is_reported_and_stops_nothing(bad: bytes, words: str) -> None:
    results = run([line("a"), bad, line("c")], FakeEngine(), num_at_once=1)
    assert [result["error"] is None for result in results] == [True, False, True]
    assert results[1]["error"]["code"] == "invalid_line"
    assert results[1]["error"]["message"].startswith("line 2: ")
    assert words in results[1]["error"]["message"]
    response = results[1]["response"]
    assert response["status_code"] == 400
    assert response["request_id"]
    assert response["body"]["error"]["message"] == results[1]["error"]["message"]


@pytest.mark.parametrize(
    "bad",
    [
        line("x", extra=1),
        line("x", url="/v1/ghosts"),
        line("x", url=1),
        line("x", CHAT | {"stream": True}),
        b'{"custom_id": "x"}',
        b'{"custom_id": "x", "params": {}}',
    ],
)
def test_a_bad_line_keeps_its_id(bad: bytes) -> None:
    (result,) = run([bad], FakeEngine())
    assert result["custom_id"] == "x"
    assert result["error"]["code"] == "invalid_line"


@pytest.mark.parametrize("bad", [b"not json", b"[]", b"{}", b'{"custom_id": 1}', b"[" * 5000])
def test_a_bad_line_without_an_id_has_none(bad: bytes) -> None:
    (result,) = run([bad], FakeEngine())
    assert result["custom_id"] is None
    assert result["response"]["status_code"] == 400


def test_a_url_may_have_a_query() -> None:
    beta = line("a", CHAT | {"max_tokens": 9}, url="/v1/messages?beta=true")
    (result,) = run([beta], FakeEngine())
    assert result["response"]["body"]["content"] == [{"type": "text", "text": "Hello!"}]


def test_empty_lines_are_counted_but_not_answered() -> None:
    results = run([line("a"), b"\n", b" \r\n", b"bad"], FakeEngine())
    assert [result["error"] is None for result in results].count(True) == 1
    assert "line 4: " in str(results)


def test_a_refused_request_is_an_answer_with_its_status() -> None:
    (results,) = run([line("a", CHAT | {"temperature": -1})], FakeEngine())
    assert results["response"]["status_code"] == 400
    assert results["response"]["body"]["error"]["param"] == "temperature"


def test_a_number_out_of_range_is_refused_by_its_field() -> None:
    text = line("a", CHAT | {"temperature": 0.5}).replace(b"0.5", b"1e999")
    (results,) = run([text], FakeEngine())
    assert results["response"]["status_code"] == 400
    assert results["response"]["body"]["error"]["message"].startswith("temperature: number out of")


def test_a_failure_of_the_engine_ends_one_line_only() -> None:
    engine = FakeEngine(fail_at=2)
    results = run([line("a"), line("b", CHAT | {"max_tokens": 1})], engine)
    assert {r["custom_id"]: r["response"]["status_code"] for r in results} == {"a": 500, "b": 200}


@pytest.mark.parametrize("parser", ["auto", "none"])
def test_the_command_knows_what_chats_have(parser: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line("a", CHAT | {"max_tokens": 3, "temperature": 0}))
    template = "{{ messages[0]['content'] }}{{ mark }}{# </think> #}"
    words = ["run-batch", "-i", str(source), "-o", str(target), "--num-blocks", "64"]
    words += ["--chat-template", template, "--reasoning-parser", parser]
    assert main([*words, "--default-chat-template-kwargs", '{"mark": "<think>"}']) == 0
    message = json.loads(target.read_text())["response"]["body"]["choices"][0]["message"]
    assert bool(message["content"]) == (parser == "none")
    assert bool(message["reasoning_content"]) == (parser == "auto")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = CHAT | {"max_tokens": 3, "temperature": 0}
    source.write_bytes(BOM_UTF8 + line("a", body) + b"\n\n" + line("b", body) + b"\nbad\n")
    assert main(["run-batch", "-i", str(source), "-o", str(target), "--num-blocks", "64"]) == 1
    results = [json.loads(text) for text in target.read_text().splitlines()]
    answers = {r["custom_id"]: r["response"] for r in results}
    assert answers["a"]["body"]["choices"] == answers["b"]["body"]["choices"]
    assert "2 of 3 requests answered, 1 failed; see " in capsys.readouterr().err


def test_a_dash_is_standard_input_and_output(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"dear\n")
    command = [sys.executable, "-m", "quire", "run-batch", "-i", "-", "-o", "-"]
    with target.open("ab") as output:
        done = run_to_end(
            [*command, "--num-blocks", "64"],
            input=line("a", CHAT | {"max_tokens": 3}),
            stdout=output,
            cwd=tmp_path,
            text=False,
        )
    assert done.returncode == 0
    assert b"1 of 1 requests answered; see standard output\n" in done.stderr
    before, result = target.read_bytes().splitlines()
    assert (before, json.loads(result)["custom_id"]) == (b"dear", "a")
    assert list(tmp_path.iterdir()) == [target]


def test_failed_requests_are_counted_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    documents = {"query": "a", "documents": ["b", "c"]}
    lines = [line("a", CHAT | {"temperature": -1}), line("b", url="/ghost")]
    lines += [line(url, documents, url=url) for url in ("/rerank", "/v1/rerank", "/v2/rerank")]
    source.write_bytes(b"\n".join(lines))
    assert main(["run-batch", "-i", str(source), "-o", str(target), "--num-blocks", "64"]) == 1
    assert "3 of 5 requests answered, 2 failed; see" in capsys.readouterr().err
    results = {r["custom_id"]: r for r in map(json.loads, target.read_text().splitlines())}
    assert results["a"]["response"]["status_code"] == 400
    assert results["b"]["error"]["code"] == "invalid_line"
    assert {name: r["response"]["status_code"] for name, r in results.items() if "/" in name} == {
        "/rerank": 200, "/v1/rerank": 200, "/v2/rerank": 200
    }  # fmt: skip


def test_answers_of_before_stay_where_the_engine_does_not_start(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line("a"))
    target.write_bytes(b"dear\n")
    argv = ["run-batch", str(tmp_path / "no-model"), "-i", str(source), "-o", str(target)]
    assert main(argv) == 2
    assert target.read_bytes() == b"dear\n"
    assert main([*argv[:1], *argv[2:], "--num-blocks", "64"]) == 0
    assert b"dear" not in target.read_bytes()


def test_mistakes_with_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(line("a"))
    here = str(source)
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    for argv in (
        ["-i", here],
        ["-i", here, "-o", here],
        ["-i", str(tmp_path / "x"), "-o", here],
        ["-i", str(tmp_path / "pipe"), "-o", str(tmp_path / "y")],
    ):
        assert main(["run-batch", *argv]) == 2
    os.close(writer)
    assert source.read_bytes() == line("a")
    assert capsys.readouterr().err.count("error: ") == 4


def test_damaged_files_are_answered_line_by_line() -> None:
    """Lines that are cut, joined, doubled or changed: each has a result, which is JSON."""
    rng = random.Random(20)
    good = [line(f"id {i}", CHAT | {"max_tokens": 1}) for i in range(200)]
    hostile = [b"\xff", b"\0", b'"', b"{", b"[" * 5000, b"9" * 5000, b"1e999", b"\\ud800", b"\r"]
    lines = []
    for data in good:
        at = rng.randrange(len(data))
        changes = (data, data[:at], data[:at] + rng.choice(hostile) + data[at:], data * 2)
        lines.append(changes[rng.choice((0, 0, 1, 2, 2, 3))])
    results = run(lines, FakeEngine(), num_at_once=9)
    assert len(results) == len(lines)
    assert {r["response"]["status_code"] for r in results} == {200, 400}
    assert all(r["error"] is None for r in results if r["response"]["status_code"] == 200)
    assert sum(result["error"] is None for result in results) >= lines.count(good[0])


@given(text=st.text("ab\n", max_size=60))
def test_lines_that_are_too_long_are_cut_and_counted_once(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_file, "MAX_LINE_BYTES", 5)
        found = list(bounded_lines(io.BytesIO(text.encode())))
    whole = text.encode().splitlines(keepends=True)
    assert found == [data if len(data) <= 6 else data[:6] for data in whole]


def test_a_line_that_is_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_file, "MAX_LINE_BYTES", 1 << 20)
    results = run([b"x" * ((1 << 20) + 1), line("b")], FakeEngine())
    errors = [result["error"]["message"] for result in results if result["error"]]
    assert errors == ["line 1: it is longer than 1 MiB; leave it out"]


def test_large_lines_run_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_file, "MAX_HELD_BYTES", 1000)
    taken, most, done = 0, 0, 0

    def lines() -> Iterator[bytes]:
        nonlocal taken, most
        for number in range(20):
            taken += 1
            most = max(most, taken - done)
            yield line(str(number), CHAT | {"user": "u" * 400})

    async def collect() -> None:
        nonlocal done
        app = build_app(FakeEngine(), ServerSettings())
        async for _ in run_lines(lines(), app, num_at_once=20):
            done += 1

    asyncio.run(collect())
    assert (taken, done) == (20, 20)
    assert most <= 4


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "out.jsonl", os.write

    def half(file: int, data: bytes) -> int:
        if len(data) < 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:6])

    with AnswerFile(str(path)) as file:
        file.write(b'{"a": 1}')
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(ConfigError, match=r"cannot be written \(No space .* 1 lines are whole"):
            file.write(b'{"b": 2}')
    assert path.read_bytes() == b'{"a": 1}\n'


def test_a_device_that_is_full_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(line("a", CHAT | {"max_tokens": 1}))
    assert main(["run-batch", "-i", str(source), "-o", "/dev/full", "--num-blocks", "64"]) != 0
    (said,) = [text for text in capsys.readouterr().err.splitlines() if "error" in text]
    assert said.startswith("error: -o '/dev/full' cannot be written (No space left")


def test_ctrl_c_leaves_whole_lines(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = CHAT | {"max_tokens": 200, "ignore_eos": True}
    source.write_bytes(b"\n".join(line(str(number), body) for number in range(300)))
    words = ["-i", str(source), "-o", str(target), "--num-blocks", "400", "--max-num-seqs", "2"]
    command = [sys.executable, "-m", "quire", "run-batch", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (target.exists() and target.stat().st_size > 3000):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    text = target.read_text()
    assert text.endswith("\n")
    results = [json.loads(data) for data in text.splitlines()]
    assert 0 < len(results) < 300
    assert f"{len(results)} of 300 requests answered" in said
    assert "Traceback" not in said
