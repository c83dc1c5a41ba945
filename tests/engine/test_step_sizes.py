"""The sizes that steps on a device are padded to: they hold the step, and fit into its memory."""

from __future__ import annotations

import pytest
import torch

from quire.engine.device_batch import DeviceBatch, StepSize
from quire.engine.input_batch import InputBatch
from quire.engine.step_graphs import StepGraphs, StepTensors
from quire.kernels.dispatch import kernels_for

CPU = torch.device("cpu")
LIMITS = [(1, 1), (1, 40), (3, 300), (64, 64), (100, 256), (256, 2048), (2000, 2000)]


def launch(size: StepSize) -> StepTensors:
    raise AssertionError(f"nothing is launched, yet {size} was")


@pytest.mark.parametrize(("max_num_seqs", "max_num_tokens"), LIMITS)
def test_a_size_holds_its_step_and_no_more_than_any_step_may_have(
    max_num_seqs: int, max_num_tokens: int
) -> None:
    graphs = StepGraphs(launch, max_num_seqs, max_num_tokens, is_captured=False)
    for count in range(1, max_num_tokens + 1):
        drawn = min(count, max_num_seqs)
        mixed = graphs.size_of(count, drawn, True)
        assert count <= mixed.num_tokens <= max_num_tokens
        assert drawn <= mixed.num_samples <= max_num_seqs
        if count <= max_num_seqs:
            decode = graphs.size_of(count, count, False)
            assert count <= decode.num_tokens == decode.num_samples <= max_num_seqs


class Recorded:
    """Stands for a CUDA graph."""

    num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1


def test_a_size_that_was_recorded_is_replayed() -> None:
    launched: list[StepSize] = []
    tensors = StepTensors(torch.empty(1), None, torch.empty(1))

    def note(size: StepSize) -> StepTensors:
        launched.append(size)
        return tensors

    graphs = StepGraphs(note, 8, 64, is_captured=True)
    recorded, size, other = Recorded(), graphs.size_of(8, 8, False), graphs.size_of(30, 2, True)
    graphs._graphs[size] = recorded, tensors  # type: ignore[assignment]
    assert [graphs.replays(each) for each in (size, other)] == [True, False]
    assert [graphs.run(each) for each in (size, other)] == [tensors, tensors]
    assert (recorded.num_replays, launched) == (1, [other])


@pytest.mark.parametrize("max_num_tokens", [1, 100, 300])
def test_a_step_without_requests_of_the_largest_size_touches_no_block(max_num_tokens: int) -> None:
    batch = InputBatch(max_num_seqs=1, max_model_len=32, block_size=16, device=CPU)
    device_batch = DeviceBatch(batch, max_num_tokens, kernels_for("meta"), CPU)
    graphs = StepGraphs(launch, 1, max_num_tokens, is_captured=False)
    size = graphs.size_of(max_num_tokens, 1, max_num_tokens > 1)
    device_batch.clear(size)
    step = device_batch.build(size)
    assert len(step.input_ids) == size.num_tokens
    assert (step.layout.slot_mapping == -1).all()
    assert (step.sample_rows == -1).all()
    assert step.layout.query_start_loc.tolist() == [0, 0]
