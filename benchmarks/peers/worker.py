"""One engine in a process of its own, driven by lines of JSON: one request in, one answer out.

Runs in the engine's own virtual environment, so it imports the standard library and, for one
request, NumPy. Requests:

    {"do": "load", "model": PATH, "threads": 2, "max_len": 640, "streams": 16, "options": {}}
    {"do": "prefill", "prompt": [7, 9]}                        seconds, token
    {"do": "decode", "streams": 8, "steps": 32}                seconds, tokens
    {"do": "bandwidth", "threads": 2}                          read_gb_per_s
    {"do": "quit"}

Every answer has `age` (seconds since the process began), `cpu` (seconds of processor time it took)
and `peak_bytes` (the most memory that was resident). A request that fails is answered with `error`,
and the next one is taken.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

Prompt = list[int]
ENGINES = {
    "llama_cpp": "llama.cpp",
    "openvino": "OpenVINO GenAI",
    "transformers": "transformers",
    "quire": "**Quire**",
}
WARM_UP = 2  # steps of decoding whose time does not count


@dataclass(frozen=True)
class Load:
    """Settings of an engine. max_len: tokens of prompt and answer that a stream may reach."""

    model: Path
    threads: int
    max_len: int
    streams: int
    options: dict[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """Interface of each peer's file; tokens are chosen greedily, and ends of text ignored."""

    def load(self, load: Load) -> dict[str, Any]:
        """Get ready; returns version and settings that the result file should tell."""

    def prefill(self, prompt: Prompt) -> int:
        """The first token after a prompt that it has not seen."""

    def decode(self, streams: int, steps: int) -> tuple[float, int]:
        """Seconds and tokens of `steps` steps with this number of streams.

        All continue the last prompt and may share its KV cache.
        """


def serve(engine: Engine) -> None:
    """Serve commands on standard input until it ends. Libraries' output goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answer_all(engine, sys.stdin, answers)


def answer_all(engine: Engine, requests: Iterable[str], answers: TextIO) -> None:
    """The loop of `serve` on any lines."""
    for line in requests:
        request = json.loads(line)
        what = request.pop("do")
        if what == "quit":
            return
        try:
            found = _answer(engine, what, request)
        except Exception as failure:  # told to the driver, who goes on with other engines
            found = {"error": f"{type(failure).__name__}: {failure}"}
        spent = {"age": age(), "cpu": time.process_time(), "peak_bytes": peak_bytes()}
        print(json.dumps(found | spent), file=answers)


def _answer(engine: Engine, what: str, request: dict[str, Any]) -> dict[str, Any]:
    if what == "load":
        return engine.load(Load(**request | {"model": Path(request["model"])}))
    if what == "bandwidth":
        return {"read_gb_per_s": read_bandwidth(request["threads"])}
    if what == "decode":
        seconds, tokens = engine.decode(request["streams"], request["steps"])
        return {"seconds": seconds, "tokens": tokens}
    begin = time.perf_counter()
    token = engine.prefill(request["prompt"])
    return {"seconds": time.perf_counter() - begin, "token": token}


def read_bandwidth(threads: int) -> float:
    """GB/s of reading 256 MiB with each thread, the best of three times."""
    import numpy as np

    parts = [np.ones(1 << 26, np.float32) for _ in range(threads)]
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            begin = time.perf_counter()
            list(pool.map(np.max, parts))
            times.append(time.perf_counter() - begin)
    return sum(part.nbytes for part in parts) / 1e9 / min(times)


def age() -> float:
    """Seconds since this process began, by the kernel's clock."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    begin = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begin


def peak_bytes() -> int:
    """The most memory that was ever resident, pages of mapped files included."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
