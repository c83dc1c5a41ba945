"""Quire: the engine core, without tokenizer or server. Equal prompts share blocks of the cache.

Imports no torch by itself: an engine's process may need none.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

from peers.worker import WARM_UP, Load, Prompt, serve
from quire.config import EngineConfig
from quire.core.messages import AbortRequests, AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.startup.torch_import import dedicated_start
from quire.version import __version__


class Quire:
    """Options: settings of the engine by their names.

    alone: the process is all the engine's, and starts as that of a server does.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone

    def load(self, load: Load) -> dict[str, Any]:
        block_size = 16
        config = EngineConfig.from_options(
            model=load.model,
            device="cpu",
            threads=load.threads,
            max_model_len=load.max_len,
            max_num_seqs=load.streams,
            block_size=block_size,
            num_blocks=load.streams * -(-load.max_len // block_size),
            **load.options,
        )
        with dedicated_start(config) if self._alone else nullcontext():
            from quire.engine.startup.start_engine import start_engine

            self._core, info = start_engine(config)
        from quire.engine.startup.footprint import weights_by_format
        from quire.kernels.cpu import native
        from quire.models.config.model_config import ModelConfig

        self._num_requests = 0
        settings = load.options | {"dtype": info.dtype, "kv_cache_dtype": info.kv_cache_dtype}
        settings["compiled_kernels"] = native.library() is not None
        answer = {"version": __version__, "settings": settings}
        if info.quantization != "none":  # what a token reads is no longer what the file holds
            model_config = ModelConfig.from_folder(load.model)
            bytes_of = weights_by_format(config, model_config, load.model)
            read = sum(
                size for weight_format, size in bytes_of.items() if weight_format != info.dtype
            )
            answer["weights_gb"] = round(read / 1e9, 3)
        return answer

    def prefill(self, prompt: Prompt) -> int:
        self._prompt = prompt
        self._add(prompt, 1)
        while True:
            for _, token_ids in self._step():
                return token_ids[0]

    def decode(self, streams: int, steps: int) -> tuple[float, int]:
        # of streams that begin one after the other the first must not end before the last
        num_tokens_each = steps + WARM_UP + streams
        running = [self._add(self._prompt, num_tokens_each) for _ in range(streams)]
        late = dict.fromkeys(running, 0)
        while min(late.values()) <= WARM_UP:
            for request_id, token_ids in self._step():
                late[request_id] += len(token_ids)
        begin, num_tokens = time.perf_counter(), 0
        for _ in range(steps):
            num_tokens += sum(len(token_ids) for _, token_ids in self._step())
        seconds = time.perf_counter() - begin
        self._core.handle(AbortRequests(request_ids=running))
        while self._core.has_work:
            self._core.step()
        return seconds, num_tokens

    def _add(self, prompt: Prompt, max_tokens: int) -> str:
        self._num_requests += 1
        request_id = str(self._num_requests)
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self._core.handle(
            AddRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)
        )
        return request_id

    def _step(self) -> list[tuple[str, list[int]]]:
        """The tokens of a step, by request. Raises RuntimeError where one failed."""
        deltas = self._core.step().deltas
        for delta in deltas:
            if delta.error is not None:
                raise RuntimeError(delta.error)
        return [(delta.request_id, delta.token_ids) for delta in deltas if delta.token_ids]


if __name__ == "__main__":
    serve(Quire(alone=True))
