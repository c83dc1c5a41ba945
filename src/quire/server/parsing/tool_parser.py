"""What a format consists of: how its calls are read, and how forced ones are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.server.parsing.text_source import Marks, Wait
from quire.server.parsing.tool_call_ids import long_id
from quire.server.parsing.tool_call_reader import ToolCallReader

NAME_FIELD = "NAME"
"""What stands for a tool's name in a CallTemplate."""

KEY_FIELD = "KEY"
"""What stands for a parameter's name in a TagTemplate."""


@dataclass(frozen=True, slots=True)
class TagTemplate:
    """How an argument is written around its bare value.

    before, end: the tags. space: before the end where the value is no string. after: the end.
    """

    before: str
    end: str
    space: str = ""
    after: str = "\n"


@dataclass(frozen=True, slots=True)
class CallTemplate:
    """How calls are written where they are forced: the texts around the arguments.

    between: of two calls; None allows only one. begin, end: around all calls. tags: where arguments
    are bare values and not JSON.
    """

    before: str
    after: str
    between: str | None = None
    begin: str = ""
    end: str = ""
    tags: TagTemplate | None = None


@dataclass(frozen=True, slots=True)
class ToolParser:
    """How a family of models writes calls.

    begin: what calls begin with, anywhere in the answer. inner: further control texts of calls.
    bare: calls may also begin the answer without a mark. new_id: makes ids of calls. fit_id: makes
    such an id of one that comes from elsewhere.
    """

    name: str
    read: Callable[[ToolCallReader], Wait[None]]
    frame: CallTemplate
    begin: Marks
    inner: tuple[str, ...] = ()
    bare: bool = False
    new_id: Callable[[], str] = long_id
    fit_id: Callable[[str], str] = str
