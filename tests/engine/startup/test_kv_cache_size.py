"""The KV cache's size from what the largest step takes, and what is said when memory runs out."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from quire.engine.core.device_errors import out_of_memory_message
from quire.engine.core.executor import UniprocExecutor
from quire.engine.gpu.step_work import layers_of_all_kinds
from quire.engine.startup import backend, gpu_backend, torch_start
from quire.engine.startup.gpu_backend import measured_bytes, run_largest_step
from quire.engine.startup.kv_cache_size import choose_num_blocks
from quire.engine.startup.out_of_memory import fitting_kv, fitting_step
from quire.engine.startup.resolved_config import resolve
from quire.engine.startup.start_engine import start_engine
from quire.engine.startup.step_memory import CODE_BYTES, graph_bytes, token_count_bytes
from quire.errors import ConfigError
from quire.hub import resolve_model
from quire.kernels.batch_layout import BatchLayout
from quire.layers.forward_context import ForwardContext
from quire.models.config.model_config import ModelConfig
from quire.models.loading.loader import load_model

MODEL_CONFIG = ModelConfig.from_folder(resolve_model("quire-tiny-draft"))
CPU, MIB = torch.device("cpu"), 2**20


class WatchedModel:
    """Notes what it is asked."""

    def __init__(self) -> None:
        config = EngineConfig.from_options(model="quire-tiny-draft").model
        folder = resolve_model(config.model)
        self.model = load_model(config, MODEL_CONFIG, folder, CPU, torch.float32)
        self.layouts: list[BatchLayout] = []
        self.num_logits = self.num_layers = self.num_finished = 0

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        self.layouts.append(ctx.layout)
        self.num_layers = len(ctx.kv)
        return self.model.forward(input_ids, positions, ctx)

    def attend(
        self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext, num_before: int
    ) -> tuple[Tensor, Tensor]:
        self.layouts.append(ctx.layout)
        self.num_layers = num_before
        return self.model.attend(input_ids, positions, ctx, num_before)

    def finish(self, residual: Tensor, heads: Tensor) -> Tensor:
        self.num_finished = len(heads)
        return self.model.finish(residual, heads)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.num_logits = len(hidden)
        return self.model.compute_logits(hidden)


@pytest.mark.parametrize(
    ("num_tokens", "longest", "lens"),
    [(64, 64, [64]), (64, 21, [1, 21, 21, 21]), (50, None, [50]), (20, 8, [4, 8, 8])],
)
def test_the_largest_step(num_tokens: int, longest: int | None, lens: list[int]) -> None:
    config = EngineConfig.from_options(
        model="quire-tiny-draft",
        max_num_batched_tokens=num_tokens,
        max_num_seqs=20,
        max_model_len=longest,
        dtype="float32",
    )
    model = WatchedModel()
    run_largest_step(resolve(config, "cpu"), model, CPU)
    assert [layout.query_lens_host for layout in model.layouts] == [lens]
    assert model.num_logits == model.num_finished == 20  # as a step with prompts does
    assert model.num_layers == layers_of_all_kinds(MODEL_CONFIG.spec.layers)


def gpu(
    monkeypatch: pytest.MonkeyPatch, *, free: int, total: int, peak: int, allocated: int
) -> None:
    """A GPU as far as `measured_bytes` looks."""
    cuda = SimpleNamespace(
        is_available=lambda: False,  # no kernel has to be compiled
        synchronize=lambda _: None,
        reset_peak_memory_stats=lambda _: None,
        max_memory_allocated=lambda _: peak,
        memory_allocated=lambda _: allocated,
        empty_cache=lambda: None,
        mem_get_info=lambda _: (free, total),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(gpu_backend, "run_largest_step", lambda *_: None)


def blocks(**options: Any) -> int:
    config = EngineConfig.from_options(model="quire-tiny-draft", dtype="float32", **options)
    resolved = resolve(config, "cuda")
    left = partial(measured_bytes, resolved, None, torch.device("cuda"))  # type: ignore[arg-type]
    return choose_num_blocks(resolved.config, MODEL_CONFIG, MIB, left)


def test_a_gpus_cache_gets_what_the_largest_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, free=3800 * MIB, total=4000 * MIB, peak=130 * MIB, allocated=30 * MIB)
    config = EngineConfig.from_options(model="quire-tiny-draft").resolved("cuda", 2048)
    graphs = graph_bytes(config, MODEL_CONFIG, 4) + token_count_bytes(config, MODEL_CONFIG)
    code = CODE_BYTES // MIB  # of kernels that are not loaded yet
    assert blocks() == 3600 - 200 - 100 - code - -(-graphs // MIB)
    assert blocks(gpu_memory_utilization=0.5) == 2000 - 200 - 100 - code - -(-graphs // MIB)
    counts = token_count_bytes(config, MODEL_CONFIG)
    assert blocks(enforce_eager=True) == 3600 - 200 - 100 - code - -(-counts // MIB)
    assert blocks(num_blocks=7) == 7
    assert blocks(kv_cache_memory_bytes=9 * MIB) == 9


def test_a_gpu_without_memory_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, free=100 * MIB, total=1000 * MIB, peak=200 * MIB, allocated=0)
    with pytest.raises(ConfigError, match="raise gpu_memory_utilization, lower max_num_batched"):
        blocks()
    with pytest.raises(ConfigError, match="raise kv_cache_memory_bytes"):
        blocks(kv_cache_memory_bytes=1)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("torch_start.load_unsaved", "free memory, use a smaller model, or set quantization"),
        (
            "start_engine.choose_num_blocks",
            "lower max_num_batched_tokens, max_num_seqs or kv_cache_mem",
        ),
        ("backend.HostBackend.allocate", "lower num_blocks, kv_cache_memory_bytes or max_num"),
    ],
)
@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate"),
    ],
)
def test_memory_that_runs_out_at_the_start_names_the_setting(
    function: str, error: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(f"quire.engine.startup.{function}", fail)
    with pytest.raises(ConfigError, match=error):
        start_engine(
            EngineConfig.from_options(
                model="quire-tiny-draft", num_blocks=8, device="cpu", prepared_weights="none"
            )
        )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_a_gpus_settings_are_named_where_its_memory_ran_out(device: str) -> None:
    config = EngineConfig.from_options().resolved(device, 2048)
    for around in (fitting_step(config), fitting_kv(config, 5)):
        with pytest.raises(ConfigError) as error, around:
            raise MemoryError
        assert ("gpu_memory_utilization" in str(error.value)) == (device == "cuda")
    failure = torch.OutOfMemoryError("CUDA") if device == "cuda" else MemoryError()
    assert ("gpu_memory_utilization" in str(out_of_memory_message(failure))) == (device == "cuda")


def test_other_failures_at_the_start_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch_start, "load_unsaved", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        start_engine(
            EngineConfig.from_options(
                model="quire-tiny-draft", num_blocks=8, device="cpu", prepared_weights="none"
            )
        )


def test_a_step_without_memory_ends_its_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful:
        def __init__(self, runner: Any) -> None:
            self.runner, self.fails = runner, True

        def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
            output: ModelRunnerOutput = self.runner.run(plan)
            if self.fails:
                self.fails = False
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return output

        def reset(self) -> None:
            self.runner.reset()

    monkeypatch.setattr(
        backend, "UniprocExecutor", lambda runner: UniprocExecutor(Forgetful(runner))
    )
    core, _ = start_engine(
        EngineConfig.from_options(model="quire-tiny-draft", num_blocks=8, device="cpu")
    )
    sampling = SamplingParams(max_tokens=2, ignore_eos=True)

    def answer(request_id: str) -> tuple[str | None, str | None]:
        request = AddRequest(request_id=request_id, prompt_token_ids=[5], sampling=sampling)
        core.handle(request)
        deltas = []
        while core.has_work:
            deltas += core.step().deltas
        return deltas[-1].finish_reason, deltas[-1].error

    reason, error = answer("a")
    assert reason == "error"
    assert "lower max_num_batched_tokens, max_num_seqs or gpu_memory_utilization" in str(error)
    assert answer("b") == ("length", None)
