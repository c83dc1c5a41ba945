"""An engine without a model: the real loop and scheduler, and tokens that cost nothing. No torch.

For measuring everything around a model. It answers with arbitrary ordinary tokens, and with made-up
log-probabilities and embeddings where they are asked for, and ignores structured outputs.
"""

from __future__ import annotations

import struct

from quire.config import EngineConfig
from quire.core.messages import TokenLogprobs
from quire.core.scheduler_output import (
    ModelRunnerOutput,
    SampleResult,
    ScheduledRequest,
    SchedulerOutput,
)
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.engine_info import EngineInfo
from quire.engine.core.executor import UniprocExecutor
from quire.engine.startup.footprint import usable_blocks
from quire.engine.startup.resolved_config import request_limits
from quire.errors import ConfigError
from quire.hub import config_folder
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.models.config.model_config import ModelConfig
from quire.models.config.pooling_config import read_pooling
from quire.scheduler.scheduler import Scheduler

DEFAULT_BLOCKS = 1 << 16  # at most
MOST_BLOCKS = 1 << 24  # which take seconds to list, and gigabytes
_STRIDE = 7  # so that neighbouring tokens differ in more than their last digit


def start_null_engine(config: EngineConfig) -> tuple[EngineCore, EngineInfo]:
    """An engine with a model's sizes alone. Raises CheckpointError or ConfigError."""
    path = config_folder(config)
    model_config = ModelConfig.from_folder(path)
    max_model_len = config.model.max_model_len or model_config.max_position_embeddings
    config = config.resolved("cpu", max_model_len)
    block_size = config.cache.block_size
    usable = usable_blocks(config, max_model_len)
    num_blocks = config.cache.num_blocks or min(usable, DEFAULT_BLOCKS)
    if num_blocks > MOST_BLOCKS:
        raise ConfigError(
            f"num_blocks must be at most {MOST_BLOCKS} without a model, not {num_blocks}"
        )
    num_slots = num_blocks * block_size
    limits = request_limits(config, model_config, min(max_model_len, num_slots), num_slots)

    def make_scheduler() -> Scheduler:
        is_caching = config.cache.enable_prefix_caching
        kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching=is_caching)
        return Scheduler(config.scheduler, kv, limits.max_model_len)

    info = EngineInfo(
        model_name=config.model.public_name,
        limits=limits,
        eos_token_ids=[],  # an arbitrary token is no reason to end
        dtype="null",
        device="null",
        num_blocks=num_blocks,
        block_size=block_size,
        kv_cache_bytes=0,
        pooling=read_pooling(path, config.model.pooling, model_config.hidden_size),
    )
    runner = NullRunner(model_config.vocab_size, model_config.hidden_size)
    return EngineCore(make_scheduler, UniprocExecutor(runner), limits), info


class NullRunner:
    """Draws tokens by their position alone, from the middle of the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        self._first, self._span = vocab_size // 4, max(1, vocab_size // 4)
        self._hidden_size = hidden_size
        self._vectors: dict[str, bytes] = {}  # request id → the embedding that it will get
        self._scored: dict[str, list[int]] = {}  # request id → its prompt, if it asks for scores

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Return made-up tokens for a plan at once."""
        for request_id in plan.removed_ids:
            self._scored.pop(request_id, None)
            self._vectors.pop(request_id, None)
        for request in plan.new_requests:
            sampling = request.sampling
            if request.pooling is not None:
                size = request.pooling.dimensions or self._hidden_size
                self._vectors[request.request_id] = struct.pack("<f", 1.0) + bytes(4 * (size - 1))
            if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
                prompt = request.token_ids[: request.num_prompt_tokens]
                self._scored[request.request_id] = (
                    [] if sampling.prompt_logprobs is None else prompt
                )
        return ModelRunnerOutput(results=[self._result(entry) for entry in plan.scheduled])

    def reset(self) -> None:
        """Drop all requests."""
        self._scored.clear()
        self._vectors.clear()

    def _result(self, entry: ScheduledRequest) -> SampleResult:
        end = entry.start + entry.num_tokens
        result = SampleResult()
        if entry.request_id in self._vectors:
            result.embedding = self._vectors[entry.request_id] if entry.samples else None
        elif entry.samples:
            result.token_id = self._first + end * _STRIDE % self._span
        if entry.request_id in self._scored:
            prompt = self._scored[entry.request_id]
            result.prompt_logprobs = [_score(i) for i in prompt[entry.start + 1 : end + 1]]
            result.logprobs = None if result.token_id is None else _score(result.token_id)
        return result


def _score(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_ids=[token_id], logprobs=[0.0], rank=1)
