"""Tools and tool_choice: their structs in a request, their bounds, and which tools may be called.

A tool's JSON schema is bounded because the chat template and the grammar compiler process it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from quire.errors import invalid_value
from quire.server.http.field_bounds import FunctionKind, one_of
from quire.server.http.strict_json import Strict

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 << 10  # of all tools together, as compact JSON
MAX_SCHEMA_DEPTH = 32  # of nested lists and objects

# Anthropic's mark of a prefix to be cached, as every prefix is; agents send it in chats, too
_CACHED = {"type": "ephemeral"}
CACHE_CONTROL = (None, _CACHED, *({**_CACHED, "ttl": time} for time in ("5m", "1h")))

FunctionName = Annotated[
    str, msgspec.Meta(pattern=r"\A[a-zA-Z0-9_.-]{1,128}\Z")
]  # as in Anthropic's API
AllowedMode = Literal["auto", "required"]
ALL_ARE_SHOWN = "defer_loading of tools has no effect: the model sees all of them"
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class Function(Strict):
    """A tool's name, description and parameters (a JSON schema of an object)."""

    neutral: ClassVar = {"cache_control": CACHE_CONTROL}
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may call; "function" is the only type."""

    neutral: ClassVar = {"cache_control": CACHE_CONTROL}
    type: FunctionKind
    function: Function

    @classmethod
    def of(cls, name: str, description: str | None, parameters: Any, strict: bool | None) -> Tool:
        """The tool of a function."""
        function = Function(
            name=name, description=description, parameters=parameters, strict=strict
        )
        return cls(type="function", function=function)


class FunctionChoice(Strict):
    """The function that must be called."""

    name: FunctionName


class NamedChoice(Strict, tag_field="type", tag="function"):
    """A tool_choice that names a tool."""

    function: FunctionChoice

    @classmethod
    def of(cls, name: str) -> NamedChoice:
        """The choice of the tool with this name."""
        return cls(function=FunctionChoice(name=name))


class ToolReference(Strict):
    """A tool that is defined elsewhere in the request."""

    type: FunctionKind
    function: FunctionChoice


class AllowedTools(Strict):
    """The tools of which some may be called (auto) or must be called (required)."""

    mode: AllowedMode
    tools: Annotated[list[ToolReference], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Strict, tag_field="type", tag="allowed_tools"):
    """A tool_choice that names several tools; the model sees the others, too."""

    allowed_tools: AllowedTools


class DirectCaller(Strict):
    """The caller of a tool in a conversation: the model itself, always."""

    type: Literal["direct"]


Tools = Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)]
ToolChoice = Annotated[str, one_of("none", "auto", "required")] | NamedChoice | AllowedChoice


class ToolUse(msgspec.Struct, frozen=True):
    """The checked tools and tool_choice of a request. shown: the tools that the model sees.

    allowed: the tools that it may call. must_call: the answer consists only of calls. most_calls:
    None is any number.
    """

    shown: Sequence[Tool] = ()
    allowed: Sequence[Tool] = ()
    must_call: bool = False
    most_calls: int | None = None

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Name → JSON schema of the arguments, for each allowed tool."""
        return {
            tool.function.name: tool.function.parameters or NO_PARAMETERS for tool in self.allowed
        }

    @property
    def is_strict(self) -> bool:
        """Whether arguments must match their schema."""
        return self.must_call or any(tool.function.strict for tool in self.allowed)

    @property
    def enforced_schemas(self) -> dict[str, Mapping[str, Any]]:
        """Like `schemas`, but with any object allowed where the schema is not enforced."""
        return {tool.function.name: self._enforced(tool.function) for tool in self.allowed}

    def _enforced(self, function: Function) -> Mapping[str, Any]:
        if not (self.must_call or function.strict):
            return {"type": "object"}
        return function.parameters or {**NO_PARAMETERS, "additionalProperties": False}

    def for_template(self) -> list[dict[str, Any]] | None:
        """The tools as chat templates read them; None if there are none."""
        return [_described(tool.function) for tool in self.shown] or None


NO_TOOLS = ToolUse()


def tool_use(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> ToolUse:
    """Check tools and tool_choice. With "none" the model does not even see the tools.

    Raises InvalidRequestError.
    """
    if not tools and choice is None:
        return NO_TOOLS
    tools = tools or ()
    _check_tools(tools)
    match choice:
        case NamedChoice():
            allowed = _named(tools, [choice.function.name], "tool_choice.function.name")
            return ToolUse(tools, allowed, must_call=True, most_calls=1)
        case AllowedChoice(AllowedTools(mode=mode, tools=references)):
            names = [reference.function.name for reference in references]
            allowed = _named(tools, names, "tool_choice.allowed_tools.tools")
            return ToolUse(tools, allowed, must_call=mode == "required")
    if choice not in (None, "none", "auto", "required"):
        raise invalid_value(
            "tool_choice", f"must be none, auto, required or a function, not {choice[:64]!r}"
        )
    if choice == "required" and not tools:
        raise invalid_value("tool_choice", "required needs tools, but there are none; send tools")
    if choice == "none":
        return NO_TOOLS
    return ToolUse(tools, tools, must_call=choice == "required")


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than `levels` deep."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(item, levels - 1) for item in inner)


def _named(tools: Sequence[Tool], names: Sequence[str], field: str) -> list[Tool]:
    """The tools with these names, which are in a field. Raises InvalidRequestError."""
    by_name = {tool.function.name: tool for tool in tools}
    if unknown := [name for name in names if name not in by_name]:
        raise invalid_value(field, f"must be the name of a tool, not {unknown[0]!r}")
    return [by_name[name] for name in dict.fromkeys(names)]


def _check_tools(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:  # of namespaces
        raise invalid_value("tools", f"must have at most {MAX_TOOLS} tools, not {len(tools)}")
    names = set[str]()
    for index, tool in enumerate(tools):
        where, function = f"tools[{index}]", tool.function
        if function.name in names:
            raise invalid_value(
                f"{where}.function.name", f"{function.name!r} occurs twice; rename one"
            )
        names.add(function.name)
        _check_schema(function.parameters or NO_PARAMETERS, f"{where}.function.parameters")
    size = len(msgspec.json.encode(tools)) if tools else 0
    if size > MAX_TOOLS_BYTES:
        raise invalid_value("tools", f"must have at most {MAX_TOOLS_BYTES} bytes, not {size}")


def _check_schema(schema: dict[str, Any], where: str) -> None:
    if is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise invalid_value(where, f"nested more than {MAX_SCHEMA_DEPTH} deep; flatten it")
    if schema.get("type", "object") != "object":
        raise invalid_value(f"{where}.type", "must be object")


def _described(function: Function) -> dict[str, Any]:
    described: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        described["description"] = function.description
    described["parameters"] = function.parameters or NO_PARAMETERS
    return {"type": "function", "function": described}
