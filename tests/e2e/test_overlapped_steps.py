"""The runner for GPUs on a CPU: steps launched ahead of each other give what single steps give.

The twins of the operations serve the device's layouts there. Nothing runs at the same time, but
everything else is as on a GPU: two steps in flight, tokens fed back on the device, padded sizes,
parts of steps replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from test_interrupts import sweep
from test_mixed_load import Served, make_requests, run_alone, serve, start
from torch import Tensor

from quire import LLM, StructuredOutputs
from quire.core.messages import AddRequest
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.engine.core import input_batch
from quire.engine.core.executor import Executor, OverlappedExecutor
from quire.engine.core.running_requests import RunningRequests
from quire.engine.gpu import device_batch
from quire.engine.gpu.device_runner import DeviceRunner
from quire.engine.gpu.step_graphs import Record, StepTensors, TokenStates
from quire.engine.gpu.step_work import ModelWork, layers_of_all_kinds
from quire.engine.startup import torch_start
from quire.engine.startup.gpu_backend import GpuBackend
from quire.engine.startup.resolved_config import ResolvedConfig
from quire.kernels.dispatch import kernels_for
from quire.kvcache import kv_storage
from quire.layers.forward_context import Heartbeat
from quire.models.families.llama import LlamaForCausalLM
from quire.sampling.logit_blocks import Rows
from quire.sampling.sampler import Sampler
from quire.sampling.sampling_state import SamplingState
from quire.sampling.structured_mask import Matcher

TWINS = kernels_for("meta")


class CountingDraw:
    """The host's draw in place of the device's, and how many tokens it gave."""

    def __init__(self, state: SamplingState) -> None:
        self._sampler = Sampler(state)
        self.num_drawn = 0

    def upload(self, rows: list[int]) -> None:
        pass

    def sample(self, logits: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.zeros(len(rows), dtype=torch.int32)
        failed = torch.zeros_like(tokens)
        mine = np.flatnonzero(rows.numpy() >= 0)
        if len(mine):
            batch, index = Rows.of(logits[mine].numpy()), rows.numpy()[mine].astype(np.int64)
            lost = ~np.isfinite(batch.peaks)
            known = np.zeros(int(index.max()) + 1, np.int64)
            known[index] = positions.numpy()[mine]
            tokens[mine] = torch.from_numpy(self._sampler._draw(batch, index, lost, known)).int()
            failed[mine] = torch.from_numpy(lost).int()
        self.num_drawn += len(mine)
        return tokens, failed


class Rerun:
    """A fake CUDA graph of a part of a step."""

    num_replays = 0

    def __init__(self, launch: Callable[[], StepTensors | None]) -> None:
        self._launch = launch

    def replay(self) -> StepTensors | None:
        Rerun.num_replays += 1
        return self._launch()


class Overlapped(GpuBackend):
    """The host in a GPU's place. record: of parts of steps."""

    record: Record | None = None

    def kv_budget(self) -> int:
        """More than the tests need."""
        return 1 << 24

    def make_executor(
        self, limits: RequestLimits, matchers: Mapping[str, Matcher], heartbeat: Heartbeat
    ) -> Executor:
        """An executor over the reference operations."""
        config = self.resolved.config
        running = RunningRequests(limits, config.cache.block_size, matchers, heartbeat)
        runner = DeviceRunner(
            self._model, self._kv_caches, limits, running, CountingDraw(running.sampling), TWINS,
            config.scheduler.max_num_batched_tokens, self._on,
            num_warmed_up=layers_of_all_kinds(self.resolved.kinds_of_layers),
            record=self.record,
        )  # fmt: skip
        runner.warm_up()
        return OverlappedExecutor(runner, runner.step_sizes)


@pytest.fixture
def overlap(monkeypatch: pytest.MonkeyPatch) -> Callable[[Record | None], None]:
    """Have engines that are started from then on overlap their steps."""

    def backend(resolved: ResolvedConfig, model: LlamaForCausalLM, *_: object) -> Overlapped:
        return Overlapped(resolved, model, torch.device("cpu"))

    def from_now_on(record: Record | None) -> None:
        monkeypatch.setattr(Overlapped, "record", record)
        monkeypatch.setattr(torch_start, "_host_backend", backend)
        monkeypatch.setattr("quire.models.loading.loader.kernels_for", lambda _: TWINS)

    return from_now_on


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    """Half of them are greedy without logits processors: a recorded part of a step samples them."""
    requests = make_requests(seed=21)[:70]
    return [without_processors(request) if i % 2 else request for i, request in enumerate(requests)]


def without_processors(request: AddRequest) -> AddRequest:
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=request.sampling.max_tokens,
        stop_token_ids=request.sampling.stop_token_ids,
    )
    return msgspec.structs.replace(request, sampling=sampling, bad_words_ids=[])


@pytest.fixture(scope="module")
def solo(odd_model: Path, requests: list[AddRequest]) -> Served:
    return run_alone(odd_model, requests)


