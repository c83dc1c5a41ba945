"""Costs of a step on a CPU, measured on the loaded model before it serves. No torch.

Owns the measurement and what is chosen by it: the number of threads and the token budget of a step,
where the settings leave them open. The scheduler's cost model starts with the figures, and learns
from served steps; step_tuning_file.py keeps them for later starts.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from quire.config import FULL_STEP, EngineConfig
from quire.engine.startup.machine_limits import check_threads, usable_cores
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.ragged_batch import RaggedBatch
from quire.models.config.model_config import ModelConfig
from quire.models.runtimes.host_model import HostModel, WithCache

logger = logging.getLogger(__name__)

# Below this size of float32 weights nothing is measured: one thread serves, which is a guess, and
# the scheduler soon learns the times of steps.
TINY_MODEL_BYTES = 1 << 26
DECODES = (1, 8)  # tokens of a step, each of another request
PROMPTS = (32, 128, 512)  # tokens of a step that are one prompt's
SECONDS = 0.3  # for all of it; sizes that would take longer are left out
RUNS = 5  # with each number of threads; the fastest counts
# Seconds of a step of one token, beyond which all threads are worth having. On two busy cores the
# same measurement of longer steps gave now one thread, now two: for good, and to no purpose.
SHORT_STEP = 0.01
COLD_BYTES = 1 << 26  # of weights that a run goes through at least: more than caches keep
GAIN = 0.7  # fewer threads are taken if a step takes no more than this share of its time with all
LONGEST_STEP = 2.0  # seconds of prompts alone, for which an arriving request may have to wait
FULL_STEPS = (FULL_STEP["cpu"], 256)


class StepTable(msgspec.Struct, frozen=True):
    """Seconds of a step of the whole model.

    threads: number of threads → seconds of a step of one token. decodes, prompts: number of tokens
    → seconds, with num_threads threads; of as many requests, or of one prompt.
    """

    num_threads: int
    threads: dict[int, float]
    decodes: dict[int, float]
    prompts: dict[int, float]

    @property
    def observations(self) -> list[tuple[int, int, float]]:
        """(decodes, prompt tokens, seconds) of each step, for the scheduler's cost model."""
        decodes = [(count, 0, seconds) for count, seconds in self.decodes.items()]
        return decodes + [(0, count, seconds) for count, seconds in self.prompts.items()]

    def full_step(self) -> int:
        """The largest of FULL_STEPS that ends within LONGEST_STEP, or the smallest."""
        if not self.prompts:
            return FULL_STEPS[0]
        count, seconds = max(self.prompts.items())
        in_time = [size for size in FULL_STEPS if size * seconds / count <= LONGEST_STEP]
        return max(in_time, default=FULL_STEPS[-1])

    def __str__(self) -> str:
        threads = ", ".join(f"{n}: {1e3 * s:.1f}" for n, s in self.threads.items())
        steps = ", ".join(f"{n}: {1e3 * s:.1f}" for n, s in (self.decodes | self.prompts).items())
        return f"ms of a step by threads: {threads}; by tokens, with {self.num_threads}: {steps}"


def is_tiny(model_config: ModelConfig) -> bool:
    """Whether a model is too small for the measurement to pay."""
    return 4 * model_config.num_parameters <= TINY_MODEL_BYTES


def thread_candidates(config: EngineConfig, model_config: ModelConfig) -> list[int]:
    """Numbers of threads to choose from, the default first: all cores, half of them, and one.

    The number asked for alone, if there is one; one for a tiny model, whose matrix products are too
    short to be split. Raises ConfigError for far more threads than there are cores.
    """
    if (asked := config.device.threads) is not None:
        check_threads(asked)
        return [asked]
    usable = usable_cores()
    return [1] if is_tiny(model_config) else sorted({usable, -(-usable // 2), 1}, reverse=True)


def with_token_budget(config: EngineConfig, asked: EngineConfig, table: StepTable) -> EngineConfig:
    """The settings with the budget that was measured, unless one was asked for."""
    scheduler = asked.scheduler
    if scheduler.max_num_batched_tokens or not scheduler.enable_chunked_prefill:
        return config
    budget = table.full_step() + scheduler.max_num_seqs
    scheduler = dataclasses.replace(scheduler, max_num_batched_tokens=budget)
    return dataclasses.replace(config, scheduler=scheduler)


def measure_steps(
    with_cache: WithCache,
    model_config: ModelConfig,
    block_size: int,
    candidates: Sequence[int],
) -> StepTable:
    """Time steps, choose the number of threads, and set it.

    Steps go through as many layers as processor caches cannot hold. candidates: see
    `thread_candidates`.
    """
    end = time.perf_counter() + SECONDS
    probe = _Probe(with_cache, model_config, block_size)
    threads = _time_threads(probe.step([1]), candidates)
    chosen = choose_threads(threads)
    set_num_threads(chosen)
    decodes, prompts = {1: threads[chosen]}, dict[int, float]()
    cost = threads[chosen]
    for size in DECODES[1:] + PROMPTS:
        # a few tokens take little more than one; with many, the time grows with them
        cost *= 2 if size <= PROMPTS[0] else PROMPTS[1] // PROMPTS[0]
        if time.perf_counter() + cost * probe.share > end:
            break
        step = probe.step([1] * size if size in DECODES else [size])
        cost = step()
        if time.perf_counter() + cost * probe.share < end:
            cost = min(cost, step())
        (decodes if size in DECODES else prompts)[size] = cost
    return StepTable(chosen, threads, decodes, prompts)


def _time_threads(step: Callable[[], float], candidates: Sequence[int]) -> dict[int, float]:
    """Seconds of a step of one token with these numbers of threads; a long one's with the first."""
    set_num_threads(candidates[0])
    step()  # what is made at a first call is no part of a step
    threads = {candidates[0]: step()}
    if threads[candidates[0]] > SHORT_STEP:
        return threads
    for count in list(candidates) * RUNS:  # interleaved: a machine has better and worse moments
        set_num_threads(count)
        threads[count] = min(threads.get(count, math.inf), step())
    return threads


def choose_threads(seconds: dict[int, float]) -> int:
    """The first, unless another takes clearly less time."""
    first = next(iter(seconds))
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] <= GAIN * seconds[first] else first


class _Probe:
    """Steps through a model's first layers and its head. share: the part of its layers."""

    def __init__(self, with_cache: WithCache, model_config: ModelConfig, block_size: int) -> None:
        # 8 bits each, at least
        layer_bytes = model_config.num_parameters // model_config.num_layers
        num_layers = min(model_config.num_layers, -(-COLD_BYTES // layer_bytes))
        self.share = num_layers / model_config.num_layers
        self._model_config, self._block_size = model_config, block_size
        self._model: HostModel = with_cache(num_layers, -(-max(PROMPTS) // block_size))

    def step(self, lens: list[int]) -> Callable[[], float]:
        """A function that runs one step over prompts of these lengths and returns its seconds."""
        blocks = -(-max(lens) // self._block_size)
        table = np.tile(np.arange(blocks, dtype=np.int32), (len(lens), 1))
        counts = np.array(lens, np.int64)
        batch = RaggedBatch.of(counts, counts, table, self._block_size)
        input_ids = batch.flat.positions % self._model_config.vocab_size
        last = batch.flat.query_start[1:] - 1

        def run() -> float:
            begin = time.perf_counter()
            hidden = self._model.forward(input_ids, batch)
            middle = time.perf_counter()
            if self._model_config.has_head:
                hidden.logits(last)
            return (middle - begin) / self.share + time.perf_counter() - middle

        return run
