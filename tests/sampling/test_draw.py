from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from quire.kernels.cpu.native import num_threads, set_num_threads
from quire.kernels.reference_arrays import BLOCK
from quire.kernels.sampling_math import WEIGHT_BITS
from quire.sampling.draw import draw_any, draw_filtered
from quire.sampling.logit_blocks import Rows
from quire.sampling.sampling_state import RowParams

LARGEST = 1 - 2.0**-53
UNIT = 2.0**-WEIGHT_BITS
EDGES = [0.0, 2.0**-53, 0.5, LARGEST]


def row_params(count: int, **values: float) -> RowParams:
    off = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    fields = {name: values.get(name, off.get(name, 0.0)) for name in RowParams._fields}
    return RowParams(**{name: np.full(count, value) for name, value in fields.items()})


def filtered(row: np.ndarray, uniforms: list[float], **values: float) -> list[int]:
    """Draw from one row of logits with many numbers."""
    count = len(uniforms)
    params = row_params(count, **({"top_k": len(row)} | values))
    rows = Rows.of(np.tile(row, (count, 1)))
    cuts_tail = params.top_k[0] < len(row) or params.min_p[0] > 0
    masses = rows.masses(params.temperature).sum(axis=1)
    totals = np.full(count, -1) if cuts_tail else masses
    return draw_filtered(rows, params, totals, np.array(uniforms)).tolist()


class PlainDraw:
    """The same draw in plain Python."""

    def __init__(
        self,
        row: np.ndarray,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> None:
        self.ids = sorted(range(len(row)), key=lambda i: (-row[i], i))
        peak = float(row[self.ids[0]])
        weights = [float(np.exp((float(row[i]) - peak) / temperature)) for i in self.ids]
        remaining = [weight for weight in weights if weight >= min_p][:top_k]
        # what weighs less than a unit of the weights weighs nothing
        remaining = [weight if weight >= UNIT else 0.0 for weight in remaining]
        self.running = np.cumsum(remaining)
        reached = top_p * self.running[-1]
        # a rounding may decide about a token on the edge
        self.is_clear = all(
            abs(weight - min_p) > 1e-6 and abs(weight - UNIT) > 1e-3 * UNIT
            for weight in weights[1:]
        )
        if top_p < 1.0:
            self.is_clear &= bool(np.all(np.abs(self.running - reached) > 1e-5 * self.running[-1]))
            self.running = self.running[: int(np.searchsorted(self.running, reached)) + 1]

    def draw(self, uniform: float) -> int:
        target = uniform * self.running[-1]
        clear = np.all(np.abs(self.running - target) > 1e-5 * self.running[-1])
        self.is_clear &= uniform in EDGES or bool(clear)
        return self.ids[int(np.searchsorted(self.running, target, side="right"))]


LOGITS = st.lists(st.integers(-60, 60), min_size=1, max_size=150).map(
    lambda values: np.array(values, np.float32) / 8
)


@given(
    row=LOGITS,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 100]),
    top_p=st.sampled_from([1e-6, 0.05, 0.3, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    numbers=st.lists(st.floats(0, LARGEST), max_size=8),
)
def test_filters_keep_what_a_plain_version_keeps(
    row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, numbers: list
) -> None:
    numbers = EDGES + numbers  # 0 draws the first token that is kept, the largest the last
    values = {"temperature": temperature, "top_p": top_p, "min_p": min_p}
    values["top_k"] = top_k if 0 < top_k < len(row) else len(row)
    plain = PlainDraw(row, **values)
    expected = [plain.draw(number) for number in numbers]
    assume(plain.is_clear)
    assert filtered(row, numbers, **values) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"top_p": 0.9},
        {"top_p": 0.2},
        {"top_k": 3000},
        {"top_k": 3000, "top_p": 0.7},
        {"min_p": 1e-3},
        {"min_p": 1e-6, "top_p": 0.99, "top_k": 15_000},
        {"top_p": 0.9999999},
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_wide_filters_on_large_vocabularies(values: dict[str, float], scale: float) -> None:
    row = (np.random.default_rng(5).standard_normal(18_000) * scale).astype(np.float32)
    numbers = [*EDGES, *np.random.default_rng(6).random(4)]
    plain = PlainDraw(row, **values)
    running = np.cumsum(np.exp(np.sort(row)[::-1].astype(np.float64) - row.max()))
    edges = np.array([0.0, *running, running[-1]])
    slack = 1e-6 * running[-1]
    for number, token in zip(numbers, filtered(row, numbers, **values), strict=True):
        # the same place in the distribution, but for the roundings of float32 masses
        index, expected = plain.ids.index(token), plain.ids.index(plain.draw(number))
        assert edges[expected] - slack <= edges[index + 1] <= edges[expected + 2] + slack


