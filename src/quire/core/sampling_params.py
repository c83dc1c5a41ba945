"""Sampling params, validated on construction; each field is a sampling parameter. No torch.

Their bounds and checks are in sampling_checks.py.
"""

from __future__ import annotations

import copy
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec

from quire.compat.foreign_name import same_value
from quire.compat.missing_names import refuse
from quire.core.param_names import ParamNames
from quire.core.reasoning_marks import ReasoningMarks
from quire.core.sampling_checks import (
    BOOLS,
    RANGES,
    check_lists,
    check_ranges,
    check_types,
    convert_lists,
    shown,
)
from quire.core.structured_outputs import StructuredOutputs, structured_outputs_from
from quire.errors import invalid_value
from quire.plain_values import plain_number

if TYPE_CHECKING:
    from typing import Unpack

    from quire.core.sampling_options import SamplingOptions

__all__ = ["RequestOutputKind", "SamplingParams", "StructuredOutputs"]


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
        convert_lists(self)
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
        check_types(self, given)
        check_ranges(self, given)
        self.check_lists()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise invalid_value(
                "min_tokens", f"{self.min_tokens} is above max_tokens ({self.max_tokens}); lower it"
            )

    def check_lists(self) -> None:
        """Check lists and maps, which may be changed in place. Raises InvalidRequestError."""
        check_lists(self)

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


# of fields with a single value: most have their default, and need no further check
# (not by msgspec.structs.fields, which reads the types again: 1 ms)
_ALL_DEFAULTS = dict(
    zip(SamplingParams.__struct_fields__, SamplingParams.__struct_defaults__, strict=True)
)
_DEFAULTS = tuple((name, _ALL_DEFAULTS[name]) for name in (*RANGES, *BOOLS))


def _convert_kind(params: SamplingParams) -> None:
    """Make a RequestOutputKind of a number. Raises InvalidRequestError."""
    try:
        kind = RequestOutputKind(params.output_kind)  # type: ignore[arg-type]  # or ValueError
    except ValueError:
        problem = f"must be a RequestOutputKind, not {shown(params.output_kind)}"
        raise invalid_value("output_kind", problem) from None
    msgspec.structs.force_setattr(params, "output_kind", kind)
