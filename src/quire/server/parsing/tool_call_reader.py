"""One answer's tool calls while they are read: which tools there are, and what is told when.

A call is told as soon as it is certain: its name is a tool of the request and its arguments have
begun. What turns out malformed before that was no call, and comes back as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quire.server.parsing.incremental_json import read_object, string_value
from quire.server.parsing.text_source import MalformedCall, TextSource, Wait


class AllCallsRead(Exception):  # noqa: N818 - it ends the reading, and never leaves this room
    """The answer has as many calls as it may have."""


_ARGUMENTS_KEYS = ("arguments", "parameters")
_LABEL_KEYS = ("id", "type")  # strings that models add, and that nobody needs

Schemas = Mapping[str, Mapping[str, Any]]
"""The request's tools: name → JSON schema of the arguments."""


class ToolCallReader:
    """Follows an answer's calls. begin and add: told the name of a new call, more arguments."""

    def __init__(
        self,
        source: TextSource,
        tools: Schemas,
        begin: Callable[[int, str], None],
        add: Callable[[str], None],
        *,
        most: int | None = None,
    ) -> None:
        self.source = source
        self.tools = tools
        self.num_begun = 0
        self.num_complete = 0
        self.most = most
        self._begin = begin
        self._add = add
        self._name: str | None = None
        self._held: list[str] | None = None  # arguments of a call that is not certain yet

    def attempt(self, before: str = "") -> None:
        """What comes may be a call. before: text that comes back with it if it is none."""
        self.source.begin_attempt(before)
        self._name, self._held = None, []

    @property
    def is_certain(self) -> bool:
        """Whether the call that is being read has been told."""
        return self._held is None

    def name(self, name: str) -> None:
        """Set the call's name. Raises MalformedCall for an unknown tool or a second name."""
        if name not in self.tools or self._name is not None:
            raise MalformedCall
        self._name = name
        self._tell()

    def arguments(self, text: str) -> None:
        """More of the arguments."""
        if self._held is None:
            self._add(text)
        else:
            self._held.append(text)
            self._tell()

    def complete(self) -> None:
        """End the arguments. Raises MalformedCall without a name; AllCallsRead after the last."""
        if not self.is_certain:
            raise MalformedCall
        self.num_complete += 1
        if self.num_complete == self.most:
            raise AllCallsRead

    def _tell(self) -> None:
        """Tell what was held once there are a name and the beginning of the arguments."""
        if self._name is None or not self._held:
            return
        held, self._held = "".join(self._held), None
        self.source.end_attempt()
        self.num_begun += 1
        self._begin(self.num_begun - 1, self._name)
        self._add(held)


def read_json_call(calls: ToolCallReader) -> Wait[None]:
    """Read `{"name": ..., "arguments": {...}}`, keys in any order. Raises MalformedCall.

    The call is complete with its arguments: a missing brace after them is forgiven.
    """
    source = calls.source
    yield from source.expect("{")
    has_arguments = yield from _read_pair(calls, has_arguments=False)
    while not (has_arguments and calls.is_certain):
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            yield from source.expect("}")
            calls.arguments("{}")  # the name of a tool without parameters
            calls.complete()
            return
        has_arguments = yield from _read_pair(calls, has_arguments=has_arguments)
    calls.complete()
    yield from _read_rest(source)


def _read_pair(calls: ToolCallReader, *, has_arguments: bool) -> Wait[bool]:
    """Read a key and its value; returns whether the arguments have come by now."""
    source = calls.source
    key = yield from _read_key(source)
    if key in _ARGUMENTS_KEYS and not has_arguments:
        yield from read_object(source, calls.arguments)
        return True
    if key == "name":
        calls.name((yield from string_value(source)))
    elif key in _LABEL_KEYS:
        yield from string_value(source)
    else:
        raise MalformedCall
    return has_arguments


def _read_rest(source: TextSource) -> Wait[None]:
    """Read the object's end; if it does not end there, take nothing."""
    source.begin_attempt()
    try:
        yield from source.skip_space()
        while (yield from source.accept(",")):
            if (yield from _read_key(source)) not in _LABEL_KEYS:
                raise MalformedCall
            yield from string_value(source)
            yield from source.skip_space()
        yield from source.expect("}")
    except MalformedCall:
        source.give_back()
    else:
        source.end_attempt()


def _read_key(source: TextSource) -> Wait[str]:
    yield from source.skip_space()
    key = yield from string_value(source)
    yield from source.skip_space()
    yield from source.expect(":")
    yield from source.skip_space()
    return key
