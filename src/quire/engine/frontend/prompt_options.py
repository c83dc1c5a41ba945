"""Options of `LLM` for the encoding of text: truncation, and special tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypedDict

from quire.compat.no_effect_warnings import warn_no_effect
from quire.engine.frontend.prompt_encoding import Encoding
from quire.errors import InvalidRequestError, invalid_value


def without_foreign(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options but those of other engines that ask for nothing here.

    Raises InvalidRequestError for those that are refused.
    """
    if not options:
        return {}
    from quire.compat.names_table import NoEffect, Refused, meaning_of  # usually not needed

    found = {}
    for name, value in options.items():
        match meaning_of(name, value, ("call",)):
            case NoEffect(text=text, is_neutral=is_neutral):
                warn_no_effect([] if is_neutral else [text])
            case Refused(text=text):
                raise InvalidRequestError(text, param=name, code="unsupported_parameter")
            case _:
                found[name] = value
    return found


def refuse_misplaced(names: Iterable[str]) -> None:
    """Raises InvalidRequestError for the name of a sampling param, or of a server's setting."""
    from quire.compat.name_homes import python_home  # usually not needed

    for name in names:
        if (text := python_home(name)) is not None:
            raise InvalidRequestError(text, param=name, code="unknown_parameter")


def template_options(options: Mapping[str, Any], variables: Collection[str]) -> dict[str, Any]:
    """The options of a chat for its template, which reads `variables`, whatever their names.

    Raises InvalidRequestError for others that are refused or misplaced.
    """
    rest = without_foreign({n: value for n, value in options.items() if n not in variables})
    refuse_misplaced(rest)
    return {n: value for n, value in options.items() if n in variables} | rest


class EncodingOptions(TypedDict, total=False):
    """Options of a prompt's encoding.

    truncate_prompt_tokens: the number of tokens to keep; -1: as many as fit.
    truncation_side: "left" cuts tokens at the begin (the default), "right" those at the end.
    add_special_tokens: such as a BOS in front; by default as the tokenizer says.
    tokenization_kwargs: a map with these.
    """

    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None
    add_special_tokens: bool
    tokenization_kwargs: Mapping[str, Any] | None


def read_encoding(options: EncodingOptions) -> Encoding:
    """The encoding that the options, nested ones too, describe. Raises InvalidRequestError."""
    given = {**(options.get("tokenization_kwargs") or {}), **options}
    given.pop("tokenization_kwargs", None)
    truncate = given.pop("truncate_prompt_tokens", None)
    special = given.pop("add_special_tokens", True)
    side = given.pop("truncation_side", None)
    if side not in (None, "left", "right"):
        raise invalid_value("truncation_side", f"must be 'left' or 'right', not {side!r}")
    for name in without_foreign(given):
        refuse_misplaced([name])
        raise invalid_value(name, "unknown option; remove it")
    if truncate is not None and (type(truncate) is not int or truncate == 0 or truncate < -1):
        problem = f"must be an integer >= 1, or -1, not {truncate!r}"
        raise invalid_value("truncate_prompt_tokens", problem)
    if not isinstance(special, bool):
        raise invalid_value("add_special_tokens", f"must be true or false, not {special!r}")
    return Encoding(truncate, special, side == "right")
