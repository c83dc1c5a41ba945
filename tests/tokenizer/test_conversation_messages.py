"""What is taken as a conversation, what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.errors import InvalidRequestError
from quire.tokenizer.conversation_input import BREAK, prepare_messages, prepare_tools


def prepare(message: Any) -> dict[str, Any]:
    (prepared,) = prepare_messages([message], str)
    return prepared


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "messages: must be a list"),
        (None, "messages: must be a list"),
        ("hi", "messages: must be a list"),
        (["hi"], r"messages\[0\]: must be an object"),
        ([{"content": "hi"}], r"messages\[0\]\.role: must be one of .*, not None"),
        (
            [{"role": "im_end", "content": "hi"}],
            r"messages\[0\]\.role: must be one of .*, not 'im_end'",
        ),
        (
            [{"role": ["user"], "content": "hi"}],
            r"messages\[0\]\.role: must be one of .*, not \['user'\]",
        ),
        (
            [{"role": np.array(["user", "tool"]), "content": "hi"}],
            r"messages\[0\]\.role: must be one of .*, not array",
        ),
        (
            [{"role": "user", "content": np.array(["hi", "you"])}],
            r"messages\[0\]\.content: must be a string or a list",
        ),
        (
            [{"role": "user", "content": [{"type": np.array(["text", "a"]), "text": "hi"}]}],
            r"messages\[0\]\.content\[0\]: content parts must have the type text, not array",
        ),
        (
            [{"role": "assistant", "content": "hi", "refusal": np.array([1, 2])}],
            r"messages\[0\]\.refusal: unknown field",
        ),
        ([{"role": "user"}], r"messages\[0\]\.content: it is missing; it must be a string"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content: it is missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content: must be a string or a list"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"messages\[0\]\.content\[0\]: content parts must have the type text, not 'image_url'",
        ),
        (
            [{"role": "user", "content": ["hi"]}],
            r"content\[0\]: content parts must have the type text, not None",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            r"content\[0\]\.text: must be a string",
        ),
        ([{"role": "user", "content": "\ud800"}], r"half of a surrogate pair, U\+D800"),
        ([{"role": "user", "content": BREAK}], r"U\+FDD0, which is reserved"),
        # which marks the end of a message that is continued, and vanished from the prompt there
        ([{"role": "user", "content": "a\ufdd1b"}], r"U\+FDD1, which is reserved"),
        ([{"role": "user" * 999, "content": "hi"}], "not 'user.{0,80}$"),
        ([{"role": "user", "content": [{"type": ["text"] * 999}]}], r"not \['text.{0,80}$"),
        ([{"role": "user", "content": "hi", "name": object()}], "must be a JSON value, not object"),
        (
            [{"role": "user", "content": "hi", "name": {(1, 2): 3}}],
            r"messages\[0\]: must have strings as names, not tuples",
        ),
        ([{"role": "assistant", "tool_calls": {}}], r"tool_calls: must be a list of objects"),
        (
            [{"role": "user", "contnt": "hi", "content": "hi"}],
            r"messages\[0\]\.contnt: unknown field; did you mean 'content'\?",
        ),
        ([{"role": "user", "content": "hi", "xyz": 1}], r"\.xyz: unknown field; remove it"),
        ([{"role": "assistant", "refusal": "No."}], r"\.refusal: unknown field; remove it"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{'"}}]}],
            r"messages\[0\]\.tool_calls\[0\]\.function\.arguments: not JSON",
        ),
    ],
)
def test_refuses(messages: Any, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        prepare_messages(messages, str)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("9" * 5000, "a number is too long"),
        ('{"a": ' * 10_000, "nested too deeply"),
        ("", None),
    ],
)
def test_arguments_that_python_cannot_read(arguments: str, reason: str | None) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    if reason is None:
        assert prepare({"role": "assistant", "tool_calls": [call]})
        return
    with pytest.raises(InvalidRequestError, match=reason):
        prepare({"role": "assistant", "tool_calls": [call]})


def test_refuses_deep_nesting() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply; flatten it"):
        prepare({"role": "user", "content": "hi", "name": deep})


def test_joins_text_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prepare({"role": "user", "content": parts})["content"] == "one\ntwo"


@pytest.mark.parametrize(
    "arguments", ["[]", '"{}"', "1", "null", "true", [1], 1, [], 0, False, np.ones(2)]
)
def test_arguments_are_an_object(arguments: object) -> None:
    """Also in Python, where they need no text: templates read them by their names."""
    function = {"name": "f", "arguments": arguments}
    for call, field in (({"function": function}, r"\.function"), (function, "")):
        with pytest.raises(
            InvalidRequestError, match=rf"\[0\]{field}\.arguments: must be a JSON obj"
        ):
            prepare_messages([{"role": "assistant", "tool_calls": [call]}], str)


def test_parses_arguments_of_tool_calls() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"x": [1, null]}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    prepared = prepare(message)
    assert prepared["tool_calls"][0]["function"]["arguments"] == {"x": [1, None]}
    assert prepared == prepare(prepared)
    flat = prepare(message | {"tool_calls": [call["function"]]})
    assert flat["tool_calls"] == [prepared["tool_calls"][0]["function"]]
    assert call["function"]["arguments"] == '{"x": [1, null]}', "the caller's messages stay"
    assert "content" not in prepared


@pytest.mark.parametrize(
    "text", ["{", '{"a', '{"a": ', '{"a": "b', '{"a": 1', '{"a": [1, ', '{"a\\']
)
def test_arguments_that_max_tokens_has_cut_stay_text(text: str) -> None:
    call = {"function": {"name": "f", "arguments": text}}
    assert prepare({"role": "assistant", "tool_calls": [call]})["tool_calls"] == [call]


@pytest.mark.parametrize("given", [{}, {"arguments": None}, {"arguments": ""}], ids=str)
def test_a_call_without_arguments_has_none(given: dict[str, Any]) -> None:
    call = {"id": "1", "function": {"name": "f", **given}}
    prepared = prepare({"role": "assistant", "tool_calls": [call]})
    assert prepared["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_maps_every_string_but_the_role() -> None:
    call = {"function": {"name": "f", "arguments": {"user": "user"}}}
    message = {"role": "user", "content": "user", "name": "user", "tool_calls": [call]}
    (prepared,) = prepare_messages([message], lambda text: text.replace("user", "*"))
    assert prepared["role"] == "user"
    assert prepared["content"] == prepared["name"] == "*"
    assert prepared["tool_calls"][0]["function"]["arguments"] == {"*": "*"}


def test_tools() -> None:
    assert prepare_tools(None, str) is None
    assert prepare_tools([{"type": "function", "n": 1.5}], str) == [{"type": "function", "n": 1.5}]
    for tools in ({}, "f", [1]):
        with pytest.raises(InvalidRequestError, match="tools: must be a list of objects") as caught:
            prepare_tools(tools, str)
        assert caught.value.param == "tools"


def test_takes_keys_that_the_template_names() -> None:
    message = {"role": "user", "content": "hi", "mood": "calm"}
    assert prepare_messages((message,), str, {"mood"}) == [message]


def test_drops_what_clients_send_back_empty() -> None:
    answer = {"role": "assistant", "content": "hi"}
    assert prepare(answer | {"refusal": "", "annotations": [], "audio": None}) == answer
