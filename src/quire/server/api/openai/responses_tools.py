"""The tools of /v1/responses, and the functions as which a model sees them.

A tool in a namespace, or a custom one, whose input is a text, is a function to the model; the
answer's items name the tool as the request does. Tools that OpenAI's servers run are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from quire.compat.foreign_kinds import is_run_by_servers
from quire.server.api.common.tool_definitions import MAX_TOOLS, FunctionName, Tool
from quire.server.http import strict_json
from quire.server.http.field_names import FieldNames
from quire.server.http.strict_json import Strict
from quire.server.parsing.output_events import arguments_of

# the function that a custom tool is to the model
_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class ResponsesTool(Strict, tag_field="type", tag="function"):
    """A function that the model may call. defer_loading: without effect; it sees all of them."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: bool | None = None


class CustomFormat(Strict):
    """The format of a custom tool's input. A grammar is shown to the model, but not enforced."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(Strict, tag_field="type", tag="custom"):
    """A tool whose input is a text. defer_loading: without effect; the model sees all of them."""

    name: FunctionName
    description: str | None = None
    format: CustomFormat | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: bool | None = None


class NamespaceTool(Strict, tag_field="type", tag="namespace"):
    """Tools that belong together. Calls of them have its name as their `namespace`."""

    name: FunctionName
    tools: Annotated[
        list[ResponsesTool | CustomTool], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)
    ]
    description: str | None = None


AnyTool = ResponsesTool | CustomTool | NamespaceTool
TOOLS = (Annotated[list[AnyTool], msgspec.Meta(max_length=MAX_TOOLS)], None)  # types of the field
_decoder: msgspec.json.Decoder[AnyTool] = msgspec.json.Decoder(AnyTool)


class _Kind(msgspec.Struct):
    type: str


_kind_decoder = msgspec.json.Decoder(_Kind)


class CalledTool(msgspec.Struct, frozen=True):
    """A tool as the request names it. is_custom: its input is a text."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def function_name(self) -> str:
        """The name under which the model calls it."""
        return self.name if self.namespace is None else f"{self.namespace}__{self.name}"


class ResponsesTools(msgspec.Struct, frozen=True):
    """The tools of a request. sent: without those left out. functions: as the model sees them.

    called: function's name → the custom tool, or that of a namespace. names: of the functions'
    fields in the request. without_effect: a sentence for each kind of tool that is left out.
    """

    sent: Sequence[AnyTool] = ()
    functions: Sequence[Tool] = ()
    called: Mapping[str, CalledTool] = {}
    names: FieldNames = FieldNames({})
    without_effect: Sequence[str] = ()

    @property
    def are_deferred(self) -> bool:
        """Whether some are to be loaded later."""
        spaces = [each for each in self.sent if isinstance(each, NamespaceTool)]
        inner = [tool for space in spaces for tool in space.tools]
        single = [each for each in self.sent if not isinstance(each, NamespaceTool)]
        return any(tool.defer_loading for tool in (*single, *inner))

    def tool_of(self, function_name: str) -> CalledTool:
        """The tool that the model has called."""
        return self.called.get(function_name) or CalledTool(function_name)


def read_tools(found: Sequence[msgspec.Raw]) -> ResponsesTools:
    """The tools of a request. Raises InvalidRequestError, also if all are run by servers."""
    sent, functions, called, paths = list[AnyTool](), list[Tool](), dict[str, CalledTool](), {}
    kinds = [_kind_of(raw) for raw in found]
    are_all_elsewhere = all(is_run_by_servers(kind) for kind in kinds)  # then they are refused
    for index, (raw, kind) in enumerate(zip(found, kinds, strict=True)):
        if is_run_by_servers(kind) and not are_all_elsewhere:
            continue
        tool = strict_json.decode(bytes(raw), _decoder, path=(where := f"tools[{index}]"))
        sent.append(tool)
        for path, target, function in _functions_of(tool, where):
            if target.namespace is not None or target.is_custom:
                called[function.function.name] = target
            paths[f"tools[{len(functions)}]"] = path
            functions.append(function)
    moved = {name: path for name, path in paths.items() if name != path}
    notes = [
        f"tools of type {kind[:64]!r} have no effect: clients run the tools"
        for kind in dict.fromkeys(kinds)
        if is_run_by_servers(kind)
    ]
    return ResponsesTools(sent, functions, called, FieldNames(moved), notes)


def as_arguments(text: str) -> str:
    """The arguments of the function that a custom tool with this input is."""
    return msgspec.json.encode({"input": text}).decode()


def input_of(arguments: str) -> str:
    """A custom tool's input; the arguments themselves where the model wrote others."""
    found = (arguments_of(arguments) or {}).get("input")
    return found if isinstance(found, str) else arguments


def _kind_of(raw: msgspec.Raw) -> str:
    """A tool's type; empty if it has none."""
    try:
        return _kind_decoder.decode(raw).type
    except (msgspec.MsgspecError, RecursionError):
        return ""


def _functions_of(tool: AnyTool, where: str) -> Iterator[tuple[str, CalledTool, Tool]]:
    """The functions that a tool is to the model: the path of each, its tool, and itself."""
    if not isinstance(tool, NamespaceTool):
        yield where, CalledTool(tool.name, None, isinstance(tool, CustomTool)), _function(tool)
        return
    for index, inner in enumerate(tool.tools):
        target = CalledTool(inner.name, tool.name, isinstance(inner, CustomTool))
        function = _function(inner)
        function.function.name = target.function_name
        if index == 0:  # the description of all is said once
            function.function.description = _joined(tool.description, function.function.description)
        yield f"{where}.tools[{index}]", target, function


def _function(tool: ResponsesTool | CustomTool) -> Tool:
    if isinstance(tool, ResponsesTool):
        return Tool.of(tool.name, tool.description, tool.parameters, tool.strict)
    grammar = None
    if tool.format is not None and tool.format.definition:
        grammar = f"The input has this format ({tool.format.syntax}):\n{tool.format.definition}"
    return Tool.of(tool.name, _joined(tool.description, grammar), _INPUT, None)


def _joined(*texts: str | None) -> str | None:
    """Texts as paragraphs of one; None if there are none."""
    return "\n\n".join(text for text in texts if text) or None


class ResponsesToolChoice(Strict, tag_field="type", tag="function"):
    """The function that must be called."""

    name: FunctionName


class CustomToolChoice(Strict, tag_field="type", tag="custom"):
    """The custom tool that must be called."""

    name: FunctionName


class ResponsesToolReference(Strict):
    """A tool that is defined elsewhere in the request."""

    type: Literal["function", "custom"]
    name: FunctionName


class ResponsesAllowedTools(Strict, tag_field="type", tag="allowed_tools"):
    """The tools of which some may be called (auto) or must be called (required)."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponsesToolReference], msgspec.Meta(min_length=1, max_length=MAX_TOOLS)]