@pytest.mark.parametrize("top_p", [1e-9, 0.5, 0.999])
def test_one_token_always_remains(top_p: float) -> None:
    row = np.full(200, -50.0, np.float32)
    row[117] = 50.0
    assert filtered(row, EDGES, top_p=top_p) == [117] * 4
    assert filtered(row, EDGES, min_p=1.0) == [117] * 4
    assert filtered(row, EDGES, top_k=1) == [117] * 4


def test_a_cut_among_equals_keeps_the_lowest_ids() -> None:
    row = np.zeros(500, np.float32)
    assert set(filtered(row, [*np.linspace(0, 0.999, 50), LARGEST], top_k=7)) == set(range(7))
    assert max(filtered(row, [LARGEST], top_p=0.2499)) == 124


def test_a_mass_that_is_reached_exactly_needs_no_further_token() -> None:
    assert max(filtered(np.zeros(4, np.float32), EDGES, top_p=0.5)) == 1
    assert max(filtered(np.zeros(4, np.float32), EDGES, top_p=0.5001)) == 2
    assert max(filtered(np.zeros(512, np.float32), EDGES, top_p=0.25)) == 127
    assert max(filtered(np.zeros(512, np.float32), EDGES, top_p=0.25, top_k=256)) == 63


@given(row=LOGITS, temperature=st.sampled_from([0.05, 1.0, 5.0]), number=st.floats(0, LARGEST))
def test_unfiltered_draw_inverts_the_distribution(
    row: np.ndarray, temperature: float, number: float
) -> None:
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    running = weights.cumsum()
    assume(np.all(np.abs(running - number * running[-1]) > 1e-5 * running[-1]))
    rows = Rows.of(row[None])
    drawn = draw_any(rows, row_params(1, temperature=temperature), np.array([number]))
    assert drawn.tolist() == [int((running <= number * running[-1]).sum())]


@pytest.mark.parametrize("vocab", [3, 64, 1000, 20_000])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 50.0])
def test_tokens_without_probability_are_never_drawn(vocab: int, temperature: float) -> None:
    numbers = np.array([*EDGES, *np.random.default_rng(0).random(40)])
    row = torch.full((vocab,), -torch.inf)
    possible = torch.randperm(vocab, generator=torch.Generator().manual_seed(vocab))[:3]
    row[possible] = torch.tensor([1.0, -2.0, 0.5])
    rows = Rows.of(row.repeat(len(numbers), 1).numpy())
    drawn = draw_any(rows, row_params(len(numbers), temperature=temperature), numbers)
    assert set(drawn.tolist()) <= set(possible.tolist())
    remaining = filtered(row.numpy(), list(numbers), temperature=temperature, top_p=0.999999)
    assert set(remaining) <= set(possible.tolist())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocab", [50, 1000, 32_003, 131_072])
def test_masses_do_not_depend_on_the_batch(vocab: int, threads: int) -> None:
    logits = torch.randn(9, vocab, generator=torch.Generator().manual_seed(1)) * 5
    temperature = np.linspace(0.3, 2.0, 9)
    before = num_threads()
    set_num_threads(threads)
    try:
        rows = Rows.of(logits.numpy())
        together = rows.masses(temperature)
        for index in ([3], [8, 0], [5, 1, 3, 7], list(range(8, -1, -1))):
            indices = np.array(index)
            alone = rows.select(indices).masses(temperature[indices])
            assert np.array_equal(alone, together[indices])
            alone = Rows.of(logits[index].numpy()).masses(temperature[indices])
            assert np.array_equal(alone, together[indices])
    finally:
        set_num_threads(before)


def test_masses_are_those_of_a_softmax() -> None:
    logits = torch.randn(2, 10 * BLOCK, generator=torch.Generator().manual_seed(2)).double() * 4
    expected = torch.softmax(logits / 0.7, -1).view(2, 10, BLOCK).sum(-1).numpy()
    masses = Rows.of(logits.float().numpy()).masses(np.full(2, 0.7))
    assert np.allclose(masses / masses.sum(axis=1, keepdims=True), expected, rtol=1e-5)
