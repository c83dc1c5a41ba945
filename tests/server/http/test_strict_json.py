"""JSON hygiene: whatever arrives, the answer is a 4xx that says what to correct."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from asgi_client import JSON, call
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from quire.errors import InvalidRequestError
from quire.server.app import build_app
from quire.server.http import strict_json
from quire.server.http.request_reader import read_body
from quire.server.settings import ServerSettings

DEEP = 100_000

MALFORMED = {
    "empty": b"",
    "blank": b"  ",
    "truncated": b'{"prompt": "a',
    "trailing bytes": b'{"prompt": "a"} x',
    "trailing comma": b'{"prompt": "a",}',
    "byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
    "not UTF-8": b'{"prompt": "\xff"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "lone surrogate": b'{"prompt": "\\ud83d"}',
    "lone surrogate inside": b'{"prompt": "\\ud83dabc"}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "Infinity": b'{"prompt": "a", "temperature": Infinity}',
    "raw newline in a string": b'{"prompt": "a\nb"}',
    "deep array": b'{"prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep unknown array": b'{"prompt": "a", "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep object": b'{"prompt": "a", "x": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "array": b"[]",
    "string": b'"prompt"',
    "null": b"null",
    "huge integer": b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
    "huge unknown integer": b'{"prompt": "a", "x": ' + b"9" * 5000 + b"}",
    "huge exponent": b'{"prompt": "a", "temperature": 1e999}',
    "huge token id": b'{"prompt": [' + b"9" * 5000 + b"]}",
    "long token id": b'{"prompt": [' + b"9" * 300 + b"]}",
    "same key twice": b'{"prompt": "a", "n": 1, "n": 1}',
    "same key twice, once escaped": b'{"prompt": "a", "n": 1, "\\u006e": 1}',
    "same key twice around ids": b'{"prompt": [1], "prompt": [1]}',
    "same key twice, colons escaped": b'{"prompt": "\\u003a", "n": 1, "n": 1}',
    "same key twice, colons in texts": b'{"prompt": "a:b", "user": "::", "prompt": "a:b"}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bodies_are_refused(app: Starlette, body: bytes) -> None:
    reply = call(app, "/v1/completions", body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    says = reply.error["message"]
    assert "; " in says or " must be " in says  # and so what to do
    assert len(reply.body) < 2000


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"prompt": "\xc3\xa4\xff"}', "it is not UTF-8 (byte 14)"),
        (b'{"pr\xffompt": "a"}', "it is not UTF-8 (byte 4)"),
        (MALFORMED["UTF-16"], "it is not UTF-8 (byte 0)"),
        (MALFORMED["byte order mark"], "it begins with a byte order mark"),
        (MALFORMED["lone surrogate"], "\\ud83d (character 12) is half of a surrogate pair"),
        (b'{"prompt": "\\ude00\\ud83d"}', "\\ude00 (character 12) is half of a surrogate pair"),
        (b'{"prompt": "\\ud83d\\ude00 \\ud800"}', "\\ud800 (character 25) is half of a surrogate"),
        (b'{"prompt": "\\\\ud83d', "Input data was truncated"),
        (MALFORMED["truncated"], "Input data was truncated"),
        (b" \n", "the body is empty; send a JSON object"),
    ],
)
def test_text_that_is_none_is_called_so(app: Starlette, body: bytes, reason: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert reason in call(app, path, body).error["message"]


@pytest.mark.parametrize(
    ("body", "found"), [(b"[1]", "a list"), (b'"x"', "a string"), (b"3", "an integer"),
                        (b"null", "null"), (b"true", "true or false")],
)  # fmt: skip
def test_a_body_that_is_no_object_is_refused_with_an_example(
    app: Starlette, body: bytes, found: str
) -> None:
    says = call(app, "/v1/completions", body).error["message"]
    expected = f'the body must be a JSON object, not {found}; send its fields as {{"name": value}}'
    assert says == expected


def test_surrogates_in_pairs_are_characters(app: Starlette) -> None:
    assert call(app, "/v1/completions", b'{"prompt": "\\ud83d\\ude00 \\\\ud800"}').status == 200


def test_same_key_twice_inside_a_message(app: Starlette) -> None:
    body = b'{"messages": [{"role": "user", "content": "a", "content": "b"}]}'
    reply = call(app, "/v1/chat/completions", body)
    assert (reply.status, reply.error["code"]) == (400, "duplicate_key")
    assert reply.error["param"] == "content"


def test_colons_in_texts_are_no_keys(app: Starlette) -> None:
    for text in (b"a:b", b"\\u003a", b"\\u003A:", b":\\\\:"):
        assert call(app, "/v1/completions", b'{"prompt": "%b"}' % text).status == 200


def test_a_list_prompt_may_repeat_other_texts(app: Starlette, engine: FakeEngine) -> None:
    ids = json.dumps(list(range(100))).encode()
    body = b'{"user": "%b", "prompt": %b, "cache_salt": "%b"}' % (ids[:90], ids, ids)
    assert call(app, "/v1/completions", body).status == 200
    assert engine.calls[0]["ids"] == list(range(100))


@pytest.mark.parametrize("spaces", [(",", ":"), (", ", ": "), (" , ", " : ")], ids=str)
@pytest.mark.parametrize("options", [{"include_usage": True, "a": None}, {"": None}])
def test_a_null_under_an_unknown_name_is_taken_beside_a_list_however_it_is_spaced(
    app: Starlette, spaces: tuple[str, str], options: dict[str, object]
) -> None:
    fields = {"prompt": ["a", "b"], "stream": True, "stream_options": options}
    body = json.dumps(fields, separators=spaces).encode()
    assert call(app, "/v1/completions", body).status == 200


@pytest.mark.parametrize(
    "text", ["\x00", "\u2028", "\u202eabc", "e" + "\u0301" * 500, "👩‍👩‍👧‍👦", "\ufffe", "\ufeffa"]
)
def test_odd_characters_pass(app: Starlette, engine: FakeEngine, text: str) -> None:
    reply = call(app, "/v1/completions", {"prompt": text, "echo": True})
    assert reply.status == 200
    assert reply.json()["choices"][0]["text"] == text + engine.script


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/vnd.api+json"}, 200),
        ({"content-type": "APPLICATION/JSON"}, 200),
        ({}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/jsonx"}, 415),
        (JSON | {"content-encoding": "gzip"}, 415),
        (JSON | {"content-encoding": "identity"}, 200),
    ],
)
def test_media_types(app: Starlette, headers: dict[str, str], status: int) -> None:
    headers = headers | {"origin": "http://x"}
    reply = call(app, "/v1/completions", {"prompt": "a"}, headers=headers)
    assert reply.status == status
    assert status == 200 or reply.error["code"] == "unsupported_media_type"


PAGES = [{"origin": "null"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-mode": "no-cors"}]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_pages_are_known_by_each_header_that_browsers_write(
    app: Starlette, page: dict[str, str]
) -> None:
    for path in ("/v1/completions", "/api/generate", "/completion"):
        body = {"model": "fake", "prompt": "a", "stream": False}
        untyped = {"content-type": "application/x-www-form-urlencoded"}
        for headers, status in ((untyped, 200), (untyped | page, 415), (JSON | page, 200)):
            assert call(app, path, body, headers=headers).status == status


def test_size_is_counted_as_it_arrives(engine: FakeEngine) -> None:
    app = build_app(engine, ServerSettings(max_body_bytes=100))
    parts = [b"x" * 60, b"x" * 60, b"never read"]
    reply = call(app, "/v1/completions", chunks=parts)
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("length", ["101", "9" * 18])
def test_declared_size_is_refused_before_reading(engine: FakeEngine, length: str) -> None:
    app = build_app(engine, ServerSettings(max_body_bytes=100))
    reply = call(app, "/v1/completions", b"{}", headers=JSON | {"content-length": length})
    assert reply.status == 413


@pytest.mark.parametrize("length", ["-1", "abc", "²", "9" * 5000])
def test_odd_declared_sizes_do_no_harm(app: Starlette, length: str) -> None:
    headers = JSON | {"content-length": length}
    assert call(app, "/v1/completions", {"prompt": "a"}, headers=headers).status == 200


def test_body_in_parts(app: Starlette) -> None:
    body = json.dumps({"prompt": "añ"}, ensure_ascii=False).encode()
    assert call(app, "/v1/completions", chunks=[bytes([b]) for b in body]).status == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FIELDS = ["prompt", "n", "max_tokens", "stop", "logit_bias", "stream_options", "echo", "top_p", "x"]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_json_object_is_answered(fields: dict[str, object]) -> None:
    app = build_app(FakeEngine(), ServerSettings())
    body = json.dumps(fields).encode()
    assert call(app, "/v1/completions", body).status in (200, 400)


@given(st.binary(max_size=40))
def test_any_bytes_are_answered(body: bytes) -> None:
    app = build_app(FakeEngine(), ServerSettings())
    assert call(app, "/v1/chat/completions", body).status == 400


@pytest.mark.parametrize(
    ("path", "fields", "fix"),
    [
        ("messages", {"messages": [{"role": "tool", "content": "a"}]}, "assistant, system or user"),
        ("messages", {"output_config": {"effort": "x"}}, "high, low, max, medium or xhigh"),
        ("messages", {"tool_choice": {"type": "x"}}, "any, auto, none or tool"),
        ("messages", {"tools": [{"name": "a", "input_schema": {}, "type": "x"}]}, "custom"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "tool_use"),
        ("responses", {"tool_choice": "x"}, "auto, none or required"),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "'input_image'; models read and write only text",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "text, not 'image_url'; models read and write only text",
        ),
        (
            "responses",
            {"input": "a", "tools": [{"type": "web_search_20250305"}]},
            "namespace, not 'web_search_20250305'; clients run the tools; leave it out, or send",
        ),
        (
            "responses",
            {"input": "a", "tools": [{"type": "local_shell"}]},
            "function, custom or namespace, not 'local_shell'; models learn a tool from its schema",
        ),
        (
            "messages",
            {"tools": [{"name": "bash", "type": "bash_20250124"}]},
            "custom, not 'bash_20250124'; models learn a tool from its schema; send it as",
        ),
        (
            "responses",
            {"input": "a", "tools": [{"type": "function", "name": "a b"}]},
            "1 to 128 of the characters a-zA-Z0-9_.-",
        ),
        (
            "embeddings",
            {"input": "a", "encoding_format": "x"},
            "base64, bytes, bytes_only or float",
        ),
    ],
)
def test_an_error_lists_the_allowed_values(
    app: Starlette, path: str, fields: dict[str, object], fix: str
) -> None:
    needed = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    message = call(app, f"/v1/{path}", (needed if path == "messages" else {}) | fields).json()[
        "error"
    ]["message"]
    assert fix in message.rpartition(": must be ")[2]


def test_long_texts_are_not_encoded_to_find_keys_that_come_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    class Encoder:
        def encode(self, value: object) -> bytes:
            sizes.append(len(encoded := msgspec.json.encode(value)))
            return encoded

    monkeypatch.setattr(strict_json, "_encoder", Encoder())
    text = "a: b, " * 100_000
    body = json.dumps({"prompt": text, "user": "c:d", "n": 1}).encode()
    assert strict_json.read_names(body) == json.loads(body)
    assert sum(sizes) < 100
    twice = body[:-1] + b', "prompt": "' + text.encode() + b'"}'
    with pytest.raises(InvalidRequestError, match="prompt"):
        strict_json.read_names(twice)


def test_a_body_is_copied_at_most_once() -> None:
    part = b"x" * 100_000
    scope: Any = {"headers": [(b"content-type", b"application/json")], "state": {}, "path": "/"}
    messages = [{"type": "http.request", "body": part, "more_body": more} for more in (True, False)]

    async def receive() -> Any:
        return messages.pop(0)

    assert asyncio.run(read_body(scope, receive, 1 << 20)) == 2 * part
    messages.append({"type": "http.request", "body": part})
    assert asyncio.run(read_body(scope, receive, 1 << 20)) is part
