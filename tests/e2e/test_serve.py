"""The installed command on the bundled model, from outside: processes, sockets, signals."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from child_process import run_to_end
from server_process import end_server, running_server

from quire.bench.client import stream_request

QUIRE = [sys.executable, "-m", "quire"]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, float]]:
    """Address, and the seconds it took to be ready; checks that SIGTERM ends it well."""
    begin = time.monotonic()
    with running_server() as (process, url):
        yield url, time.monotonic() - begin
        end_server(process)


def post(url: str, body: object | bytes) -> tuple[int, dict[str, object]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def chat(content: str, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "temperature": 0, "max_tokens": 40} | fields


def test_it_is_ready_within_five_seconds(server: tuple[str, float]) -> None:
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    assert server[1] < 5.0 * (1.0 if load < 1.0 else 3.0 * load)


def test_the_bundled_model_answers(server: tuple[str, float]) -> None:
    status, reply = post(f"{server[0]}/v1/chat/completions", chat("red runing shoes for wimen"))
    assert status == 200
    choice = reply["choices"][0]  # type: ignore[index]
    assert choice["message"]["content"] == "red running shoes for women"
    assert choice["finish_reason"] == "stop"


def test_streams_run_together_and_equal_the_whole_answer(server: tuple[str, float]) -> None:
    url = f"{server[0]}/v1/chat/completions"
    contents = ["hello there", "who are you", "gren tea", "bluetoth speker"] * 5
    whole = {c: post(url, chat(c))[1]["choices"][0]["message"]["content"] for c in set(contents)}  # type: ignore[index]

    async def stream_all() -> None:
        fields = {"stream": True, "stream_options": {"include_usage": True}}
        results = await asyncio.gather(
            *(stream_request(url, json.dumps(chat(c, **fields)).encode()) for c in contents)
        )
        for content, result in zip(contents, results, strict=True):
            assert result.error is None
            assert result.text == whole[content]
            assert result.num_tokens > 0

    asyncio.run(stream_all())


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/completions", {"prompt": "a", "temprature": 1}, 400, "temperature"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "many"}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "top_p": 1.5}, 400, "top_p"),
        ("/v1/completions", {"prompt": [5] * 5000}, 400, "4096"),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/completions", {"prompt": [10**9]}, 400, "2047"),
        ("/v1/completions", {"prompt": "a", "priority": 1}, 400, "priority"),
        ("/v1/completions", b'{"prompt": "\xff"}', 400, "UTF-8"),
        ("/v1/completions", b"{", 400, "JSON"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", chat("a", model="gpt-4"), 404, "quire-tiny"),
        ("/v1/nothing", {}, 404, ""),
    ],
)
def test_bad_input_is_refused_and_harms_nobody(
    server: tuple[str, float], path: str, body: object, status: int, words: str
) -> None:
    found, reply = post(server[0] + path, body)
    assert found == status
    assert words in reply["error"]["message"]  # type: ignore[index]
    assert post(f"{server[0]}/v1/chat/completions", chat("hello"))[0] == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "./no-such-folder"], "no-such-folder"),
        (["serve", "--max-num-sqs", "8"], "--max-num-seqs"),
        (["generate", "--prompt", "a", "--max-model-len", "9999"], "4096"),
        (["generate", "--prompt", "a", "--temperature", "-1"], "temperature"),
        (["generate", "--file", "/no/such/file"], "/no/such/file"),
    ],
)
def test_mistakes_end_in_one_line(arguments: list[str], words: str) -> None:
    done = run_to_end([*QUIRE, *arguments])
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_generate_answers_in_order(tmp_path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\nthree\n")
    done = run_to_end(
        [*QUIRE, "generate", "--file", str(prompts), "--json", "--max-tokens", "4"], check=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["one", "two", "three"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_follows_its_response_format(server: tuple[str, float], stream: bool) -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "type": "object"}
    schema["additionalProperties"] = False
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = chat("hello", response_format=wanted, max_tokens=200)
    url = f"{server[0]}/v1/chat/completions"
    if stream:
        data = json.dumps(body | {"stream": True}).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            events = response.read().decode().split("\n\n")[:-2]
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    else:
        reply = post(url, body)[1]
        text = reply["choices"][0]["message"]["content"]  # type: ignore[index]
    assert list(json.loads(text)) == ["a"]


def test_an_impossible_schema_is_refused(server: tuple[str, float]) -> None:
    status, reply = post(f"{server[0]}/v1/chat/completions", chat("hello", guided_regex=r"(a)\1"))
    assert status == 400
    assert reply["error"] == {
        "message": "guided_regex: backreferences are not supported; write it without",
        "type": "invalid_request_error",
        "param": "guided_regex",
        "code": "invalid_value",
    }
