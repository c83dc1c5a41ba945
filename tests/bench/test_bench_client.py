"""Streamed requests: framings, cuts, failures, the times of tokens, and several at once."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from scripted_server import Script, Seen, chat_events, chunked, event, raw, scripted_server

from quire.bench.client import RequestResult, closed_loop, stream_request


def ask(script: Script, *, timeout: float = 5.0) -> RequestResult:
    async def run() -> RequestResult:
        async with scripted_server(script) as url:
            return await stream_request(f"{url}/v1/x", b"{}", timeout=timeout)

    return asyncio.run(run())


def test_chat_answer() -> None:
    result = ask(chunked(chat_events("héy")))
    assert result.error is None
    assert result.text == "héy"
    assert (result.num_tokens, result.num_prompt_tokens) == (3, 10)
    assert result.num_cached_tokens == 2


def test_completion_answer() -> None:
    parts = [{"choices": [{"text": char}]} for char in "abc"]
    result = ask(chunked([*map(event, parts), b"data: [DONE]\n\n"]))
    assert (result.text, result.error) == ("abc", None)


def test_a_role_in_each_chunk_is_no_token_and_hides_none() -> None:
    deltas = [{"role": "assistant", "content": text} for text in ("", "a", "b", "")]
    result = ask(
        chunked(
            [*(event({"choices": [{"delta": d}]}) for d in deltas), b"data:[DONE]\n\n"], delay=0.01
        )
    )
    assert (result.text, result.error, len(result.gaps)) == ("ab", None, 1)


@pytest.mark.parametrize("size", [1, 2, 7, 100, 10_000])
def test_any_cut_gives_the_same(size: int) -> None:
    whole = b"".join(chat_events("añb€c")) + b": a comment\n\n"
    parts = [whole[i : i + size] for i in range(0, len(whole), size)]
    result = ask(chunked(parts))
    assert (result.text, result.error) == ("añb€c", None)


@pytest.mark.parametrize("framing", ["length", "close"])
def test_other_framings(framing: str) -> None:
    body = b"".join(chat_events("abc")).replace(b"\n", b"\r\n")
    length = b"Content-Length: %d\r\n" % len(body) if framing == "length" else b""
    result = ask(raw(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + body))
    assert (result.text, result.error) == ("abc", None)


def test_times_are_those_of_the_tokens() -> None:
    result = ask(chunked(chat_events("abc"), delay=0.03))
    assert result.ttft is not None
    assert result.ttft > 0.05  # the role comes before the first token
    assert all(0.02 < gap < 1.0 for gap in result.gaps)


def test_tokens_that_come_together_share_the_time_since_the_ones_before() -> None:
    role, *tokens, stop, usage, done = chat_events("abcdefg")
    reads = [role + b"".join(tokens[:2]), tokens[2], b"".join(tokens[3:]), stop + usage + done]
    result = ask(chunked(reads, delay=0.05))
    assert (result.error, result.num_tokens, len(result.gaps)) == (None, 7, 5)
    assert all(0.04 < gap < 0.5 for gap in result.gaps[:1])
    assert len({*result.gaps[1:]}) == 1
    assert all(0.01 < gap < 0.04 for gap in result.gaps[1:])
    assert ask(raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(chat_events("abc")))).gaps == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (chunked(chat_events("abc")[:-1]), r"without \[DONE\]"),
        (chunked([*chat_events("abc")[:2], event({"error": {"message": "it broke"}})]), "it broke"),
        (chunked([event({"error": "it broke", "error_type": "x"})]), "it broke"),
        (chunked([event([1])]), "Expected `object`"),
        (chunked([event({"choices": [1]})]), "Expected `object`"),
        (chunked([event({"choices": [{"delta": {"content": 1}}]})]), "Expected `str"),
        (chunked([event({"usage": {"completion_tokens": 1}})]), "prompt_tokens"),
        (chunked([b'{"error": {}}'], status="503 Service Unavailable"), "HTTP 503"),
        (chunked([b"data: {\n\n"]), "malformed|truncated"),
        (raw(b""), "does not speak HTTP"),
        (raw(b"SSH-2.0-x\r\n"), "does not speak HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc"), "expected"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "."),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "."),
    ],
)
def test_failures_are_results(script: Script, words: str) -> None:
    result = ask(script)
    assert result.error is not None
    assert re.search(words, result.error)


def test_time_limit() -> None:
    result = ask(chunked(chat_events("abc"), delay=0.2), timeout=0.05)
    assert result.error == "no answer within 0.05 s"


def test_nobody_listens() -> None:
    result = asyncio.run(stream_request("http://127.0.0.1:1/x", b"{}"))
    assert result.error


@pytest.mark.parametrize(("count", "concurrency"), [(0, 3), (1, 4), (20, 4), (5, 1), (2, 1 << 40)])
def test_closed_loop(count: int, concurrency: int) -> None:
    seen = Seen()
    done: list[RequestResult] = []

    async def run() -> list[RequestResult]:
        bodies = [json.dumps({"n": n}).encode() for n in range(count)]
        async with scripted_server(chunked(chat_events("ab"), delay=0.002), seen) as url:
            return await closed_loop(f"{url}/x", bodies, concurrency, done.append)

    results = asyncio.run(run())
    assert [result.error for result in results] == [None] * count
    assert sorted(body["n"] for body in seen.bodies) == list(range(count))
    assert seen.most_open <= concurrency
    assert sorted(map(id, done)) == sorted(map(id, results))
    assert [result.sent for result in results] == sorted(e.sent for e in results)
