"""What the tests of this room share: one call that samples, and an exact chi-square test."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from quire.core.sampling_params import SamplingParams
from quire.kernels.cpu.native import num_threads, set_num_threads
from quire.sampling.host_logits import History
from quire.sampling.sampler import Sampler, SamplerOutput
from quire.sampling.sampling_state import SamplingState

SampleFn = Callable[..., SamplerOutput]


def sample(
    logits: torch.Tensor,
    params: SamplingParams | Sequence[SamplingParams],
    *,
    seeds: Sequence[int] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    answers: Sequence[Sequence[int]] | None = None,
    rows: Sequence[int] | None = None,
    eos_token_ids: Sequence[int] = (),
    bad_words_ids: Sequence[Sequence[int]] = (),
) -> SamplerOutput:
    """Sample logits [S, V] for S requests; by default each has the prompt [0] and no answer."""
    count, vocab = logits.shape
    params_list = [params] * count if isinstance(params, SamplingParams) else params
    seeds = range(count) if seeds is None else seeds
    prompts = [[0]] * count if prompts is None else prompts
    answers = [[]] * count if answers is None else answers
    rows = range(count) if rows is None else rows
    size = max(rows, default=0) + 1
    state = SamplingState(size, vocab)
    known = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    token_ids = np.zeros((size, max(map(len, known), default=0) + 1), np.int32)
    num_tokens, num_prompt_tokens = np.zeros(size, np.int32), np.zeros(size, np.int32)
    for i, row in enumerate(rows):
        token_ids[row, : len(known[i])] = known[i]
        num_tokens[row], num_prompt_tokens[row] = len(known[i]), len(prompts[i])
        state.set_row(
            row,
            params_list[i],
            seed=seeds[i],
            eos_token_ids=list(eos_token_ids),
            bad_words_ids=[list(word) for word in bad_words_ids],
        )
    history = History(token_ids, num_tokens, num_prompt_tokens)
    return Sampler(state).sample(logits.numpy().copy(), list(rows), history)


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and wait for them on a busy machine."""
    before = num_threads()
    set_num_threads(1)
    yield
    set_num_threads(before)


@pytest.fixture(name="sample", scope="session")
def sample_fixture() -> SampleFn:
    return sample


def chi_square_p(counts: np.ndarray, expected: np.ndarray) -> float:
    """p-value of counts against exact expectations; cells that expect less than 5 are merged.

    Wilson and Hilferty's cube-root approximation of the chi-square tail (PNAS, 1931).
    """
    assert counts[expected == 0].sum() == 0, "something impossible was drawn"
    order = np.argsort(expected)
    counts, expected = counts[order].astype(float), expected[order]
    merged = np.searchsorted(expected.cumsum(), 5.0) + 1
    counts = np.append(counts[merged:], counts[:merged].sum())
    expected = np.append(expected[merged:], expected[:merged].sum())
    keep = expected > 0
    counts, expected = counts[keep], expected[keep]
    free = len(counts) - 1
    if free == 0:
        return 1.0
    statistic = float(((counts - expected) ** 2 / expected).sum())
    scale = 2 / (9 * free)
    z = ((statistic / free) ** (1 / 3) - (1 - scale)) / math.sqrt(scale)
    return math.erfc(z / math.sqrt(2)) / 2


def assert_holm(p_values: dict[str, float], alpha: float = 1e-3) -> None:
    """Fail if any hypothesis falls at family-wise level alpha (Holm, 1979)."""
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for step, (name, p) in enumerate(ordered):
        assert p > alpha / (len(ordered) - step), f"{name}: p = {p:.2e}; all: {p_values}"


@pytest.fixture(name="chi_square_p", scope="session")
def chi_square_fixture() -> Callable[[np.ndarray, np.ndarray], float]:
    return chi_square_p


@pytest.fixture(name="assert_holm", scope="session")
def holm_fixture() -> Callable[[dict[str, float]], None]:
    return assert_holm
