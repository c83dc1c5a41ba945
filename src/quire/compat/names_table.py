"""The table of foreign names: what a name of another engine means in one of seven scopes.

- "engine": `LLM(...)`, the command line and a YAML file;
- "server": the command line of `quire serve` and its YAML file;
- "sampling": `SamplingParams`, the command line, and a request over HTTP;
- "request": a request over HTTP alone;
- "cli": the command lines of `quire generate` and `quire chat`;
- "call": `LLM.generate`, `LLM.chat` and `LLM.embed`;
- "pooling": `PoolingParams`.

HTTP asks for a field that its route does not know:

    match meaning_of(name, value, ("request", "sampling")):
        case None:                      # unknown: refuse it, perhaps with the nearest own name
        case Own(name=own, value=v):    # the same as Quire's field `own`: decode it there
        case NoEffect(text=text):       # take it; say so in a header unless it `is_neutral`
        case Refused(text=text):        # 400 with this text, code "unsupported_parameter"

A field that a route honours is never asked for here: what a route reads wins. No answer looks for
similar names, since similar names of two engines mean different things.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args

import msgspec

from quire.compat.foreign_name import ForeignName

Scope = Literal["engine", "server", "sampling", "request", "cli", "call", "pooling"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
_ALONE: Mapping[str, Any] = {}


@cache
def rows_of(scope: Scope) -> tuple[ForeignName, ...]:
    """The rows of a scope, imported when they are asked for: an API process needs two scopes."""
    match scope:
        case "engine":
            from quire.compat.llama_cpp_names import LLAMA_CPP_NAMES, LLAMA_PYTHON_NAMES
            from quire.compat.transformers_names import TRANSFORMERS_NAMES
            from quire.compat.vllm_names import VLLM_NAMES

            return VLLM_NAMES + LLAMA_CPP_NAMES + LLAMA_PYTHON_NAMES + TRANSFORMERS_NAMES
        case "server":
            from quire.compat.llama_cpp_names import LLAMA_SERVER_NAMES
            from quire.compat.server_names import SERVER_NAMES, SGLANG_NAMES, TGI_NAMES
            from quire.compat.vllm_names import VLLM_SERVER_NAMES

            others = VLLM_SERVER_NAMES + LLAMA_SERVER_NAMES + SGLANG_NAMES + TGI_NAMES
            return SERVER_NAMES + others
        case "sampling":
            from quire.compat.sampling_names import SAMPLING_NAMES
            from quire.compat.webui_fields import WEBUI_PARAMS

            return SAMPLING_NAMES + WEBUI_PARAMS
        case "request":
            from quire.compat.request_names import REQUEST_NAMES
            from quire.compat.webui_fields import WEBUI_FIELDS

            return REQUEST_NAMES + WEBUI_FIELDS
        case "cli":
            from quire.compat.cli_names import CLI_NAMES

            return CLI_NAMES
        case "call":
            from quire.compat.call_names import CALL_NAMES

            return CALL_NAMES
        case "pooling":
            from quire.compat.call_names import POOLING_NAMES

            return POOLING_NAMES


@cache
def _by_name(scope: Scope) -> Mapping[str, ForeignName]:
    return {row.name: row for row in rows_of(scope)}


class Own(msgspec.Struct, frozen=True):
    """Quire's setting `name` with this value; foreign_name.DEFAULT: the setting's default."""

    name: str
    value: Any


class NoEffect(msgspec.Struct, frozen=True):
    """A name that is accepted without effect. text: a sentence that says so and why.

    is_neutral: the value asks for Quire's fixed behaviour, or for nothing, so no warning is needed.
    """

    text: str
    is_neutral: bool


class Refused(msgspec.Struct, frozen=True):
    """A name that is refused. why: says so, and why; fix: what to use instead."""

    why: str
    fix: str

    @property
    def text(self) -> str:
        """The sentence of both."""
        return f"{self.why}; {self.fix}"


Meaning = Own | NoEffect | Refused


def row_of(name: str, scopes: Sequence[Scope]) -> ForeignName | None:
    """The row of a name, in the first scope that has one."""
    return next((row for scope in scopes if (row := _by_name(scope).get(name))), None)


def meaning_of(
    name: str, value: Any, scopes: Sequence[Scope], beside: Mapping[str, Any] = _ALONE
) -> Meaning | None:
    """The meaning of a foreign name with this value; None for a name that is not in the table.

    beside: all names that are given, with their values.
    """
    row = row_of(name, scopes)
    return None if row is None else meaning_of_row(row, value, beside=beside)


def meaning_of_row(
    row: ForeignName, value: Any, shown: str | None = None, beside: Mapping[str, Any] = _ALONE
) -> Meaning:
    """The meaning of a row with this value. shown: the name as its user wrote it: --swap-space."""
    shown = shown or row.name
    if row.same_as is not None:
        is_own, own = row.own_value(value)
        if is_own:
            return Own(row.same_as, own)
    if row.has_no_effect(value, beside):
        return NoEffect(f"{shown} has no effect: {row.text}", row.is_neutral(value))
    why = f": {row.text}" if row.text else ""
    given = "" if value is True else f" {reprlib.repr(value)}"
    return Refused(f"{shown}{given} is not supported{why}", row.fix)
