"""ToolCallReader: reads one answer's tool calls and reports each as soon as it is certain.

A call is certain once its name is a tool of the request and its arguments have started. What turns
out malformed before that is not a call, and comes back as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quire.server.parsing.incremental_json import read_object, string_value
from quire.server.parsing.text_source import MalformedCall, TextSource, Wait


class AllCallsRead(Exception):  # noqa: N818 - it ends the reading, and never leaves this folder
    """The answer has as many calls as it may have."""


_ARGUMENTS_KEYS = ("arguments", "parameters")
_IGNORED_KEYS = ("id", "type")  # strings that some models add

Schema = Mapping[str, Any]
"""A JSON schema."""

Schemas = Mapping[str, Schema]
"""The request's tools: name → JSON schema of the arguments."""


class ToolCallReader:
    """Reads an answer's calls. begin: called with a call's index and name; add: with arguments."""

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
        self.num_started = 0
        self.num_complete = 0
        self.most = most
        self._begin = begin
        self._add = add
        self._name: str | None = None
        self._held: list[str] | None = None  # arguments of a call that is not certain yet

    def attempt(self, before: str = "") -> None:
        """Start what may be a call. before: text that comes back with it if it is not."""
        self.source.begin_attempt(before)
        self._name, self._held = None, []

    @property
    def is_certain(self) -> bool:
        """Whether the current call has been reported."""
        return self._held is None

    def name(self, name: str) -> None:
        """Set the call's name. Raises MalformedCall for an unknown tool or a second name."""
        if name not in self.tools or self._name is not None:
            raise MalformedCall
        self._name = name
        self._report()

    def arguments(self, text: str) -> None:
        """Add text to the current call's arguments."""
        if self._held is None:
            self._add(text)
        else:
            self._held.append(text)
            self._report()

    def complete(self) -> None:
        """End the arguments. Raises MalformedCall without a name; AllCallsRead after the last."""
        if not self.is_certain:
            raise MalformedCall
        self.num_complete += 1
        if self.num_complete == self.most:
            raise AllCallsRead

    def _report(self) -> None:
        """Report the call once there are a name and the start of the arguments."""
        if self._name is None or not self._held:
            return
        held, self._held = "".join(self._held), None
        self.source.end_attempt()
        self.num_started += 1
        self._begin(self.num_started - 1, self._name)
        self._add(held)


def read_json_call(calls: ToolCallReader) -> Wait[None]:
    """Read `{"name": ..., "arguments": {...}}`, keys in any order. Raises MalformedCall.

    The call is complete with its arguments: the closing brace after them may be missing.
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
    """Read a key and its value; returns whether the arguments have come so far."""
    source = calls.source
    key = yield from _read_key(source)
    if key in _ARGUMENTS_KEYS and not has_arguments:
        yield from read_object(source, calls.arguments)
        return True
    if key == "name":
        calls.name((yield from string_value(source)))
    elif key in _IGNORED_KEYS:
        yield from string_value(source)
    else:
        raise MalformedCall
    return has_arguments


def _read_rest(source: TextSource) -> Wait[None]:
    """Read the rest of the object; if it is malformed, take nothing."""
    source.begin_attempt()
    try:
        yield from source.skip_space()
        while (yield from source.accept(",")):
            if (yield from _read_key(source)) not in _IGNORED_KEYS:
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
