"""The sizes that steps on a GPU are padded to, and the recordings that serve them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from quire.core.layer_spec import LayerSpec
from quire.engine.core.input_batch import InputBatch
from quire.engine.core.step_sizes import StepSize, StepSizes
from quire.engine.gpu.device_batch import DeviceBatch
from quire.engine.gpu.step_graphs import StepGraphs
from quire.engine.gpu.step_work import StepTensors, TokenStates, layers_of_all_kinds
from quire.hub import resolve_model
from quire.kernels.dispatch import kernels_for
from quire.models.config.model_config import ModelConfig

CPU = torch.device("cpu")
LIMITS = [(1, 1), (1, 40), (3, 300), (64, 64), (100, 256), (256, 2048), (2000, 2000), (256, 9000)]


@pytest.mark.parametrize("pads_mixed", [False, True])
@pytest.mark.parametrize(("max_num_seqs", "max_num_tokens"), LIMITS)
def test_a_size_holds_its_step_and_no_more_than_any_step_may_have(
    max_num_seqs: int, max_num_tokens: int, pads_mixed: bool
) -> None:
    sizes = StepSizes(max_num_seqs, max_num_tokens, pads_mixed=pads_mixed)
    assert sizes.mixed == sorted(set(sizes.mixed))
    for count in range(1, max_num_tokens + 1):
        drawn = min(count, max_num_seqs)
        mixed = sizes.of(count, drawn, True)
        assert count <= mixed.num_tokens <= max_num_tokens
        assert mixed.num_tokens == count or mixed.num_tokens in sizes.mixed
        assert drawn <= mixed.num_samples <= max_num_seqs
        if count <= max_num_seqs:
            decode = sizes.of(count, count, False)
            assert count <= decode.num_tokens == decode.num_samples <= max_num_seqs


def test_padding_is_a_small_part_of_a_large_step() -> None:
    sizes = StepSizes(256, 8192, pads_mixed=True)
    shares = [sizes.of(n, 1, True).num_tokens / n - 1.0 for n in range(512, 8193)]
    assert sum(shares) / len(shares) < 0.07
    assert max(shares) < 0.25
    assert sizes.of(8192, 0, True) == StepSize(8192, 0, has_prefills=True)


class Work:
    """Notes what it is asked; hidden states are the number of tokens."""

    def __init__(self) -> None:
        self.warmed_up: list[int] = []
        self.launched: list[tuple[str, int]] = []

    def forward(self, size: StepSize, *, is_warm_up: bool = False) -> TokenStates:
        if is_warm_up:
            self.warmed_up.append(size.num_tokens)
        else:
            self.launched.append(("forward", size.num_tokens))
        return TokenStates(torch.full((size.num_tokens, 1), size.num_tokens))

    def finish(self, tokens: TokenStates, num_samples: int) -> StepTensors:
        self.launched.append(("finish", num_samples))
        return StepTensors(tokens, None, torch.empty(2 * num_samples + len(tokens.states)))


class Recorded:
    """A fake CUDA graph: a replay launches what was recorded."""

    def __init__(self, launch: Callable[[], StepTensors | None]) -> None:
        self.replay = launch


def test_a_step_is_replayed_in_parts_that_fit_it() -> None:
    work, sizes = Work(), StepSizes(8, 200, pads_mixed=True)
    cleared: list[int] = []
    graphs = StepGraphs(work, sizes, Recorded)
    mixed, decode = sizes.of(130, 3, True), sizes.of(5, 5, False)
    assert not graphs.replays(mixed)
    graphs.record_all(lambda size: cleared.append(size.num_tokens))
    layers = [200, 192, 128, 64, 32, 16]  # each for any prompts and for short ones
    assert work.warmed_up == cleared == [*sorted(2 * layers, reverse=True), 8, 4, 2, 1]
    work.launched.clear()
    assert graphs.replays(mixed)
    tensors = graphs.run(mixed, lambda: work.launched.append(("params", 0)))
    assert work.launched == [("forward", 192), ("params", 0), ("finish", 8)]
    assert tensors.tokens.states[:192].eq(192).all()
    work.launched.clear()
    assert len(graphs.run(decode, lambda: work.launched.append(("params", 0))).tokens.states) == 8
    assert work.launched == [("params", 0), ("forward", 8), ("finish", 8)]


def test_steps_that_share_prefixes_have_recordings_of_their_own() -> None:
    work, sizes = Work(), StepSizes(8, 200, pads_mixed=True, shares_prefixes=True)
    cleared: list[StepSize] = []
    graphs = StepGraphs(work, sizes, Recorded)
    graphs.record_all(cleared.append)
    assert [size.num_tokens for size in cleared if size.has_shared] == [8, 4]
    assert len(graphs._recordings) == sizes.num_graphs
    assert graphs.replays(sizes.of(5, 5, False, has_shared=True))
    assert graphs.replays(sizes.of(5, 5, False))
    assert not any(size.has_shared for size in cleared if size.has_prefills)


def test_short_prompts_have_recordings_of_their_own_in_some_sizes() -> None:
    work, sizes = Work(), StepSizes(8, 1600, pads_mixed=True)
    cleared: list[StepSize] = []
    graphs = StepGraphs(work, sizes, Recorded)
    graphs.record_all(cleared.append)
    assert {size.num_tokens for size in cleared if size.has_few_keys} == set(sizes.short_mixed)
    assert len(graphs._recordings) == sizes.num_graphs
    few, any_other = sizes.of(130, 3, True, has_few_keys=True), sizes.of(130, 3, True)
    assert few.has_few_keys
    assert few.num_tokens == any_other.num_tokens == 192
    assert graphs.replays(few)
    assert sizes.of(1400, 3, True, has_few_keys=True) == sizes.of(1400, 3, True)
    assert not sizes.of(5, 5, False, has_few_keys=True).has_few_keys


def test_kernels_are_launched_one_by_one_where_nothing_is_recorded() -> None:
    work, sizes = Work(), StepSizes(8, 200, pads_mixed=False)
    graphs = StepGraphs(work, sizes, None)
    graphs.record_all(lambda _: pytest.fail("nothing is to be recorded"))
    size = sizes.of(130, 3, True)
    assert not graphs.replays(size)
    assert len(graphs.run(size, lambda: None).tokens.states) == 130
    assert work.launched == [("forward", 130), ("finish", 8)]


def layers(*changes: dict[str, Any]) -> list[LayerSpec]:
    """Layers that differ by the fields of their attention."""
    plain = ModelConfig.from_folder(resolve_model("quire-tiny")).spec.layers[0]
    return [replace(plain, attention=replace(plain.attention, **change)) for change in changes]


def windows(*sizes: int | None) -> list[LayerSpec]:
    return layers(*({"window": size} for size in sizes))


def test_warmed_up_layers_have_every_window_after_another_layer() -> None:
    assert layers_of_all_kinds(windows(None)) == 1
    assert layers_of_all_kinds(windows(None, None, None)) == 2
    assert layers_of_all_kinds(windows(None, None, 5, None, 5)) == 3
    assert layers_of_all_kinds(windows(5, None, None, 5)) == 4


def test_warmed_up_layers_have_every_feature_or_none() -> None:
    plain: dict[str, Any] = {}
    assert layers_of_all_kinds(layers(plain, plain, plain, {"soft_cap": 5.0})) == 4
    assert layers_of_all_kinds(layers(plain, plain, {"sinks": True}, {"sinks": True})) == 3
    assert layers_of_all_kinds(layers(plain, plain, {"scale": 0.2})) == 3
    same = windows(None, None)
    mlp = replace(same[1].mlp, activation="gelu_tanh")
    assert layers_of_all_kinds([*same, replace(same[1], mlp=mlp)]) == 3


@pytest.mark.parametrize("max_num_tokens", [1, 100, 300])
def test_a_step_without_requests_of_the_largest_size_touches_no_block(max_num_tokens: int) -> None:
    batch = InputBatch(max_num_seqs=1, max_model_len=32, block_size=16)
    device_batch = DeviceBatch(batch, max_num_tokens, kernels_for("meta"), CPU)
    size = StepSize(max_num_tokens, 1, has_prefills=max_num_tokens > 1)
    device_batch.clear(size)
    step = device_batch.build(size)
    assert len(step.input_ids) == size.num_tokens
    assert (step.layout.slot_mapping == -1).all()
    assert step.layout.query_start_loc.tolist() == [0, 0]
    samples = device_batch.samples(1)
    assert (samples.rows.tolist(), samples.step_len.tolist()) == ([-1], [0])
