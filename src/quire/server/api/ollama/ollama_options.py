"""The `options` and `keep_alive` of Ollama's bodies, decoded and checked; what has no effect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec

from quire.compat.foreign_name import ANY
from quire.compat.names_table import NoEffect, Refused, meaning_of, rows_of
from quire.errors import InvalidRequestError, invalid_value
from quire.server.http import field_bounds, strict_json
from quire.server.http.field_bounds import Int32
from quire.server.http.request_body import RequestBody, read_with_names, refused_field
from quire.server.http.strict_json import Described

T = TypeVar("T", bound=RequestBody)

_NUM_PREDICT = msgspec.Meta(ge=-2, le=2**31 - 1, extra_json_schema={"not": {"const": 0}})
# a duration in Go's words, or a number of seconds as text; "" asks for nothing
_TIME = re.compile(
    r"(?=.{0,64}\Z)(?:[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:(?:ns|us|µs|ms|s|m|h)|\Z))*", re.ASCII
)
_MORE = re.compile("[1-9]")
_EXACT = 2.0**53  # below it each whole number is a float
_NO_EFFECT = "has no effect: the model is loaded with the server's settings"
_NO_REACH = "has no effect: penalties cover the whole answer and its prompt"


class Options(Described, kw_only=True):
    """Sampling params, and settings of a load, which have no effect. num_predict: -1: no limit."""

    # the settings of a load are num_ctx and all after it

    temperature: field_bounds.Temperature | None = None
    top_k: field_bounds.TopK | None = None
    top_p: field_bounds.TopP | None = None
    min_p: field_bounds.MinP | None = None
    repeat_penalty: field_bounds.RepetitionPenalty | None = None
    repeat_last_n: Int32 | None = None
    penalize_newline: bool | None = None
    presence_penalty: field_bounds.Penalty | None = None
    frequency_penalty: field_bounds.Penalty | None = None
    seed: field_bounds.Seed | None = None
    stop: field_bounds.Word | field_bounds.StopStrings | None = None
    num_predict: Annotated[int, _NUM_PREDICT] | None = None
    num_ctx: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    num_batch: Int32 | None = None
    num_gpu: Int32 | None = None
    main_gpu: Int32 | None = None
    num_thread: Int32 | None = None
    num_keep: Int32 | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    vocab_only: bool | None = None
    logits_all: bool | None = None
    embedding_only: bool | None = None
    num_gqa: Int32 | None = None
    rope_frequency_base: float | None = None
    rope_frequency_scale: float | None = None
    draft_num_predict: Int32 | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether it asks for penalties, of which repeat_last_n says how far they reach."""
        repeats = self.repeat_penalty not in (None, 1.0)
        return repeats or bool(self.presence_penalty or self.frequency_penalty)


_LOAD_OPTIONS = Options.__struct_fields__[Options.__struct_fields__.index("num_ctx") :]
_OPTION_NAMES = strict_json.names_of(Options)
# other engines' options that are taken, with their values
Options.neutral = {
    row.name: row.takes
    for row in rows_of("sampling")
    if row.name not in _OPTION_NAMES and (row.takes is ANY or row.takes)
}


def read_ollama(data: bytes, kind: type[T]) -> T:
    """Decode a body with `options`; see `read_body`. Whole numbers of them are integers, as Go's
    JSON has no others: Home Assistant sends a num_ctx of 8192.0. Raises InvalidRequestError.
    """
    try:
        request, found = read_with_names(data, kind)
    except InvalidRequestError as error:
        if not (error.param or "").startswith("options."):
            raise
        try:
            data = _with_integers(data)
        except InvalidRequestError as other:
            if other.code == "invalid_value":  # a number out of range, whose field has no name here
                raise error from None
            raise
        request, found = read_with_names(data, kind)
    request.note_no_effect(*_check_options(found, strict_json.names_of(kind)))
    return request


def _with_integers(data: bytes) -> bytes:
    """A body whose options are not all of their types, with integers for whole numbers."""
    strict_json.decode(data, strict_json.decoder_of(dict[str, Any]))
    body = strict_json.read_names(data)
    options = {name: _integer(value) for name, value in body["options"].items()}
    return msgspec.json.encode({**body, "options": options})


def _integer(value: Any) -> Any:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value


def _check_options(found: dict[str, Any], known: frozenset[str]) -> list[str]:
    """A sentence about each option without effect that is another engine's; refuses wrong ones.

    found: the body as plain values. known: the fields that it may have. Raises InvalidRequestError.
    """
    options, notices = found.get("options") or {}, list[str]()
    if options.get("num_predict") == 0:
        raise invalid_value("options.num_predict", "must be an integer >= 1, or -1, not 0")
    for name, value in options.items():
        if name in _OPTION_NAMES:
            continue
        match meaning_of(name, value, ("sampling",)):
            case NoEffect(text=text, is_neutral=is_neutral):
                notices += [] if is_neutral else [f"options.{text}"]
            case Refused(text=text):
                raise refused_field(name, value, text, "options.")
            case _:
                strict_json.check_names({name: value}, _OPTION_NAMES, {}, "options.", beside=known)
    return notices


def asks_to_unload(keep_alive: str | float | None) -> bool:
    """Whether a model is to be unloaded at once: a duration of 0, such as 0, "0" or "0s".

    keep_alive: is checked, see `keep_alive_notes`.
    """
    if isinstance(keep_alive, str):
        return keep_alive != "" and _MORE.search(keep_alive) is None
    return keep_alive == 0


def keep_alive_notes(keep_alive: str | float | None) -> Iterator[str]:
    """A sentence about `keep_alive`, if it asks for something. Raises InvalidRequestError."""
    if isinstance(keep_alive, str) and not _TIME.fullmatch(keep_alive):
        problem = "must be a number of seconds, or a duration such as '5m', not"
        raise invalid_value("keep_alive", f"{problem} {keep_alive[:64]!r}")
    if keep_alive not in (None, ""):
        yield "keep_alive has no effect: a model stays loaded; see idle_unload_seconds"


def no_effect_notes(keep_alive: str | float | None, options: Options) -> Iterator[str]:
    """Sentences about the fields that have no effect."""
    yield from keep_alive_notes(keep_alive)
    reach = {"repeat_last_n": (None, -1, 0), "penalize_newline": (None, True)}
    for name, taken in reach.items():
        if getattr(options, name) not in taken and options.has_penalties:
            yield f"options.{name} {_NO_REACH}"
    for name in _LOAD_OPTIONS:
        if getattr(options, name) is not None:
            yield f"options.{name} {_NO_EFFECT}"
