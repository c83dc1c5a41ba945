"""Reasoning parsers: the marks around a model's reasoning, and how many tokens it has.

Owns REASONING_PARSERS, by the names that `--reasoning-parser` takes. Splitting the text is
output_parser.py's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from quire.core.reasoning_marks import ReasoningMarks
from quire.core.sampling_params import SamplingParams
from quire.errors import invalid_value
from quire.server.parsing.text_source import SPACE_CHARS
from quire.tokenizer.tokenizer import Tokenizer


class ReasoningParser(msgspec.Struct, frozen=True):
    """The marks around the reasoning of a family of models, which comes before the answer."""

    name: str
    begin: str
    end: str


REASONING_PARSERS = {
    parser.name: parser
    for parser in (
        ReasoningParser("think", "<think>", "</think>"),
        ReasoningParser("mistral", "[THINK]", "[/THINK]"),
    )
}


def reasoning_of(template: str) -> ReasoningParser | None:
    """The parser whose end mark is in a chat template's text; None where there is none."""
    return next((each for each in REASONING_PARSERS.values() if each.end in template), None)


def with_reasoning_marks(
    sampling: SamplingParams,
    reasoning: ReasoningParser | None,
    tokenizer: Tokenizer,
    *,
    is_open: bool | None = None,
    fix: str = "name its parser by --reasoning-parser at the start",
) -> SamplingParams:
    """The sampling params with the marks that a thinking budget needs.

    One of 0 asks for no reasoning, and is taken without marks. is_open: whether the prompt has
    begun the reasoning; None: as the prompt's tokens say. fix: what the caller may do. Raises
    InvalidRequestError for another budget where the marks are not known.
    """
    budget = sampling.thinking_token_budget
    if budget is None or sampling.reasoning_marks is not None or (reasoning is None and not budget):
        return sampling
    if reasoning is None:
        problem = "how this model marks its reasoning is not known; leave it out"
        raise invalid_value("thinking_token_budget", f"{problem}, or {fix}")
    begin, end = (
        tokenizer.encode(mark, add_special_tokens=False, parse_special=True)
        for mark in (reasoning.begin, reasoning.end)
    )
    marks = ReasoningMarks(begin=begin, end=end, is_open=is_open)
    return msgspec.structs.replace(sampling, reasoning_marks=marks)


class ReasoningTokenCounter:
    """Counts the tokens of one answer's reasoning, its marks included.

    in_reasoning: whether the prompt already opened the reasoning. token_bytes: maps a token id to
    its bytes. It looks at bytes because a token may hold part of a character, or the end mark and
    what follows it. How the tokens are cut into parts has no influence.
    """

    def __init__(
        self, reasoning: ReasoningParser, in_reasoning: bool, token_bytes: Callable[[int], bytes]
    ) -> None:
        self.num_tokens = 0
        self._begin, self._end = reasoning.begin.encode(), reasoning.end.encode()
        self._is_open = in_reasoning
        self._is_done = False
        self._num_before = 0  # tokens of what may become the begin mark
        self._tail = b""  # in which the next mark may have started
        self._token_bytes = token_bytes

    def push(self, token_ids: Iterable[int]) -> None:
        """Count the reasoning tokens among the next tokens of the answer."""
        for token_id in token_ids:
            if self._is_done:
                return
            self._tail += self._token_bytes(token_id)
            if self._is_open:
                self._count()
            else:
                self._find_begin()

    def _find_begin(self) -> None:
        """Reasoning stands only at the start of the answer, after optional white space."""
        self._num_before += 1
        text = self._tail.lstrip(SPACE_CHARS.encode())
        if text.startswith(self._begin):
            self._is_open, self._tail = True, text[len(self._begin) :]
            self.num_tokens = self._num_before - 1
            self._count()
        elif not self._begin.startswith(text):
            self._is_done = True

    def _count(self) -> None:
        self.num_tokens += 1
        self._is_done = self._end in self._tail
        self._tail = self._tail[1 - len(self._end) :]
