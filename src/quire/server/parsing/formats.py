"""The formats in which models write tool calls: one reader each, over the same small steps.

A reader begins at one of its format's marks (or, for bare calls, at the answer's first brace), in
an attempt that the caller has begun. It raises Broken where the text is no call of the format.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from quire.server.parsing.calls import Calls, read_json_call
from quire.server.parsing.json_text import read_object
from quire.server.parsing.source import NAME, Marks, Wait
from quire.server.parsing.xml_call import read_xml_call

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_BETWEEN = re.compile(r"[ \t\r\n;]*")


def long_id() -> str:
    """A call's id as OpenAI writes it."""
    return f"call_{uuid.uuid4().hex[:24]}"


def short_id() -> str:
    """A call's id as Mistral's templates demand it: nine letters and digits."""
    return uuid.uuid4().hex[:9]


def fit_short_id(given: str) -> str:
    """An id for Mistral's templates in place of whichever a call has; equal for equal ones."""
    return given if _SHORT_ID.fullmatch(given) else sha256(given.encode()).hexdigest()[:9]


NAME_PLACE = "NAME"
"""What stands for a tool's name in a CallFrame."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """How calls are written where they are forced: the texts around the arguments.

    between: of two calls; None allows only one. begin, end: around all calls. has_tags: arguments
    are tags around bare values, not JSON.
    """

    before: str
    after: str
    between: str | None = None
    begin: str = ""
    end: str = ""
    has_tags: bool = False


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls.

    begin: what calls begin with, anywhere in the answer. inner: further control texts of calls.
    bare: calls may also begin the answer without a mark. new_id: makes ids of calls. fit_id: makes
    such an id of one that comes from elsewhere.
    """

    name: str
    read: Callable[[Calls], Wait[None]]
    frame: CallFrame
    begin: Marks
    inner: tuple[str, ...] = ()
    bare: bool = False
    new_id: Callable[[], str] = long_id
    fit_id: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its thoughts, which come before the answer."""

    name: str
    begin: str
    end: str


def _read_hermes(calls: Calls) -> Wait[None]:
    source = calls.source
    yield from source.expect("<tool_call>")
    yield from source.skip_space()
    yield from read_json_call(calls)
    yield from source.skip_space()
    yield from source.accept("</tool_call>")


def _read_llama3(calls: Calls) -> Wait[None]:
    """One object, or several with semicolons between them."""
    source = calls.source
    yield from source.accept("<|python_tag|>")
    yield from source.skip_space()
    yield from read_json_call(calls)
    calls.attempt()
    yield from source.run(_BETWEEN)
    while (yield from source.peek()) == "{":
        yield from read_json_call(calls)
        calls.attempt()
        yield from source.run(_BETWEEN)
    source.give_back()


def _read_mistral(calls: Calls) -> Wait[None]:
    """A list of objects after the mark; in newer models a name, a second mark and the arguments."""
    source = calls.source
    yield from source.expect("[TOOL_CALLS]")
    yield from source.skip_space()
    if (yield from source.accept("[")):
        yield from _read_list(calls)
    else:
        yield from _read_named(calls)


def _read_list(calls: Calls) -> Wait[None]:
    source = calls.source
    while True:
        yield from source.skip_space()
        yield from read_json_call(calls)
        calls.attempt()
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            break
    yield from source.expect("]")
    source.end_attempt()


def _read_named(calls: Calls) -> Wait[None]:
    source = calls.source
    calls.name((yield from source.word(NAME)))
    if (yield from source.accept("[CALL_ID]")):
        yield from source.word(NAME)
    yield from source.accept("[ARGS]")
    yield from source.skip_space()
    yield from read_object(source, calls.arguments)
    calls.complete()


TOOL_FORMATS = {
    form.name: form
    for form in (
        ToolFormat(
            "hermes",
            _read_hermes,
            CallFrame('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "\n"),
            Marks("<tool_call>"),
            ("</tool_call>",),
        ),
        ToolFormat(
            "llama3",
            _read_llama3,
            CallFrame('{"name": "NAME", "parameters": ', "}"),
            Marks("<|python_tag|>"),
            bare=True,
        ),
        ToolFormat(
            "mistral",
            _read_mistral,
            CallFrame('{"name": "NAME", "arguments": ', "}", ", ", "[TOOL_CALLS][", "]"),
            Marks("[TOOL_CALLS]"),
            new_id=short_id,
            fit_id=fit_short_id,
        ),
        ToolFormat(
            "mistral_args",
            _read_mistral,
            CallFrame("[TOOL_CALLS]NAME[ARGS]", "", ""),
            Marks("[TOOL_CALLS]"),
            ("[CALL_ID]", "[ARGS]"),
            new_id=short_id,
            fit_id=fit_short_id,
        ),
        ToolFormat(
            "qwen3_coder",
            read_xml_call,
            CallFrame(
                "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", "\n", has_tags=True
            ),
            Marks("<tool_call>", "<function="),
            ("</tool_call>",),
        ),
    )
}

REASONING_FORMATS = {
    form.name: form
    for form in (
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    )
}
