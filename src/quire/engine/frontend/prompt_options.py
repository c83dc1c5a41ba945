"""Options of `LLM`'s calls: truncation and special tokens of text, names of other engines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, TypedDict

from quire.engine.frontend.prompt_encoding import Encoding, Prompt
from quire.engine.frontend.prompt_inputs import Prompts, read_prompts
from quire.errors import InvalidRequestError, invalid_value, warn_no_effect
from quire.plain_values import plain_number


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


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raises InvalidRequestError for options but those of other engines that ask for nothing."""
    for name in without_foreign(options):
        refuse_misplaced([name])
        raise invalid_value(name, "unknown option; remove it")


def refuse_misplaced(names: Collection[str]) -> None:
    """Raises InvalidRequestError for the name of a sampling param, or of a server's setting.

    Also for another engine's name of an argument that the call does not have.
    """
    if not names:
        return
    from quire.compat.call_names import CALL_NAMES  # usually not needed
    from quire.compat.name_homes import python_home

    renamed = {row.name: row.same_as for row in CALL_NAMES if row.same_as}
    for name in names:
        if name in renamed:
            problem = f"it is another name of {renamed[name]}, which this call does not have"
            raise invalid_value(name, f"{problem}; remove it")
        if (text := python_home(name)) is not None:
            raise InvalidRequestError(text, param=name, code="unknown_parameter")


class EncodingOptions(TypedDict, total=False):
    """Options of a prompt's encoding.

    truncate_prompt_tokens: the number of tokens to keep; -1: as many as fit.
    truncation_side: "left" cuts tokens at the begin (the default), "right" those at the end.
    add_special_tokens: such as a BOS in front; by default as the tokenizer says.
    tokenization_kwargs: a map with these, or with truncation and max_length of transformers.
    """

    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None
    add_special_tokens: bool
    tokenization_kwargs: Mapping[str, Any] | None


def take_renamed(name: str, value: Any, options: dict[str, Any]) -> Any:
    """The value of an argument, which the options may have under another engine's name.

    Takes such names out of the options. Raises InvalidRequestError for a value under two names.
    """
    if not options:
        return value
    from quire.compat.call_names import CALL_NAMES  # usually not needed

    for row in CALL_NAMES:
        if row.same_as == name and (other := options.pop(row.name, None)) is not None:
            if value is not None:
                raise invalid_value(row.name, f"it is the same as {name}; use one of them")
            value = other
    return value


def read_call(prompts: Prompts | None, options: EncodingOptions) -> tuple[list[Prompt], Encoding]:
    """The prompts of a call, and how they become token ids. Raises InvalidRequestError."""
    rest: dict[str, Any] = dict(options)
    given = take_renamed("prompts", prompts, rest)
    encoding = read_encoding(rest)  # first: a wrong name may be that of the prompts
    return read_prompts(given), encoding


def read_one_call(prompt: Any, options: Mapping[str, Any]) -> tuple[Prompt, Encoding]:
    """The one prompt of a call, and how it becomes token ids. Raises InvalidRequestError."""
    rest = dict(options)
    (one,) = read_prompts([take_renamed("prompts", prompt, rest)])
    return one, read_encoding(rest)


def read_chat(
    options: Mapping[str, Any], variables: Collection[str]
) -> tuple[dict[str, Any], Encoding]:
    """The options of a chat for its template, which reads `variables`, and for its encoding.

    Raises InvalidRequestError for others that are refused or misplaced.
    """
    own = {name: value for name, value in options.items() if name in variables}
    rest = without_foreign({n: value for n, value in options.items() if n not in own})
    encoding = {name: rest.pop(name) for name in EncodingOptions.__annotations__.keys() & rest}
    refuse_misplaced(rest)
    return own | rest, read_encoding(encoding)


def _as_own(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a tokenizer's call with truncation as truncate_prompt_tokens."""
    own = dict(nested)
    if "truncation" not in own:
        return own
    from quire.tokenizer.encoded_batch import TRUNCATIONS  # usually not needed

    given = own["truncation"]
    if isinstance(given, bool | str) and TRUNCATIONS.get(given):
        del own["truncation"]
        longest = own.pop("max_length", None)
        own.setdefault("truncate_prompt_tokens", -1 if longest is None else longest)
    return own


def read_encoding(options: Mapping[str, Any]) -> Encoding:
    """The encoding that the options, nested ones too, describe. Raises InvalidRequestError."""
    nested = options.get("tokenization_kwargs") or {}
    if not isinstance(nested, Mapping):
        raise invalid_value("tokenization_kwargs", f"must be a map, not {nested!r}")
    given = {**_as_own(nested), **options}
    given.pop("tokenization_kwargs", None)
    truncate = plain_number(given.pop("truncate_prompt_tokens", None))
    special = given.pop("add_special_tokens", None)
    side = given.pop("truncation_side", None)
    if side not in (None, "left", "right"):
        raise invalid_value("truncation_side", f"must be 'left' or 'right', not {side!r}")
    refuse_unknown(given)
    if truncate is not None and (type(truncate) is not int or truncate == 0 or truncate < -1):
        problem = f"must be an integer >= 1, or -1, not {truncate!r}"
        raise invalid_value("truncate_prompt_tokens", problem)
    if not isinstance(special, bool | None):
        raise invalid_value("add_special_tokens", f"must be true or false, not {special!r}")
    return Encoding(truncate, special, side == "right")
