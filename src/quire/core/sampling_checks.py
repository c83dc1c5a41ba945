"""Bounds of sampling params, and the checks of their values. No torch.

All raise InvalidRequestError, which names the field and the fix. params: SamplingParams, whose file
imports this one.
"""

from __future__ import annotations

import reprlib
from operator import attrgetter
from typing import Any

import msgspec

from quire.errors import invalid_value
from quire.plain_values import plain_number, plain_value

MAX_LOGPROBS = 20  # by default
MAX_LOGPROB_TOKEN_IDS = 1024
MAX_N = 16
MAX_STOP_STRINGS = 16
MAX_TOKEN_IDS = 128  # in a list of them
MAX_ALLOWED_TOKEN_IDS = 1 << 17
MAX_BAD_WORDS = 128
MAX_WORD_CHARS = 256  # of a stop string or a bad word
MAX_LOGIT_BIAS = 1024
MAX_BIAS = 100.0

# field: (lowest, highest); both ends are allowed
INT_RANGES: dict[str, tuple[int, int]] = {
    "n": (1, MAX_N),
    "top_k": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**63 - 1),
    "max_tokens": (1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (-1, 2**31 - 1),  # the engine has a limit
    "prompt_logprobs": (-1, 2**31 - 1),
    "thinking_token_budget": (-1, 2**31 - 1),
}
FLOAT_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, 100.0),
}
RANGES: dict[str, tuple[float, float]] = INT_RANGES | FLOAT_RANGES
BOOLS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize")
_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs", "thinking_token_budget")

_LISTS = ("stop", "stop_token_ids", "bad_words", "kept_token_ids")
_OPTIONAL_LISTS = ("allowed_token_ids", "logprob_token_ids")
_WORDS = ("stop", "bad_words")
_ID_LISTS = ("stop_token_ids", "kept_token_ids", *_OPTIONAL_LISTS)
_lists_of = attrgetter(*_LISTS, *_OPTIONAL_LISTS, "logit_bias")
_NO_LISTS: tuple[Any, ...] = ([], [], [], [], None, None, None)


def convert_lists(params: Any) -> None:
    """Make lists of the other types in which lists are given."""
    for field in (*_LISTS, *_OPTIONAL_LISTS):
        value = getattr(params, field)
        if type(value) is not list and not (value is None and field in _OPTIONAL_LISTS):
            msgspec.structs.force_setattr(params, field, _as_list(field, value))
    for field in _ID_LISTS:
        value = getattr(params, field)
        if isinstance(value, list) and not set(map(type, value)) <= {int}:
            msgspec.structs.force_setattr(params, field, [*map(plain_number, value)])
    if isinstance(params.logit_bias, dict):
        plain = {plain_number(n): plain_number(value) for n, value in params.logit_bias.items()}
        msgspec.structs.force_setattr(params, "logit_bias", plain)
    elif params.logit_bias is not None:  # to be refused: an array is compared by its items
        msgspec.structs.force_setattr(params, "logit_bias", plain_value(params.logit_bias))


def _as_list(field: str, value: Any) -> Any:
    if value is None:
        return []
    if isinstance(value, str) and field in _WORDS:
        return [value]
    return plain_value(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_token_id(value: Any) -> bool:
    return _is_int(value) and 0 <= value < 2**31


def _are_token_ids(values: list[Any]) -> bool:
    if set(map(type, values)) <= {int}:  # in C, as there may be very many
        return not values or (min(values) >= 0 and max(values) < 2**31)
    return all(map(_is_token_id, values))


def _is_number(value: Any) -> bool:
    return _is_int(value) or isinstance(value, float)


def check_types(params: Any, given: list[str]) -> None:
    """Check the types of fields with a single value. given: those without their default."""
    for field in given:
        value = getattr(params, field)
        if value is None and field in _OPTIONAL:
            continue
        if field in INT_RANGES and not _is_int(value):
            raise invalid_value(field, f"must be an integer, not {shown(value)}")
        if field in FLOAT_RANGES and not _is_number(value):
            raise invalid_value(field, f"must be a number, not {shown(value)}")
        if field in BOOLS and not isinstance(value, bool):
            raise invalid_value(field, f"must be true or false, not {shown(value)}")


def shown(value: Any) -> str:
    """A wrong value as text for an error message. Python does not print very long integers."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def check_lists(params: Any) -> None:
    """Check lists and maps."""
    if _lists_of(params) == _NO_LISTS:  # as in most requests
        return
    _check_words("stop", params.stop, MAX_STOP_STRINGS)
    _check_words("bad_words", params.bad_words, MAX_BAD_WORDS)
    _check_token_ids("stop_token_ids", params.stop_token_ids)
    _check_token_ids("kept_token_ids", params.kept_token_ids)
    _check_some("allowed_token_ids", params.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
    _check_some("logprob_token_ids", params.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
    _check_logit_bias(params.logit_bias)
    if params.stop and not params.detokenize:
        raise invalid_value("stop", "there is no text without detokenize; use stop_token_ids")


def _check_words(field: str, words: Any, most: int) -> None:
    if not isinstance(words, list):
        raise invalid_value(field, "must be a list of strings")
    if len(words) > most:
        raise invalid_value(field, f"must have at most {most} strings, not {len(words)}")
    for word in words:
        if not isinstance(word, str):
            raise invalid_value(field, f"must be a list of strings, but has {shown(word)}")
        if not 1 <= len(word) <= MAX_WORD_CHARS:
            problem = f"strings must have 1 to {MAX_WORD_CHARS} characters, not {len(word)}"
            raise invalid_value(field, problem)


def _check_token_ids(field: str, token_ids: Any, most: int = MAX_TOKEN_IDS) -> None:
    if not isinstance(token_ids, list) or len(token_ids) > most:
        raise invalid_value(field, f"must be a list of at most {most} token ids")
    if not _are_token_ids(token_ids):
        raise invalid_value(field, "token ids must be integers >= 0")


def _check_some(field: str, token_ids: list[int] | None, most: int) -> None:
    if token_ids is None:
        return
    _check_token_ids(field, token_ids, most)
    if not token_ids:
        raise invalid_value(field, "must have at least one id, or be left out")


def check_ranges(params: Any, given: list[str]) -> None:
    """Check the ranges of numbers. given: the fields without their default."""
    for field in given:
        low, high = RANGES.get(field, (False, True))
        value = getattr(params, field)
        if value is not None and not low <= value <= high:  # also refuses NaN
            hint = "; None asks for as many as fit" if (field, value) == ("max_tokens", -1) else ""
            problem = f"must be between {low} and {high}, not {shown(value)}{hint}"
            raise invalid_value(field, problem)
    if params.top_p == 0.0:
        raise invalid_value("top_p", "must be > 0 and <= 1, not 0")
    if params.repetition_penalty == 0.0:
        raise invalid_value("repetition_penalty", "must be > 0 and <= 100, not 0 (1: off)")


def _check_logit_bias(bias: dict[int, float] | None) -> None:
    if bias is None:
        return
    if not isinstance(bias, dict) or len(bias) > MAX_LOGIT_BIAS:
        raise invalid_value(
            "logit_bias", f"must be a map of at most {MAX_LOGIT_BIAS} token ids to numbers"
        )
    for token_id, value in bias.items():
        if not _is_token_id(token_id):
            problem = f"token ids must be integers >= 0, not {shown(token_id)}"
            raise invalid_value("logit_bias", problem)
        if not _is_number(value) or not -MAX_BIAS <= value <= MAX_BIAS:  # also refuses NaN
            raise invalid_value("logit_bias", f"must be between -100 and 100, not {shown(value)}")
