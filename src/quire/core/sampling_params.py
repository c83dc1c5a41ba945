"""Sampling params, validated on construction; each field is a sampling parameter. No torch."""

from __future__ import annotations

import copy
import reprlib
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from quire.compat.foreign_name import same_value
from quire.compat.missing_names import refuse
from quire.core.param_names import ParamNames
from quire.core.reasoning_marks import ReasoningMarks
from quire.core.structured_outputs import StructuredOutputs, structured_outputs_from
from quire.errors import invalid_value
from quire.plain_values import plain_number, plain_value

if TYPE_CHECKING:
    from typing import Unpack

    from quire.core.sampling_options import SamplingOptions

__all__ = ["RequestOutputKind", "SamplingParams", "StructuredOutputs"]

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


class RequestOutputKind(IntEnum):
    """Content of a stream's items: the answer so far, its new part, or all of it at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(
    msgspec.Struct,
    metaclass=ParamNames,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Parameters of sampling: the choice of each token, and when the answer ends.

    n: answers per prompt.
    temperature: 0 is greedy.
    top_p, top_k (0 or -1: off), min_p: cut the distribution's tail.
    presence_penalty, frequency_penalty: subtracted from logits of tokens already in the answer
    (OpenAI's definition).
    repetition_penalty: divides or multiplies logits of tokens in prompt or answer (CTRL, 4.1).
    logit_bias: token id → addend.
    seed: the random numbers depend on it and on the token's position alone, so that the same seed
    gives the same tokens whatever the request is batched with, as far as logits do not change with
    the batch: they do not in float32, but may in their last bits in 16-bit data types.
    stop, stop_token_ids: strings and tokens that end the answer.
    include_stop_str_in_output: the answer keeps the one that ended it.
    max_tokens, min_tokens: None goes on to the model's limit; no end before.
    ignore_eos: go on past the model's end token.
    logprobs, prompt_logprobs: how many of the most probable tokens to report for each position,
    besides the token itself, before any penalty (-1: all; the engine's max_logprobs is a limit).
    logprob_token_ids: report these tokens at each position instead; logprobs is then 0.
    allowed_token_ids: only these tokens are drawn; end tokens too have to be among them.
    bad_words: words whose tokens, as the tokenizer spells them with and without a leading space,
    never follow one another in the answer.
    thinking_token_budget: tokens of reasoning after which its end is forced (-1: no limit), where
    reasoning_marks, which `LLM` and servers set, say how the model marks it.
    skip_special_tokens: leave them out of the text, but for kept_token_ids.
    detokenize: whether there is text at all.
    structured_outputs: a schema, expression or grammar that the answer must match.
    output_kind: what a stream's items have; None: as the engine's class says. LLM has no streams.

    A single text stands for a list of it, None for an empty list, a tuple, set or array for a
    list, a map or another engine's object for StructuredOutputs. Names of other engines are
    translated (quire.compat). Lists are bounded, because they cost time for each token or delay
    other requests. Raises InvalidRequestError, which names the field and the fix.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    bad_words: list[str] = []
    allowed_token_ids: list[int] | None = None
    thinking_token_budget: int | None = None
    reasoning_marks: ReasoningMarks | None = None
    skip_special_tokens: bool = True
    kept_token_ids: list[int] = []
    detokenize: bool = True
    structured_outputs: StructuredOutputs | None = None
    output_kind: RequestOutputKind | None = None

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[SamplingOptions]) -> None: ...

    else:
        __getattr__ = refuse

    def __post_init__(self) -> None:
        _convert_lists(self)
        if self.structured_outputs is not None:
            outputs = structured_outputs_from(self.structured_outputs)
            msgspec.structs.force_setattr(self, "structured_outputs", outputs)
        if self.logprob_token_ids is not None:
            msgspec.structs.force_setattr(self, "logprobs", 0)
        for name in ("seed", "thinking_token_budget"):
            value = getattr(self, name)
            if value is not None and same_value(value, -1):  # none, as other engines write it
                msgspec.structs.force_setattr(self, name, None)
        if self.output_kind is not None:
            _convert_kind(self)
        given = [name for name, default in _DEFAULTS if getattr(self, name) is not default]
        for name in given:
            msgspec.structs.force_setattr(self, name, plain_number(getattr(self, name)))
        _check_types(self, given)
        _check_ranges(self, given)
        self.check_lists()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise invalid_value(
                "min_tokens", f"{self.min_tokens} is above max_tokens ({self.max_tokens}); lower it"
            )

    def check_lists(self) -> None:
        """Check lists and maps, which may be changed in place. Raises InvalidRequestError."""
        if _lists_of(self) == _NO_LISTS:  # as in most requests
            return
        _check_words("stop", self.stop, MAX_STOP_STRINGS)
        _check_words("bad_words", self.bad_words, MAX_BAD_WORDS)
        _check_token_ids("stop_token_ids", self.stop_token_ids)
        _check_token_ids("kept_token_ids", self.kept_token_ids)
        _check_some("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        _check_some("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
        _check_logit_bias(self.logit_bias)
        if self.stop and not self.detokenize:
            raise invalid_value("stop", "there is no text without detokenize; use stop_token_ids")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field. Raises InvalidRequestError as the constructor does, and changes nothing.

        Raises AttributeError for another name.
        """
        if name not in self.__struct_fields__:
            refuse(self, name)
        changed = msgspec.structs.replace(self, **{name: value})
        for field in (name, "logprobs"):  # which logprob_token_ids set, too
            msgspec.structs.force_setattr(self, field, getattr(changed, field))

    def __delattr__(self, name: str) -> None:
        """Refused: a field without a value would pass for a checked one."""
        raise invalid_value(name, "cannot be deleted; set it to its default")

    def clone(self) -> SamplingParams:
        """A copy that shares nothing with the original."""
        return copy.deepcopy(self)

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < 1e-5


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
_RANGES: dict[str, tuple[float, float]] = INT_RANGES | FLOAT_RANGES
_BOOLS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize")
_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs", "thinking_token_budget")
# of fields with a single value: most have their default, and need no further check
# (not by msgspec.structs.fields, which reads the types again: 1 ms)
_ALL_DEFAULTS = dict(
    zip(SamplingParams.__struct_fields__, SamplingParams.__struct_defaults__, strict=True)
)
_DEFAULTS = tuple((name, _ALL_DEFAULTS[name]) for name in (*_RANGES, *_BOOLS))


