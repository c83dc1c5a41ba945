"""The sampling wishes of all running requests: a table with one row for each.

Owns where a wish is stored (numbers on the device, the ragged rest on the host) and the note of
which features each row needs, by which a step skips all that its rows do not use. Does not own
what a wish means: see penalties and filters.
"""

from __future__ import annotations

import enum
import functools
import operator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.core.sampling_params import SamplingParams
from quire.sampling.bad_words import BadWords


class Need(enum.IntFlag):
    """What a row asks of the sampler; a greedy row without wishes needs nothing."""

    RANDOM = 1
    FILTER = 2  # top-k, top-p or min-p
    TOTAL_MASS = 4  # top-p alone: a share of the whole distribution
    PENALTIES = 8
    LOGIT_BIAS = 16
    MIN_TOKENS = 32
    BAD_WORDS = 64
    LOGPROBS = 128
    PROMPT = 256  # the repetition penalty, which looks at the prompt as well


CHANGES_LOGITS = Need.PENALTIES | Need.LOGIT_BIAS | Need.MIN_TOKENS | Need.BAD_WORDS


class RowParams(NamedTuple):
    """The numbers of some rows, each float64 [S]. top_k: the vocabulary's size where it is off."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    repetition_penalty: Tensor


class Bias(NamedTuple):
    """Addends of one row's logits: int64 [N] ids, float32 [N] values."""

    token_ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class MinTokens(NamedTuple):
    """While the answer is shorter than `length`, the tokens that would end it are banned."""

    length: int
    token_ids: npt.NDArray[np.int64]


class SamplingState:
    """One row per running request. Setting and clearing a row changes nothing else.

    needs: Need flags of each row, int16 [R]; seeds: int64 [R]; num_logprobs: int64 [R], read only
    where LOGPROBS is set; bias, min_tokens, bad_words: by row, only for rows that use them.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device | str) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.needs = np.zeros(max_num_seqs, np.int16)
        self.seeds = np.zeros(max_num_seqs, np.int64)
        self.num_logprobs = np.zeros(max_num_seqs, np.int64)
        self.bias: dict[int, Bias] = {}
        self.min_tokens: dict[int, MinTokens] = {}
        self.bad_words: dict[int, BadWords] = {}
        fields = len(RowParams._fields)
        self._numbers = torch.zeros(max_num_seqs, fields, dtype=torch.float64, device=self.device)

    def set_row(
        self,
        row: int,
        sampling: SamplingParams,
        *,
        seed: int,
        eos_token_ids: list[int],
        bad_words_ids: list[list[int]],
    ) -> None:
        """Give the row to a request. seed: 64 bits, signed or not."""
        self.clear_row(row)
        top_k = min(sampling.top_k, self.vocab_size) if sampling.top_k > 0 else self.vocab_size
        numbers = {name: getattr(sampling, name) for name in RowParams._fields} | {"top_k": top_k}
        self._numbers[row] = torch.tensor(list(numbers.values()), dtype=torch.float64)
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
        self.needs[row] = self._needs(row, sampling, top_k)

    def _needs(self, row: int, sampling: SamplingParams, top_k: int) -> Need:
        cuts_tail = top_k < self.vocab_size or sampling.min_p > 0.0
        asked = {
            Need.RANDOM: True,
            Need.FILTER: cuts_tail or sampling.top_p < 1.0,
            Need.TOTAL_MASS: not cuts_tail and sampling.top_p < 1.0,
        }
        if sampling.is_greedy:
            asked = {}
        asked |= {
            Need.PENALTIES: sampling.uses_penalties,
            Need.PROMPT: sampling.repetition_penalty != 1.0,
            Need.LOGIT_BIAS: row in self.bias,
            Need.MIN_TOKENS: row in self.min_tokens,
            Need.BAD_WORDS: row in self.bad_words,
            Need.LOGPROBS: sampling.logprobs is not None,
        }
        return functools.reduce(
            operator.or_, (need for need, used in asked.items() if used), Need(0)
        )

    def clear_row(self, row: int) -> None:
        """Take the row back."""
        self.needs[row] = 0
        for ragged in (self.bias, self.min_tokens, self.bad_words):
            ragged.pop(row, None)

    def gather(self, rows: npt.NDArray[np.int64]) -> RowParams:
        """The numbers of these rows [S], on the device."""
        index = torch.from_numpy(rows).to(self.device)
        return RowParams(*self._numbers.index_select(0, index).unbind(1))
