"""Types with bounds for the fields of requests: Temperature, TopP, TokenCount, StopStrings ...

They use the ranges that SamplingParams and StructuredOutputs check, so that the decoder, the
OpenAPI document and the Python API have the same bounds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from quire.core.sampling_checks import (
    FLOAT_RANGES,
    INT_RANGES,
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_STRINGS,
    MAX_TOKEN_IDS,
    MAX_WORD_CHARS,
)
from quire.core.structured_outputs import (
    MAX_CHOICES,
    MAX_GRAMMAR_BYTES,
    MAX_REGEX_BYTES,
    MAX_WHITESPACE_CHARS,
    WHITESPACE_PATTERN,
)


def _in_range(field: str) -> Meta:
    low, high = INT_RANGES[field] if field in INT_RANGES else FLOAT_RANGES[field]
    return Meta(ge=low, le=high)


def _above_zero(field: str) -> Meta:
    return Meta(gt=0.0, le=FLOAT_RANGES[field][1])


def one_of(*texts: str) -> Meta:
    """Metadata that lists a text's values in the OpenAPI document only; code checks them later."""
    return Meta(extra_json_schema={"enum": list(texts)})


TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
TokenCount = Annotated[int, _in_range("max_tokens")]
NO_LIMIT = -1  # as a number of tokens: as many as fit the context
TokenLimit = Annotated[
    int,
    Meta(ge=NO_LIMIT, le=INT_RANGES["max_tokens"][1], extra_json_schema={"not": {"const": 0}}),
]
TokenLimitOrNone = Annotated[  # 0: the prompt alone
    int, Meta(ge=NO_LIMIT, le=INT_RANGES["max_tokens"][1])
]
PromptLength = Annotated[  # -1: the longest that fits
    int,
    Meta(ge=-1, le=2**31 - 1, extra_json_schema={"not": {"const": 0}}),
]
MinTokens = Annotated[int, _in_range("min_tokens")]
NumAnswers = Annotated[int, _in_range("n")]
ThinkingTokens = Annotated[int, _in_range("thinking_token_budget")]
TopK = Annotated[int, _in_range("top_k")]
Seed = Annotated[int, _in_range("seed")]
NumLogprobs = Annotated[int, _in_range("logprobs")]  # the engine has a limit

Temperature = Annotated[float, _in_range("temperature")]
TopP = Annotated[float, _above_zero("top_p")]
MinP = Annotated[float, _in_range("min_p")]
Penalty = Annotated[float, _in_range("presence_penalty")]
RepetitionPenalty = Annotated[float, _above_zero("repetition_penalty")]
Seconds = Annotated[float, Meta(gt=0.0)]

Word = Annotated[str, Meta(min_length=1, max_length=MAX_WORD_CHARS)]
StopStrings = Annotated[list[Word], Meta(max_length=MAX_STOP_STRINGS)]
BadWords = Annotated[list[Word], Meta(max_length=MAX_BAD_WORDS)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_IDS)]
AllowedTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)]
LogprobTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)]
TokenBias = Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
LogitBias = Annotated[
    dict[TokenId, TokenBias],
    Meta(
        max_length=MAX_LOGIT_BIAS,
        extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"}},
    ),
]

# These are bounded in bytes. A text with more characters than that is certainly too long; the exact
# check is made where the bytes are known.
Regex = Annotated[str, Meta(min_length=1, max_length=MAX_REGEX_BYTES)]
Grammar = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_BYTES)]
GrammarOrNone = Annotated[str, Meta(max_length=MAX_GRAMMAR_BYTES)]  # "": none
WhitespacePattern = Annotated[
    str,
    Meta(max_length=MAX_WHITESPACE_CHARS, extra_json_schema={"pattern": WHITESPACE_PATTERN}),
]
Choices = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICES)
]
ShortText = Annotated[str, Meta(max_length=512)]
FunctionKind = Literal["function"]
TextKind = Literal["text"]
