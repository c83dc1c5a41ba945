"""Drawing on the device against the host's sampler: on a GPU if there is one, else interpreted.

The interpreter takes half a second for a few rows, so it gets few cases of each kind.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from device import DEVICE, ON_EITHER, ON_GPU
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.core.sampling_params import SamplingParams
from quire.kernels.triton.sampling.draw_kernels import Cut
from quire.sampling.device_sampler import DeviceSampler
from quire.sampling.host_logits import History
from quire.sampling.sampler import Sampler
from quire.sampling.sampling_state import SamplingState

pytestmark = [*ON_EITHER, pytest.mark.usefixtures("one_thread")]
FEW = Cut(piece=128)
BINNED = Cut(piece=128, ranked=2)  # nearly all rows have more candidates
CROWDED = Cut(piece=128, bins=4, listed=4, ranked=2)  # bins overflow: their tokens are read again
GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams()


class Table:
    """Requests with their params_list, drawn for on the host and on the device."""

    def __init__(
        self, params_list: list[SamplingParams], vocab: int, cut: Cut | None = None
    ) -> None:
        self.size = len(params_list)
        self.state = SamplingState(self.size, vocab)
        self.device = DeviceSampler(self.state, self.size, vocab, DEVICE, cut)
        for row, params in enumerate(params_list):
            self.give(row, params, seed=31 * row - 7)
        self.device.upload(range(self.size))

    def give(self, row: int, params: SamplingParams, seed: int) -> None:
        self.state.set_row(row, params, seed=seed, eos_token_ids=[], bad_words_ids=[])

    def on_device(
        self, logits: Tensor, rows: list[int], positions: list[int]
    ) -> tuple[list[int], list[int]]:
        indices = torch.tensor([rows, positions], dtype=torch.int32, device=DEVICE)
        tokens, status = self.device.sample(logits.to(DEVICE), indices[0], indices[1])
        return tokens.tolist(), status.tolist()

    def on_host(self, logits: Tensor, rows: list[int], positions: list[int]) -> list[int]:
        known = np.zeros(self.size, np.int64)
        known[rows] = positions
        history = History(np.zeros((self.size, max(positions) + 1), np.int32), known, known)
        return Sampler(self.state).sample(logits.float().numpy(), rows, history).token_ids

    def check(self, logits: Tensor, rows: list[int], positions: list[int]) -> list[int]:
        tokens, status = self.on_device(logits, rows, positions)
        assert tokens == self.on_host(logits.clone(), rows, positions)
        assert status == [0] * len(rows)
        return tokens


def normal(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


MIXED = [
    GREEDY,
    PLAIN,
    SamplingParams(top_k=5, temperature=0.7),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=3.0, top_k=40, top_p=0.9, min_p=0.01),
]


@pytest.mark.parametrize("cut", [FEW, BINNED])
def test_all_kinds_of_rows_are_drawn_as_on_the_host(cut: Cut) -> None:
    vocab = 300 if ON_GPU else 131
    table = Table(MIXED, vocab, cut)
    rows = [3, 0, 5, 1, 2, 4]
    table.check(normal(6, vocab), rows, [9, 4, 1, 77, 5, 2])
    if ON_GPU:
        for seed in range(20):
            table.check(normal(6, vocab, seed=seed, scale=0.3 * (seed + 1)), rows, [seed + 1] * 6)


@pytest.mark.parametrize("vocab", [2, 45, 300] if ON_GPU else [45])
def test_bins_that_overflow_are_searched(vocab: int) -> None:
    table = Table([MIXED[5]], vocab, CROWDED)
    table.check(normal(1, vocab), [0], [9])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-3, top_p=0.5),
        SamplingParams(temperature=100.0, top_k=50),
        SamplingParams(temperature=100.0),
        SamplingParams(top_k=1),
        SamplingParams(top_p=1e-9),
        SamplingParams(min_p=1.0),
        SamplingParams(top_p=1 - 1e-12, top_k=3),
    ],
    ids=range(7),
)
def test_extreme_sampling_params(params: SamplingParams) -> None:
    table = Table([params], 120, FEW)
    logits = normal(1, 120)
    token = table.check(logits, [0], [3])[0]
    if params.top_k == 1 or params.top_p < 1e-6 or params.min_p == 1.0:
        assert token == int(logits.argmax())


@pytest.mark.parametrize("cut", [FEW, BINNED, CROWDED] if ON_GPU else [FEW, BINNED])
def test_ties_go_to_the_lowest_ids(cut: Cut) -> None:
    params_list = [GREEDY, SamplingParams(top_k=3), SamplingParams(top_p=0.1)]
    flat = torch.zeros(3, 130)
    flat[:, ::2] = -0.0  # no less than the others
    drawn = Table(params_list, 130, cut).check(flat, [0, 1, 2], [1, 2, 3])
    assert drawn[0] == 0
    assert drawn[1] < 3
    assert drawn[2] < 13


def test_padding_rows_and_rows_that_are_not_finite_leave_the_others_alone() -> None:
    params_list = [GREEDY, PLAIN, SamplingParams(top_p=0.8), *[GREEDY] * 4]
    table = Table(params_list, 200, FEW)
    clean = normal(7, 200)
    logits = clean.clone()
    for row, poison in ((1, torch.nan), (3, -torch.nan), (4, torch.inf)):
        logits[row, 170] = poison
    logits[5] = -torch.inf
    rows, positions = [0, 1, -1, 2, 0, 2, 1], [5] * 7
    tokens, status = table.on_device(logits, rows, positions)
    assert status == [0, 1, 0, 1, 1, 1, 0]
    assert tokens[2] == 0
    for row in (0, 6):
        alone = table.on_host(clean[row : row + 1], rows[row : row + 1], [5])
        assert [tokens[row]] == alone
    assert not table.device._scratch.counters.any()  # all is as before, for the next call
    assert not table.device._scratch.bin_masses.any()


def test_tokens_that_cannot_occur_are_never_drawn() -> None:
    logits = torch.full((2, 200), -torch.inf)
    logits[:, 150:152] = torch.tensor([0.5, 1.0])
    drawn = Table([PLAIN, SamplingParams(top_k=100)], 200, FEW).check(logits, [0, 1], [1, 1])
    assert set(drawn) <= {150, 151}


def test_half_precision_is_drawn_as_its_float32() -> None:
    table = Table([PLAIN, SamplingParams(top_p=0.7)], 140, FEW)
    for dtype in (torch.float16, torch.bfloat16) if ON_GPU else (torch.float16,):
        table.check(normal(2, 140).to(dtype), [0, 1], [4, 4])


def test_a_row_given_to_another_request_is_uploaded_again() -> None:
    table = Table([PLAIN, GREEDY], 100, FEW)
    logits = normal(2, 100)
    for seed in range(6):  # more often than there are buffers
        table.give(1, SamplingParams(top_k=2) if seed == 5 else PLAIN, seed)
        table.device.upload([1])
    table.check(logits, [0, 1], [8, 8])
    for params in (GREEDY, GREEDY, PLAIN):  # all greedy rows are alike, whatever came before
        table.give(1, params, 7)
        table.device.upload([1])
        table.check(logits, [0, 1], [8, 8])
    table.device.upload([])


def test_no_rows() -> None:
    assert Table([GREEDY], 10, FEW).on_device(torch.zeros(0, 10), [], []) == ([], [])


@settings(
    max_examples=150 if ON_GPU else 3,
    suppress_health_check=list(HealthCheck),
)
@given(
    vocab=st.integers(2, 3000 if ON_GPU else 120),
    scale=st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    levels=st.sampled_from([1, 4, 1000]),
    temperature=st.sampled_from([1e-3, 0.1, 0.7, 1.0, 3.0, 100.0]),
    top_k=st.sampled_from([-1, 1, 2, 5, 40, 1000]),
    top_p=st.sampled_from([1e-9, 0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.01, 0.3, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(1, 2000),
    cut=st.sampled_from(
        [FEW, BINNED, CROWDED, Cut(piece=256, bins=64, listed=16, ranked=8)]
        if ON_GPU
        else [FEW, BINNED]
    ),
)
def test_any_sampling_param_is_drawn_as_on_the_host(
    vocab: int, scale: float, levels: int, temperature: float, top_k: int, top_p: float,
    min_p: float, seed: int, position: int, cut: Cut,
) -> None:  # fmt: skip
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    table = Table([params], vocab, cut)
    table.give(0, params, seed)
    table.device.upload([0])
    logits = (normal(1, vocab, seed=abs(seed) % 2**32) * levels).round() / levels * scale
    table.check(logits, [0], [position])


@pytest.mark.gpu  # takes too long in the interpreter
@pytest.mark.parametrize("vocab", [128_256, 151_937])
def test_large_vocabularies(vocab: int) -> None:
    for scale, temperature in itertools.product((0.2, 2.0, 6.0), (0.5, 1.0, 20.0)):
        params_list = [
            GREEDY,
            SamplingParams(temperature=temperature),
            SamplingParams(temperature=temperature, top_p=0.95),
            SamplingParams(temperature=temperature, top_k=20_000, top_p=0.5),
            SamplingParams(temperature=temperature, top_k=50),
            SamplingParams(temperature=temperature, min_p=0.001),
        ]
        rows = [row % 6 for row in range(40)]
        logits = normal(40, vocab, seed=vocab, scale=scale)
        Table(params_list * 7, vocab).check(logits, list(range(40)), [7] * 40)
        Table(params_list, vocab, Cut(per_sm=1)).device.sample(
            logits[:6].to(DEVICE),
            *torch.tensor([rows[:6], [7] * 6], dtype=torch.int32, device=DEVICE),
        )


@pytest.mark.gpu
def test_a_graph_holds_it() -> None:
    table = Table(MIXED, 5000)
    logits = normal(6, 5000).to(DEVICE)
    rows = torch.arange(6, dtype=torch.int32, device=DEVICE)
    positions = torch.ones(6, dtype=torch.int32, device=DEVICE)
    table.device.sample(logits, rows, positions)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, _ = table.device.sample(logits, rows, positions)
    for step in range(2, 8):
        other = normal(6, 5000, seed=step)
        logits.copy_(other)
        positions.fill_(step)
        order = np.random.default_rng(step).permutation(6).tolist()
        rows.copy_(torch.tensor(order, dtype=torch.int32))
        graph.replay()
        assert tokens.tolist() == table.on_host(other, order, [step] * 6)
