"""Pooling by itself: sums over chunks, cuts, lengths, and numbers that are none."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch

from quire.core.pooling_params import PoolingParams
from quire.core.request import DEFAULT_SAMPLING
from quire.core.scheduler_output import NewRequest, SampleResult, ScheduledRequest, SchedulerOutput
from quire.engine.core.input_batch import InputBatch
from quire.engine.core.pooler import Pooler, to_bytes
from quire.errors import InvalidRequestError
from quire.models.families.llama import LlamaForCausalLM
from quire.models.runtimes.torch_model import TorchStates

SIZE = 6
MODEL = cast(LlamaForCausalLM, None)  # pooling wants no logits


class Bench:
    """A pooler beside a batch, fed with hidden states that the test chooses."""

    def __init__(self) -> None:
        self.batch = InputBatch(max_num_seqs=4, max_model_len=64, block_size=4)
        self.pooler = Pooler()

    def add(self, name: str, num_tokens: int, pooling: PoolingParams | None) -> None:
        request = NewRequest(
            request_id=name,
            token_ids=[1] * num_tokens,
            num_prompt_tokens=num_tokens,
            sampling=DEFAULT_SAMPLING,
            bad_words_ids=[],
            eos_token_ids=[],
            pooling=pooling,
        )
        self.batch.add(request)
        self.pooler.add(request)

    def remove(self, name: str) -> None:
        self.batch.remove(name)
        self.pooler.remove(name)

    def step(
        self, *chunks: tuple[str, int, torch.Tensor], last: bool = True
    ) -> dict[str, SampleResult]:
        """chunks: (request, first token, states [t, H])."""
        scheduled = [
            ScheduledRequest(
                request_id=name, start=start, num_tokens=len(states), new_block_ids=[], samples=last
            )
            for name, start, states in chunks
        ]
        plan = SchedulerOutput(step_id=0, removed_ids=[], new_requests=[], scheduled=scheduled)
        inputs = self.batch.prepare(plan)
        states_of = {name: states for name, _, states in chunks}
        hidden = torch.cat([states_of[entry.request_id] for entry in inputs.scheduled])
        results = {name: SampleResult() for name in states_of}
        self.pooler.pool(inputs, TorchStates(hidden, MODEL), results)
        return results


def states(num_tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_tokens, SIZE, generator=torch.Generator().manual_seed(seed))


def vector(result: SampleResult) -> np.ndarray:
    assert result.embedding is not None
    return np.frombuffer(result.embedding, "<f4")


MEAN = PoolingParams(pooling="mean", normalize=False)
LAST = PoolingParams(pooling="last", normalize=False)


def test_chunks_add_up_whatever_shares_the_step() -> None:
    bench, whole = Bench(), states(7)
    bench.add("mean", 7, MEAN)
    bench.add("last", 7, LAST)
    bench.add("draws", 1, None)
    results = bench.step(("mean", 0, whole[:4]), ("last", 0, whole[:5]), last=False)
    assert [result.embedding for result in results.values()] == [None, None]
    results = bench.step(("mean", 4, whole[4:]), ("draws", 0, states(1, 1)), ("last", 5, whole[5:]))
    assert vector(results["mean"]) == pytest.approx(whole.mean(0).numpy(), abs=1e-6)
    assert vector(results["last"]) == pytest.approx(whole[-1].numpy())
    assert results["draws"].embedding is None


def test_a_request_that_returns_begins_anew() -> None:
    bench, whole = Bench(), states(6)
    bench.add("a", 6, MEAN)
    bench.step(("a", 0, states(4, 9)), last=False)
    bench.remove("a")
    bench.add("a", 6, MEAN)
    results = bench.step(("a", 0, whole))
    assert vector(results["a"]) == pytest.approx(whole.mean(0).numpy(), abs=1e-6)


def test_a_mean_never_begins_in_the_middle() -> None:
    bench = Bench()
    bench.add("a", 6, MEAN)
    with pytest.raises(AssertionError, match="missed"):
        bench.step(("a", 4, states(2)))


def test_sums_are_in_float32() -> None:
    bench = Bench()
    whole = torch.full((64, SIZE), 1.0 + 2**-7, dtype=torch.bfloat16)
    bench.add("a", 64, MEAN)
    bench.step(("a", 0, whole[:40]), last=False)
    assert vector(bench.step(("a", 40, whole[40:]))["a"]) == pytest.approx(1.0 + 2**-7, abs=1e-7)


def test_a_vector_that_overflows_fails_its_request_alone() -> None:
    bench = Bench()
    for name in "ab":
        bench.add(name, 2, MEAN)
    results = bench.step(("a", 0, torch.full((2, SIZE), 3e38)), ("b", 0, states(2)))
    assert results["a"].failed
    assert results["a"].embedding is None
    assert not results["b"].failed


def test_cut_then_scaled() -> None:
    given = np.array([3.0, 4.0, 100.0], np.float32)
    cut = to_bytes(given, PoolingParams(dimensions=2))
    assert cut == np.array([0.6, 0.8], "<f4").tobytes()
    assert to_bytes(given, LAST) == given.astype("<f4").tobytes()
    zeros = np.zeros(3, np.float32)
    assert to_bytes(zeros, PoolingParams()) == zeros.tobytes()
    huge = to_bytes(np.full(4, 2e38, np.float32), PoolingParams())
    assert huge == np.full(4, 0.5, "<f4").tobytes()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"pooling": "max"}, "pooling"),
        ({"pooling": None}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"dimensions": 2.0}, "dimensions"),
    ],
)
def test_wrong_sampling_params_are_named(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{field}: must be .*, not ") as caught:
        PoolingParams(**fields)  # type: ignore[arg-type]
    assert caught.value.param == field


def test_changes() -> None:
    start = PoolingParams(pooling="mean", normalize=False)
    changed = start.changed(pooling=None, normalize=True, dimensions=3)
    assert changed == PoolingParams(pooling="mean", normalize=True, dimensions=3)
