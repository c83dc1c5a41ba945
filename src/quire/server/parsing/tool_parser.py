"""ToolParser: how a family of models writes tool calls, for parsing and for grammars."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from hashlib import sha256

import msgspec

from quire.server.parsing.text_source import Marks, Wait
from quire.server.parsing.tool_call_reader import ToolCallReader

NAME_FIELD = "NAME"
"""Placeholder of the tool's name in a CallTemplate."""

KEY_FIELD = "KEY"
"""Placeholder of the parameter's name in a TagTemplate."""


_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def long_id() -> str:
    """A new id in OpenAI's format, such as "call_0a1b..."."""
    return f"call_{uuid.uuid4().hex[:24]}"


def short_id() -> str:
    """A new id in the format of Mistral's templates: nine letters and digits."""
    return uuid.uuid4().hex[:9]


def fit_short_id(given: str) -> str:
    """Convert any id to one for Mistral's templates; equal ids stay equal."""
    return given if _SHORT_ID.fullmatch(given) else sha256(given.encode()).hexdigest()[:9]


class TagTemplate(msgspec.Struct, frozen=True):
    """The texts around one argument's bare value.

    before, end: the tags. space: before `end` if the value is not a string. after: after `end`.
    """

    before: str
    end: str
    space: str = ""
    after: str = "\n"


class CallTemplate(msgspec.Struct, frozen=True):
    """The texts around the arguments of a call, for grammars that enforce calls.

    between: between two calls; None allows only one. begin, end: around all calls. tags: for
    arguments that are bare values instead of JSON.
    """

    before: str
    after: str
    between: str | None = None
    begin: str = ""
    end: str = ""
    tags: TagTemplate | None = None


class ToolParser(msgspec.Struct, frozen=True):
    """The tool-call format of a family of models.

    name: for --tool-call-parser. signs: texts that chat templates for it have. read: parses calls.
    frame: the format for grammars. begin: the marks that start calls, anywhere in the answer.
    inner: further control texts of calls. bare: whether calls may also start the answer without a
    mark. new_id: makes ids of calls. fit_id: converts a client's id to one that the chat template
    accepts.
    """

    name: str
    signs: tuple[str, ...]
    read: Callable[[ToolCallReader], Wait[None]]
    frame: CallTemplate
    begin: Marks
    inner: tuple[str, ...] = ()
    bare: bool = False
    new_id: Callable[[], str] = long_id
    fit_id: Callable[[str], str] = str
