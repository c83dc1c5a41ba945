"""What a device computes of a step, by fakes: of the last layer no more than is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.engine.core.step_sizes import StepSize
from quire.engine.gpu.step_work import ModelWork
from quire.kernels.dispatch import kernels_for
from quire.layers.forward_context import ForwardContext

NUM_TOKENS, HIDDEN, WIDTH = 8, 4, 6
NUM_LAYERS, NUM_WARMED_UP = 5, 2


class Model:
    """Notes what is computed; each token's states are its index."""

    def __init__(self) -> None:
        self.finished: list[list[float]] = []
        self.layers: list[int] = []
        self.heads = torch.arange(NUM_TOKENS).float()[:, None].repeat(1, WIDTH)

    def forward(self, input_ids: Tensor, _: Tensor, ctx: ForwardContext) -> Tensor:
        self.layers.append(len(ctx.kv))
        return torch.arange(len(input_ids)).float()[:, None].repeat(1, HIDDEN)

    def attend(
        self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext, num_before: int
    ) -> tuple[Tensor, Tensor]:
        states = self.forward(input_ids, positions, ctx)
        self.layers[-1] = num_before
        return states, self.heads

    def finish(self, residual: Tensor, heads: Tensor) -> Tensor:
        assert torch.equal(residual[:, 0], heads[:, 0])
        self.finished.append(residual[:, 0].tolist())
        return residual

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return hidden


def make_work(
    model: Model, samples: list[int], *, has_head: bool = True, num_layers: int = NUM_LAYERS
) -> ModelWork:
    """Work of a step of NUM_TOKENS, the last one padding. samples: tokens that are sampled from."""
    ids = torch.arange(NUM_TOKENS)
    rows = torch.arange(len(samples), dtype=torch.int32)
    sampled = SimpleNamespace(
        tokens=torch.tensor(samples, dtype=torch.int32), rows=rows, positions=rows,
        step_len=torch.tensor([NUM_TOKENS - 1]),
    )  # fmt: skip
    batch: Any = SimpleNamespace(
        build=lambda _: SimpleNamespace(input_ids=ids, positions=ids, layout=None),
        samples=lambda _: sampled,
        last_tokens=torch.zeros(16, dtype=torch.int32),
    )
    sampler: Any = SimpleNamespace(
        sample=lambda logits, rows, _: (logits[:, 0].int(), torch.zeros_like(rows))
    )
    caches: Any = [()] * num_layers
    return ModelWork(
        model, caches, batch, sampler, kernels_for("meta"), lambda: None,
        has_head=has_head, num_warmed_up=NUM_WARMED_UP,
    )  # fmt: skip


@pytest.mark.parametrize("samples", [[2, 5, 6], []])
def test_beside_prompts_the_last_layer_is_finished_for_sampled_tokens_alone(
    samples: list[int],
) -> None:
    model = Model()
    work = make_work(model, samples)
    tokens = work.forward(StepSize(NUM_TOKENS, len(samples), has_prefills=True))
    outcome = work.finish(tokens, len(samples)).outcome
    assert model.finished == ([samples] if samples else [])
    assert outcome[: len(samples)].tolist() == samples
    assert outcome[2 * len(samples) :].tolist() == [1] * (NUM_TOKENS - 1) + [0]
    assert model.layers == [NUM_LAYERS]


def test_a_token_whose_keys_were_not_finite_is_marked() -> None:
    model = Model()
    model.heads[3, 1] = float("nan")
    work = make_work(model, [6])
    tokens = work.forward(StepSize(NUM_TOKENS, 1, has_prefills=True))
    assert work.finish(tokens, 1).outcome[2:].tolist() == [1, 1, 1, 0, 1, 1, 1, 0]


def test_the_host_gets_all_hidden_states_if_it_asks() -> None:
    model = Model()
    work = make_work(model, [6])
    tokens = work.forward(StepSize(NUM_TOKENS, 1, has_prefills=True))
    assert work.hidden_states(tokens)[:, 0].tolist() == list(range(NUM_TOKENS))


@pytest.mark.parametrize(("has_prefills", "has_head"), [(False, True), (True, False)])
def test_other_steps_finish_all_tokens_at_once(has_prefills: bool, has_head: bool) -> None:
    model = Model()
    work = make_work(model, [], has_head=has_head)
    tokens = work.forward(StepSize(NUM_TOKENS, 0, has_prefills=has_prefills))
    assert tokens.heads is None
    assert work.hidden_states(tokens) is tokens.states
    assert model.layers == [NUM_LAYERS]


def test_a_model_of_one_layer_is_not_split() -> None:
    """No other layer would launch in a warm-up what the host has computed for all tokens."""
    model = Model()
    work = make_work(model, [2], num_layers=1)
    tokens = work.forward(StepSize(NUM_TOKENS, 1, has_prefills=True), is_warm_up=True)
    assert tokens.heads is None
    assert model.layers == [1]


@pytest.mark.parametrize("has_prefills", [False, True])
def test_a_warm_up_goes_through_few_layers(has_prefills: bool) -> None:
    model = Model()
    work = make_work(model, [])
    work.forward(StepSize(NUM_TOKENS, 0, has_prefills=has_prefills), is_warm_up=True)
    assert model.layers == [NUM_WARMED_UP]
