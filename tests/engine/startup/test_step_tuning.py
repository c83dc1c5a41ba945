"""What is measured at the start of an engine on a CPU, and what is made of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from quire.config import EngineConfig
from quire.core.request_limits import RequestLimits
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup import backend, step_tuning
from quire.engine.startup.start_engine import start_engine
from quire.engine.startup.step_tuning import (
    StepTable,
    choose_threads,
    measure_steps,
    thread_candidates,
    with_token_budget,
)
from quire.hub import resolve_model
from quire.kernels.cpu import native
from quire.kernels.cpu.native import num_threads
from quire.kvcache.host_kv_cache import HostCache
from quire.models.config.model_config import ModelConfig
from quire.models.loading.loader import load_model
from quire.models.prepared.prepared_weights import stored_arrays
from quire.models.runtimes.compiled_decoder import CompiledDecoder
from quire.models.runtimes.torch_model import with_cache


def table(prompts: dict[int, float]) -> StepTable:
    return StepTable(2, {2: 0.1, 1: 0.2}, {1: 0.1, 8: 0.12}, prompts)


@pytest.fixture
def config() -> EngineConfig:
    return EngineConfig.from_options(device="cpu", dtype="float32")


def test_threads_are_those_asked_for_unless_fewer_are_clearly_faster() -> None:
    assert choose_threads({8: 1.0, 4: 0.75, 1: 3.0}) == 8
    assert choose_threads({8: 1.0, 4: 0.7, 1: 0.65}) == 1
    assert choose_threads({3: 1.0}) == 3


@pytest.mark.parametrize(
    ("prompts", "full_step"),
    [({}, 512), ({32: 0.01}, 512), ({32: 0.5, 128: 0.4}, 512), ({32: 1.0, 128: 9.0}, 256)],
)
def test_steps_of_prompts_end_in_time(prompts: dict[int, float], full_step: int) -> None:
    assert table(prompts).full_step() == full_step


def test_a_budget_that_was_asked_for_stays() -> None:
    slow = table({128: 9.0})
    for options, budget in (
        ({}, 512),
        ({"max_num_seqs": 300}, 556),
        ({"max_num_batched_tokens": 4096}, 4096),
        ({"enable_chunked_prefill": False}, 2304),
    ):
        asked = EngineConfig.from_options(**options)
        found = with_token_budget(asked.resolved("cpu", 2000), asked, slow)
        assert found.scheduler.max_num_batched_tokens == budget


@pytest.mark.parametrize("is_compiled", [False, True], ids=["modules", "compiled"])
def test_the_bundled_model_measured(is_compiled: bool, config: EngineConfig) -> None:
    folder = resolve_model(config.model.model)
    model_config = ModelConfig.from_folder(folder)
    model = load_model(config.model, model_config, folder, torch.device("cpu"), torch.float32)
    layers = model_config.spec.kv_layers
    ready = partial(with_cache, model, layers, 16, torch.float32)
    if is_compiled:
        if native.library() is None:
            pytest.skip("the kernels were not built")
        decoder = CompiledDecoder(model_config.spec, stored_arrays(model), 16)

        def ready(num_layers: int, num_blocks: int) -> CompiledDecoder:
            cache = HostCache.allocate(layers[:num_layers], num_blocks, 16, "float32")
            return decoder.with_cache(cache)

    found = measure_steps(ready, model_config, 16, [1])
    assert found.num_threads == num_threads() == 1
    assert list(found.threads) == [1]
    assert set(found.decodes) <= {1, 8}
    assert 0.0 < found.decodes[1] < 10.0
    assert list(found.prompts) == sorted(found.prompts)
    assert found.observations[0] == (1, 0, found.decodes[1])
    assert str(found).startswith("ms of a step by threads: 1: ")


def test_an_engine_begins_with_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model counts as large enough to be tuned; the timings are fake."""
    config = EngineConfig.from_options(
        device="cpu", dtype="float32", prepared_weights=str(tmp_path), itl_target_ms=50.0
    )
    monkeypatch.setattr(backend, "is_tiny", lambda _: False)
    monkeypatch.setattr(backend, "measure_steps", lambda *_: table({32: 0.5, 128: 2.0}))
    core, info = start_engine(config)
    assert "tuning" in info.seconds
    assert isinstance(core, EngineCore)
    assert isinstance(core.limits, RequestLimits)
    policy = core._scheduler._policy
    assert policy.costs.predict(8, 0) == pytest.approx(0.12, rel=0.2)
    assert policy.costs.predict(0, 128) == pytest.approx(2.0, rel=0.2)
    assert core._scheduler._planner._config.full_step == 256


def test_a_tiny_model_starts_at_once_with_one_thread(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "measure_steps", lambda *_: pytest.fail("it was measured"))
    _, info = start_engine(config)
    assert num_threads() == 1
    assert "tuning" not in info.seconds


def test_candidates_for_threads(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    model_config = ModelConfig.from_folder(resolve_model(config.model.model))
    monkeypatch.setattr(step_tuning, "usable_cores", lambda: 6)
    assert thread_candidates(config, model_config) == [1]
    monkeypatch.setattr(step_tuning, "is_tiny", lambda _: False)
    assert thread_candidates(config, model_config) == [6, 3, 1]
    asked = EngineConfig.from_options(threads=2)
    assert thread_candidates(asked, model_config) == [2]
    assert 4 * model_config.num_parameters < step_tuning.TINY_MODEL_BYTES
