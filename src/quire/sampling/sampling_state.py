"""Sampling params of all running requests: one table row per request. No torch.

Owns where a parameter is stored, and the flags of what each row needs, by which a step skips what
its rows do not use. What parameters mean is in logits_processors.py and draw.py.
"""

from __future__ import annotations

import enum
import math
import time
from typing import Any, NamedTuple

import numpy as np

from quire.array_types import Flags, Floats, Ints, Logits
from quire.core.sampling_params import SamplingParams
from quire.sampling.bad_words import BadWords
from quire.sampling.caller_budgets import CallerBudgets, StepMasks
from quire.sampling.mask_thread import MaskThread
from quire.sampling.structured_mask import GrammarConstraint, Matcher
from quire.sampling.thinking_budget import ThinkingBudget


class Need(enum.IntFlag):
    """Flags of what a row needs of the sampler; 0 for plain greedy sampling."""

    RANDOM = 1
    FILTER = 2  # top-k, top-p or min-p
    TOTAL_MASS = 4  # top-p alone: a share of the whole distribution
    LOGIT_BIAS = 8
    REPETITION = 16
    PRESENCE = 32  # or frequency
    MIN_TOKENS = 64
    BAD_WORDS = 128
    LOGPROBS = 256
    GRAMMAR = 512
    ALLOWED_TOKENS = 1024
    THINKING_BUDGET = 2048


# plain integers: operations of IntFlag are slow
PENALTIES = int(Need.REPETITION | Need.PRESENCE)
# the tokens in order, not only their counts
READS_OUTPUT_TOKENS = int(Need.BAD_WORDS | Need.GRAMMAR | Need.THINKING_BUDGET)
CHANGES_LOGITS = (
    int(Need.LOGIT_BIAS | Need.MIN_TOKENS | Need.ALLOWED_TOKENS) | PENALTIES | READS_OUTPUT_TOKENS
)


class RowParams(NamedTuple):
    """Numeric sampling params of N rows, each float64 [N]. top_k: vocabulary size if off."""

    temperature: Floats
    top_k: Floats
    top_p: Floats
    min_p: Floats
    presence_penalty: Floats
    frequency_penalty: Floats
    repetition_penalty: Floats

    def select(self, index: Ints) -> RowParams:
        """The parameters of some of these rows."""
        return RowParams(*(values[index] for values in self))


class Bias(NamedTuple):
    """logit_bias of one row: int64 [N] token ids, float32 [N] addends."""

    token_ids: Ints
    values: Logits


class MinTokens(NamedTuple):
    """The tokens that end an answer, int64 [N], and the length before which they are banned."""

    length: int
    token_ids: Ints

    def banned(self, answer_length: int) -> Ints:
        """The token ids that may not come next."""
        return self.token_ids if answer_length < self.length else self.token_ids[:0]


class AllowedTokens:
    """allowed_token_ids of one row: int64 [N] token ids."""

    def __init__(self, token_ids: Ints) -> None:
        self._token_ids = token_ids
        self._banned = np.zeros(0, np.bool_)

    def banned(self, size: int) -> Flags:
        """Flags [size] of all other tokens; the same array each time."""
        if len(self._banned) != size:
            self._banned = np.ones(size, np.bool_)
            self._banned[self._token_ids] = False
        return self._banned


