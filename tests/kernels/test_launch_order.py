"""Kernels that are launched before the one in front has ended still read what that one writes."""

from __future__ import annotations

import pytest
import torch
from gpu_layers import GpuLayers, bits_of

from quire.kernels.triton.attention.attention_plan import Plan
from quire.kernels.triton.ops import gpu_linear, paged_attention
from quire.kernels.triton.step import elementwise

pytestmark = pytest.mark.gpu("FP8")


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("requests", [1, 4, 16, 100])
def test_steps_launched_early_give_the_bits_of_steps_that_wait(
    requests: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each step its memory is spoilt: a kernel that reads too soon finds no plan, or NaNs.

    That is the plan of attention, queries, new keys and values, and all that goes between layers.
    """
    layers = GpuLayers([1] * requests, [700 + 61 * i for i in range(requests)], bits)
    with monkeypatch.context() as waiting:
        for module in (paged_attention, elementwise, gpu_linear):
            waiting.setattr(module, "launches_early", lambda _: False)
        expected = {name: bits_of(tensor).clone() for name, tensor in layers.step().items()}
    layers.step()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = layers.step()
    (plan,) = (made for made in layers.layout._derived.values() if isinstance(made, Plan))
    for turn in range(50):
        for tensor in results.values():
            bits_of(tensor).fill_(0xFF)
        plan.decode_runs.zero_()
        plan.decode_tiles.zero_()
        for layer in layers.layers:
            for cache in (layer.k_cache, layer.v_cache):
                bits_of(cache).flatten(0, 1)[layers.layout.slot_mapping] = 0xFF
        graph.replay()
        wrong = [n for n, t in results.items() if not torch.equal(bits_of(t), expected[n])]
        assert not wrong, turn
