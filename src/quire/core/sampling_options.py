"""SamplingOptions: the arguments of `SamplingParams`, for type checkers and editors.

They take more types than the fields, to which the constructor converts them. A test keeps the names
equal to the fields, which have the defaults and descriptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from quire.core.reasoning_marks import ReasoningMarks
from quire.core.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    import numpy as np

    Integer = int | np.integer[Any]
    Number = float | Integer | np.floating[Any]


class SamplingOptions(TypedDict, total=False):
    """Every sampling param by its name."""

    n: Integer
    temperature: Number
    top_p: Number
    top_k: Integer
    min_p: Number
    presence_penalty: Number
    frequency_penalty: Number
    repetition_penalty: Number
    logit_bias: dict[int, float] | dict[int, int] | None
    seed: Integer | None
    stop: Iterable[str] | None
    stop_token_ids: Iterable[Integer] | None
    include_stop_str_in_output: bool
    max_tokens: Integer | None
    min_tokens: Integer
    ignore_eos: bool
    logprobs: Integer | None
    prompt_logprobs: Integer | None
    logprob_token_ids: Iterable[Integer] | None
    bad_words: Iterable[str] | None
    allowed_token_ids: Iterable[Integer] | None
    thinking_token_budget: Integer | None
    reasoning_marks: ReasoningMarks | None
    skip_special_tokens: bool
    kept_token_ids: Iterable[Integer] | None
    detokenize: bool
    structured_outputs: StructuredOutputs | dict[str, Any] | None
    output_kind: int | None
