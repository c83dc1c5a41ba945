"""The structs that llama.cpp's /completion sends."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.api.common.timings import Timings, WithProgress

StopType = Literal["none", "eos", "limit", "word"]


class TokenProbability(msgspec.Struct, kw_only=True):
    """One candidate at one position."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenProbabilities(TokenProbability, kw_only=True):
    """One token of the answer, with the candidates that it was drawn from."""

    top_logprobs: list[TokenProbability]


class NativePart(WithProgress, kw_only=True):
    """The next part of an answer."""

    index: int
    content: str
    tokens: list[int]
    stop: bool = False
    id_slot: int = -1
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[TokenProbabilities] | UnsetType = UNSET


class NativeReply(NativePart, kw_only=True):
    """A whole answer; at the end of a stream, without its text."""

    stop: bool = True
    model: str
    prompt: str
    generation_settings: dict[str, Any]
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: int
    timings: Timings