class SamplingState:
    """One row per running request. Setting and clearing a row changes nothing else.

    needs: Need flags of each row, int16 [R]; seeds: int64 [R]; num_logprobs: int64 [R], read only
    where LOGPROBS is set; bias, min_tokens, bad_words, allowed_tokens, logprob_tokens,
    thinking_budgets, grammars: by row, only for rows that use them. callers: by row, of those that
    draw tokens. mask_thread: computes the masks of grammars. step_begin: monotonic seconds.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.needs = np.zeros(max_num_seqs, np.int16)
        self.seeds = np.zeros(max_num_seqs, np.int64)
        self.num_logprobs = np.zeros(max_num_seqs, np.int64)
        self.bias: dict[int, Bias] = {}
        self.min_tokens: dict[int, MinTokens] = {}
        self.bad_words: dict[int, BadWords] = {}
        self.allowed_tokens: dict[int, AllowedTokens] = {}
        self.logprob_tokens: dict[int, Ints] = {}
        self.thinking_budgets: dict[int, ThinkingBudget] = {}
        self.grammars: dict[int, GrammarConstraint] = {}
        self.callers: dict[int, str] = {}
        self.mask_thread = MaskThread()
        self.step_begin = 0.0
        self._budgets = CallerBudgets()
        self._ragged: tuple[dict[int, Any], ...] = (
            self.bias, self.min_tokens, self.bad_words, self.allowed_tokens,
            self.logprob_tokens, self.thinking_budgets, self.grammars, self.callers,
        )  # fmt: skip
        self._numbers = np.zeros((len(RowParams._fields), max_num_seqs))

    def set_row(
        self,
        row: int,
        sampling: SamplingParams,
        *,
        seed: int,
        eos_token_ids: list[int],
        bad_words_ids: list[list[int]],
        matcher: Matcher | None = None,
        is_thinking: bool = False,
        caller: str | None = None,
    ) -> None:
        """Set the row of a request. seed: 64 bits, signed or not. matcher: of its grammar.

        is_thinking: whether its answer starts inside the reasoning; read with a thinking budget.
        caller: whose request it is; None: of nobody who waits for tokens.
        """
        self.clear_row(row)
        if caller is not None:
            self.callers[row] = caller
        top_k = min(sampling.top_k, self.vocab_size) if sampling.top_k > 0 else self.vocab_size
        self._numbers[:, row] = (  # in the order of RowParams
            sampling.temperature, top_k, sampling.top_p, sampling.min_p,
            sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty,
        )  # fmt: skip
        self.seeds[row] = (seed + 2**63) % 2**64 - 2**63
        self.num_logprobs[row] = sampling.logprobs or 0
        ends = sampling.stop_token_ids + ([] if sampling.ignore_eos else eos_token_ids)
        if sampling.logit_bias:
            values = np.array(list(sampling.logit_bias.values()), np.float32)
            self.bias[row] = Bias(np.array(list(sampling.logit_bias), np.int64), values)
        if sampling.min_tokens > 0 and ends:
            self.min_tokens[row] = MinTokens(sampling.min_tokens, np.array(ends, np.int64))
        if bad_words_ids:
            self.bad_words[row] = BadWords(bad_words_ids)
        if sampling.allowed_token_ids is not None:
            allowed = np.array(sampling.allowed_token_ids, np.int64)
            self.allowed_tokens[row] = AllowedTokens(allowed)
        if sampling.logprob_token_ids is not None:
            self.logprob_tokens[row] = np.array(sampling.logprob_token_ids, np.int64)
        budget, marks = sampling.thinking_token_budget, sampling.reasoning_marks
        outputs = sampling.structured_outputs
        may_reason = outputs is None or outputs.may_have_reasoning
        if budget is not None and marks is not None and may_reason:
            self.thinking_budgets[row] = ThinkingBudget(budget, marks, is_open=is_thinking)
        if matcher is not None:
            stops = np.array(sampling.stop_token_ids, np.int64)
            banned_ids = np.array(eos_token_ids if sampling.ignore_eos else [], np.int64)
            self.grammars[row] = GrammarConstraint(
                matcher, stop_token_ids=stops, banned_ids=banned_ids, caller=caller or ""
            )
        self.needs[row] = self._needs_of(row, sampling, top_k)

    def _needs_of(self, row: int, sampling: SamplingParams, top_k: int) -> int:
        draws = not sampling.is_greedy
        cuts_tail = top_k < self.vocab_size or sampling.min_p > 0.0
        asked = (
            (Need.RANDOM, draws),
            (Need.FILTER, draws and (cuts_tail or sampling.top_p < 1.0)),
            (Need.TOTAL_MASS, draws and not cuts_tail and sampling.top_p < 1.0),
            (Need.LOGIT_BIAS, row in self.bias),
            (Need.REPETITION, sampling.repetition_penalty != 1.0),
            (Need.PRESENCE, sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0),
            (Need.MIN_TOKENS, row in self.min_tokens),
            (Need.BAD_WORDS, row in self.bad_words),
            (Need.LOGPROBS, sampling.logprobs is not None),
            (Need.GRAMMAR, row in self.grammars),
            (Need.ALLOWED_TOKENS, row in self.allowed_tokens),
            (Need.THINKING_BUDGET, row in self.thinking_budgets),
        )
        return sum(need for need, is_asked in asked if is_asked)

    def begin_masks(self) -> StepMasks:
        """The masks of a step whose other work is done; those of a lone caller are all free."""
        is_alone = len(set(self.callers.values())) < 2
        free = math.inf if is_alone else time.monotonic() - self.step_begin
        return StepMasks(self._budgets, free)

    def reset(self) -> None:
        """Clear all rows."""
        self.needs[:] = 0
        for ragged in self._ragged:
            ragged.clear()

    def clear_row(self, row: int) -> None:
        """Clear the row of a request that has left the batch."""
        self.needs[row] = 0
        for ragged in self._ragged:
            ragged.pop(row, None)

    def gather(self, rows: Ints) -> RowParams:
        """The numeric params of these rows [N]."""
        return RowParams(*self._numbers[:, rows])
