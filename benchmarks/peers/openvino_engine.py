"""OpenVINO GenAI: its continuous batching pipeline, stepped by hand, in its own environment."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from peers.worker import WARM_UP, Load, Prompt, serve


class OpenVino:
    """Options: `max_num_batched_tokens`. Prompts that are equal share the blocks of their keys."""

    def load(self, load: Load) -> dict[str, Any]:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = load.options["max_num_batched_tokens"]
        scheduler.max_num_seqs = load.streams
        scheduler.enable_prefix_caching = True
        self._pipeline = genai.ContinuousBatchingPipeline(
            load.model,
            scheduler,
            "CPU",
            {"INFERENCE_NUM_THREADS": load.threads, "PERFORMANCE_HINT": "LATENCY"},
        )
        self._num_requests = 0
        return {"version": genai.__version__, "settings": load.options}

    def prefill(self, prompt: Prompt) -> int:
        self._prompt = prompt
        handle = self._add(prompt, 1)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return int(_tokens(handle)[0])

    def decode(self, streams: int, steps: int) -> tuple[float, int]:
        max_len = steps + WARM_UP + streams
        handles = [self._add(self._prompt, max_len) for _ in range(streams)]
        late = _Count(handles)
        while late.least() < WARM_UP:
            self._pipeline.step()
        late = _Count(handles)
        begin = time.perf_counter()
        for _ in range(steps):
            self._pipeline.step()
        seconds = time.perf_counter() - begin
        num_tokens = late.total()
        for handle in handles:
            handle.cancel()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return seconds, num_tokens

    def _add(self, prompt: Prompt, max_tokens: int) -> Any:
        self._num_requests += 1
        config = genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)
        tokens = ov.Tensor(np.array([prompt], dtype=np.int64))
        return self._pipeline.add_request(self._num_requests, tokens, config)


class _Count:
    """Tokens that requests have got since this was made."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles
        self._counts = [0] * len(handles)
        self.least()
        self._counts = [0] * len(handles)

    def least(self) -> int:
        for number, handle in enumerate(self._handles):
            self._counts[number] += len(_tokens(handle))
        return min(self._counts)

    def total(self) -> int:
        self.least()
        return sum(self._counts)


def _tokens(handle: Any) -> list[int]:
    """The tokens that a request got since the last reading."""
    found: list[int] = []
    while handle.can_read():
        for output in handle.read().values():
            found += output.generated_ids
    return found


if __name__ == "__main__":
    serve(OpenVino())
