"""Logits processors on a device, over successive steps, against the host's sampler."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.core.reasoning_marks import ReasoningMarks
from quire.core.sampling_params import SamplingParams
from quire.kernels.dispatch import kernels_for
from quire.kernels.reference_step import MOST_COUNTED
from quire.sampling.device_logits_processors import DRAWN, EXHAUSTED, FAILED, DeviceLogitsProcessors
from quire.sampling.device_logprobs import score, score_named
from quire.sampling.host_logits import History
from quire.sampling.sampler import Sampler
from quire.sampling.sampling_state import SamplingState
from quire.sampling.token_logprobs import token_logprobs, with_named

VOCAB = 40
ROWS = 7
TWINS = kernels_for("meta")


def greedy(logits: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    assert rows.dtype == positions.dtype == torch.int32
    peaks, ids = logits.max(dim=1)
    return ids.int(), (~peaks.isfinite()).int()


class Table:
    """Rows with token histories; the host has all tokens, the device those that it needs."""

    def __init__(self, params_list: list[SamplingParams], bad_words: list[list[int]]) -> None:
        rng = random.Random(len(params_list))
        self.state = SamplingState(ROWS, VOCAB)
        self.history = History(
            np.zeros((ROWS, 64), np.int32), np.zeros(ROWS, np.int32), np.zeros(ROWS, np.int32)
        )
        for row, params in enumerate(params_list):
            self.state.set_row(row, params, seed=row, eos_token_ids=[2], bad_words_ids=bad_words)
            known, prompt = rng.randint(4, 20), rng.randint(1, 4)
            self.history.token_ids[row, :known] = rng.choices(range(VOCAB), k=known)
            self.history.num_tokens[row], self.history.num_prompt_tokens[row] = known, prompt
        device = torch.device("cpu")
        self.rows = DeviceLogitsProcessors(self.state, ROWS, greedy, TWINS, device)
        self.rows.enter(range(len(params_list)), self.history)

    def append(self, rows: list[int], drawn: list[int]) -> None:
        self.history.token_ids[rows, self.history.num_tokens[rows]] = drawn
        self.history.num_tokens[rows] += 1


PENALISED = [
    SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.3),
    SamplingParams(temperature=0.0, repetition_penalty=1.7),
    SamplingParams(temperature=0.0, repetition_penalty=0.6, frequency_penalty=-0.4),
    SamplingParams(temperature=0.0, logit_bias={5: 3.5, 7: -100.0}, presence_penalty=-1.0),
    SamplingParams(temperature=0.0, min_tokens=20, max_tokens=64, stop_token_ids=[3, 4]),
    SamplingParams(temperature=0.0, allowed_token_ids=[3, 9, 9, 17, 30]),
]


@pytest.mark.parametrize("bad_words", [[], [[4, 9], [11]]])
def test_steps_in_a_row_are_the_hosts(bad_words: list[list[int]]) -> None:
    table = Table(PENALISED, bad_words)
    numbers = np.array([4, 0, 3, 1, 5, 2])
    assert table.rows.among(np.array([*numbers, 6])).tolist() == [True] * 6 + [False]
    assert table.rows.read_answers(numbers) == bool(bad_words)
    sampler = Sampler(table.state)
    for step in range(25):
        torch.manual_seed(step)
        logits = torch.randn(6, VOCAB).mul_(2.0)  # few tokens stand out, so penalties decide
        some = numbers[step % 3 :]
        expected = sampler.sample(logits[: len(some)].clone().numpy(), some.tolist(), table.history)
        tokens, status = table.rows.draw(logits[: len(some)].clone(), some, table.history)
        assert tokens.tolist() == expected.token_ids
        assert status.tolist() == [DRAWN] * len(some)
        table.append(some.tolist(), expected.token_ids)


def test_forced_ends_of_reasoning_go_before_all_bans() -> None:
    marks = ReasoningMarks(begin=[1], end=[38, 39])
    params = SamplingParams(temperature=0.0, allowed_token_ids=[3, 9], reasoning_marks=marks)
    table = Table([params], [])
    written = int(table.history.num_tokens[0] - table.history.num_prompt_tokens[0])
    params.thinking_token_budget = written + 2
    table.state.set_row(0, params, seed=0, eos_token_ids=[], bad_words_ids=[], is_thinking=True)
    assert table.rows.read_answers(np.array([0]))
    sampler, row = Sampler(table.state), np.array([0])
    for step in range(6):
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(step))
        tokens, _ = table.rows.draw(logits.clone(), row, table.history)
        (drawn,) = sampler.sample(logits.numpy(), [0], table.history).token_ids
        assert tokens.item() == drawn
        assert drawn in ([3, 9] if step not in (2, 3) else [38 + step - 2])
        table.append([0], [drawn])


def test_a_count_ends_where_its_bits_do() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=1e-9, presence_penalty=-2.0)
    table = Table([params], [])
    table.rows._counts[0, 8] = MOST_COUNTED - 1
    for _ in range(3):
        logits = torch.zeros(1, VOCAB)
        logits[0, 8] = 1.0
        assert table.rows.draw(logits, np.array([0]), table.history)[0].item() == 8
    assert table.rows._counts[0, 8].item() == MOST_COUNTED


def test_what_failed_and_what_sampling_params_left_nothing_of() -> None:
    banned = SamplingParams(temperature=0.0, logit_bias={0: -100.0})
    table = Table([banned] * 3, [[token] for token in range(VOCAB)])
    logits = torch.zeros(3, VOCAB)
    logits[1, 4] = torch.nan
    _, status = table.rows.draw(logits, np.arange(3), table.history)
    assert status.tolist() == [EXHAUSTED, FAILED, EXHAUSTED]


@pytest.mark.parametrize("width", [0, 3, 500])
def test_scores_are_the_hosts_log_probabilities(width: int) -> None:
    logits = torch.randn(90, 300, generator=torch.Generator().manual_seed(1)).mul_(4).round_()
    logits[7, :50], logits[8, 3] = -0.0, -torch.inf
    rows = torch.arange(89, 10, -1)
    drawn = torch.arange(len(rows), dtype=torch.int32) * 3 % 300
    counts = [min(width, index % 7 * 50) for index in range(len(rows))]
    expected = token_logprobs(logits[rows].numpy(), drawn.tolist(), counts)
    found = score(logits, rows, drawn, width).on_host().report(counts)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.token_ids, mine.rank) == (theirs.token_ids, theirs.rank)
        assert mine.logprobs == pytest.approx(theirs.logprobs, rel=1e-6, abs=2e-6)


def test_named_scores_are_the_hosts() -> None:
    logits = torch.randn(70, 300, generator=torch.Generator().manual_seed(2)).mul_(4)
    rows, drawn = torch.arange(69, 29, -1), torch.arange(40, dtype=torch.int32)
    named = torch.arange(40)[:, None] * 7 + torch.tensor([0, 3, 3])
    found = score_named(logits, rows, drawn, named).on_host().report([3, 1] * 20)
    for i, mine in enumerate(found):
        raw = logits[rows[i : i + 1]].numpy()
        (own,) = token_logprobs(raw, [i], [0])
        theirs = with_named(raw, own, named[i, : 3 - i % 2 * 2].numpy())
        assert (mine.token_ids, mine.rank) == (theirs.token_ids, theirs.rank)
        assert mine.logprobs == pytest.approx(theirs.logprobs, rel=1e-6, abs=2e-6)