_LISTS = ("stop", "stop_token_ids", "bad_words", "kept_token_ids")
_OPTIONAL_LISTS = ("allowed_token_ids", "logprob_token_ids")
_WORDS = ("stop", "bad_words")
_ID_LISTS = ("stop_token_ids", "kept_token_ids", *_OPTIONAL_LISTS)
_lists_of = attrgetter(*_LISTS, *_OPTIONAL_LISTS, "logit_bias")
_NO_LISTS: tuple[Any, ...] = ([], [], [], [], None, None, None)


def _convert_lists(params: SamplingParams) -> None:
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


def _convert_kind(params: SamplingParams) -> None:
    """Make a RequestOutputKind of a number. Raises InvalidRequestError."""
    try:
        kind = RequestOutputKind(params.output_kind)  # type: ignore[arg-type]  # or ValueError
    except ValueError:
        problem = f"must be a RequestOutputKind, not {_shown(params.output_kind)}"
        raise invalid_value("output_kind", problem) from None
    msgspec.structs.force_setattr(params, "output_kind", kind)


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


def _check_types(params: SamplingParams, given: list[str]) -> None:
    for field in given:
        value = getattr(params, field)
        if value is None and field in _OPTIONAL:
            continue
        if field in INT_RANGES and not _is_int(value):
            raise invalid_value(field, f"must be an integer, not {_shown(value)}")
        if field in FLOAT_RANGES and not _is_number(value):
            raise invalid_value(field, f"must be a number, not {_shown(value)}")
        if field in _BOOLS and not isinstance(value, bool):
            raise invalid_value(field, f"must be true or false, not {_shown(value)}")


def _shown(value: Any) -> str:
    """A wrong value as text for an error message. Python does not print very long integers."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def _check_words(field: str, words: Any, most: int) -> None:
    if not isinstance(words, list):
        raise invalid_value(field, "must be a list of strings")
    if len(words) > most:
        raise invalid_value(field, f"must have at most {most} strings, not {len(words)}")
    for word in words:
        if not isinstance(word, str):
            raise invalid_value(field, f"must be a list of strings, but has {_shown(word)}")
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


def _check_ranges(params: SamplingParams, given: list[str]) -> None:
    for field in given:
        low, high = _RANGES.get(field, (False, True))
        value = getattr(params, field)
        if value is not None and not low <= value <= high:  # also refuses NaN
            hint = "; None asks for as many as fit" if (field, value) == ("max_tokens", -1) else ""
            problem = f"must be between {low} and {high}, not {_shown(value)}{hint}"
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
            problem = f"token ids must be integers >= 0, not {_shown(token_id)}"
            raise invalid_value("logit_bias", problem)
        if not _is_number(value) or not -MAX_BIAS <= value <= MAX_BIAS:  # also refuses NaN
            raise invalid_value("logit_bias", f"must be between -100 and 100, not {_shown(value)}")