@pytest.mark.parametrize(
    ("budget", "record"), [(2048, None), (90, Rerun)], ids=["kernel-by-kernel", "replayed"]
)
def test_together_equals_alone(
    odd_model: Path,
    requests: list[AddRequest],
    solo: Served,
    budget: int,
    record: Record | None,
    overlap: Callable[[Record | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overlap(record)
    monkeypatch.setattr(Rerun, "num_replays", 0)
    core = start(
        odd_model, block_size=2, num_blocks=240, max_num_seqs=50, max_num_batched_tokens=budget
    )
    together = serve(core, requests)
    assert core.stats.num_preemptions > 0, "no pressure: the test shows nothing"
    assert core._executor._runner._sampler.num_drawn > 300
    assert Rerun.num_replays >= core.stats.num_graph_steps
    assert core.stats.num_graph_steps == (core.stats.num_steps if record else 0)
    assert together.ends == solo.ends
    assert together.tokens == solo.tokens
    core._scheduler._kv.pool.check()


def test_scales_in_int8_move_with_their_blocks(
    odd_model: Path,
    requests: list[AddRequest],
    overlap: Callable[[Record | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefixes shared, requests preempted: as alone, with scales in tensors as a GPU has them."""
    overlap(None)
    monkeypatch.setattr(kv_storage, "_WITH_SCALES_IN_ROWS", frozenset())
    greedy, alone = requests[1:36:2], dict[str, list[int]]()
    core = start(odd_model, kv_cache_dtype="int8", enable_prefix_caching=False, num_blocks=256)
    for request in greedy:
        alone |= serve(core, [request]).tokens
    core = start(odd_model, kv_cache_dtype="int8", block_size=2, num_blocks=80, max_num_seqs=50)
    assert [len(layer) for layer in core._executor._runner._graphs._work._kv_caches] == [4] * 2
    together = serve(core, greedy)
    assert core.stats.num_preemptions > 0, "no pressure: the test shows nothing"
    assert core.stats.prefix_cache_hits > 0
    assert together.tokens == alone


def test_grammars_penalties_and_scores_are_as_with_single_steps(
    odd_model: Path, overlap: Callable[[Record | None], None]
) -> None:
    grammars = [
        StructuredOutputs(choice=["yes", "not at all"]),
        StructuredOutputs(regex="[a-f]{9,20}"),
    ]
    params_list = [
        SamplingParams(max_tokens=24, seed=number, logprobs=number % 4, structured_outputs=grammar)
        for number, grammar in enumerate([*grammars, None, *grammars, None])
    ]
    params_list[2] = msgspec.structs.replace(
        params_list[2], presence_penalty=1.0, repetition_penalty=1.3
    )
    prompts = [[20 + number] * 9 for number in range(len(params_list))]
    alone = LLM(model=str(odd_model), dtype="float32").generate(
        prompts, params_list, use_tqdm=False
    )
    overlap(Rerun)
    llm = LLM(model=str(odd_model), dtype="float32", max_num_seqs=5)
    for mine, theirs in zip(llm.generate(prompts, params_list, use_tqdm=False), alone, strict=True):
        (mine,), (theirs,) = mine.outputs, theirs.outputs
        assert (mine.token_ids, mine.finish_reason) == (theirs.token_ids, theirs.finish_reason)
        assert len(mine.logprobs) == len(theirs.logprobs)
        for ours, host in zip(mine.logprobs, theirs.logprobs, strict=True):
            assert [(key, each.rank) for key, each in ours.items()] == [
                (key, each.rank) for key, each in host.items()
            ]
            assert [each.logprob for each in ours.values()] == pytest.approx(
                [each.logprob for each in host.values()], abs=1e-3
            )


def test_a_preempted_request_ends_with_a_token_in_flight_that_completes_its_grammar(
    odd_model: Path, overlap: Callable[[Record | None], None]
) -> None:
    """Blocks run out after a fixed number of tokens, so one of the answers has just its last."""
    overlap(None)
    core = start(odd_model, num_blocks=40, block_size=1)
    for length in range(6, 12):
        grammar = StructuredOutputs(regex=f"[a-f]{{{length}}}")
        first, last = (
            AddRequest(
                request_id=name,
                prompt_token_ids=[token_id + length] * 10,
                sampling=SamplingParams(max_tokens=25, ignore_eos=True, structured_outputs=each),
            )
            for name, token_id, each in (("first", 20, None), ("last", 40, grammar))
        )
        served = serve(core, [first, last])
        assert len(served.tokens["last"]) == length
        assert served.ends == {"first": ["length"], "last": ["stop"]}
    assert core.stats.num_preemptions > 0, "no pressure: the test shows nothing"


@pytest.mark.parametrize("spoilt", [None, 4])
def test_a_state_that_the_last_layer_spoils_ends_a_request_for_its_scores(
    spoilt: int | None,
    odd_model: Path,
    overlap: Callable[[Record | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """States of tokens that nothing samples are finished after the step's outcome is known."""
    finish = ModelWork.hidden_states

    def spoil(work: ModelWork, tokens: TokenStates) -> Tensor:
        states = finish(work, tokens)
        if spoilt is not None and len(states) > spoilt:  # not the one that is sampled from
            states[spoilt] = torch.nan
        return states

    monkeypatch.setattr(ModelWork, "hidden_states", spoil)
    overlap(None)
    sampling = SamplingParams(max_tokens=2, temperature=0.0, prompt_logprobs=1)
    request = AddRequest(request_id="a", prompt_token_ids=[20] * 9, sampling=sampling)
    served = serve(start(odd_model), [request])
    assert served.ends == {"a": ["length" if spoilt is None else "error"]}


@pytest.mark.parametrize("record", [None, Rerun], ids=["kernel-by-kernel", "replayed"])
def test_no_step_follows_one_that_could_not_be_launched(
    tiny_model: Path, overlap: Callable[[Record | None], None], record: Record | None
) -> None:
    """Block tables on the device would lack its blocks, and other requests' would be written."""
    overlap(record)
    sweep(
        tiny_model, RuntimeError, tuple(module.__file__ for module in (device_batch, input_batch))
    )
