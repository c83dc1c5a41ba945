"""Prefill and decode speed on a CPU beside transformers, in one run, interleaved.

    python benchmarks/cpu_model.py --threads 2

Random weights in the shape of Llama-3.2-1B, bfloat16, greedy, all prompts distinct, prefix caching
off. Each round runs both engines at every batch size, one right after the other and each first in
turn; medians of the rounds are reported, and of their ratios, which a busy machine blurs less.
The floor of a decode step is the bytes of the weights over the memory bandwidth, which is
measured in the same run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from cpu_limits import read_bandwidth
from record import save
from rich.console import Console
from rich.table import Table

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.startup.start_engine import start_engine
from quire.kernels.cpu.native import set_num_threads

SHAPE = Path(__file__).parent / "shapes" / "llama-3.2-1b"


class Engine(Protocol):
    """Anything that can run a batch of prompts."""

    def run(self, prompts: list[list[int]], num_tokens: int) -> tuple[float, float, int]:
        """Seconds until every prompt has its first token; seconds and tokens after that."""


class Ours:
    """The engine core, without tokenizer or server."""

    def __init__(self, threads: int, max_model_len: int) -> None:
        self._core, _ = start_engine(
            EngineConfig.from_options(
                model=str(SHAPE),
                load_format="dummy",
                dtype="bfloat16",
                device="cpu",
                threads=threads,
                max_model_len=max_model_len,
                enable_prefix_caching=False,
                max_num_seqs=64,
            )
        )
        self._runs = 0

    def run(self, prompts: list[list[int]], num_tokens: int) -> tuple[float, float, int]:
        self._runs += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        begin = time.perf_counter()
        for index, prompt in enumerate(prompts):
            self._core.handle(
                AddRequest(
                    request_id=f"{self._runs}/{index}", prompt_token_ids=prompt, sampling=sampling
                )
            )
        started: set[str] = set()
        first, num_late = begin, 0
        while self._core.has_work:
            deltas = [delta for delta in self._core.step().deltas if delta.token_ids]
            num_late += len(deltas)
            fresh = {delta.request_id for delta in deltas} - started
            if fresh:
                started |= fresh
                first, num_late = time.perf_counter(), 0
        return first - begin, time.perf_counter() - first, num_late


class Transformers:
    """The architecture in transformers: one batch without padding, its own KV cache."""

    def __init__(self) -> None:
        import transformers

        config = transformers.AutoConfig.from_pretrained(SHAPE)
        torch.manual_seed(0)
        self._model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        self._model.eval()
        self._make_cache = partial(transformers.DynamicCache, config=config)

    @torch.inference_mode()
    def run(self, prompts: list[list[int]], num_tokens: int) -> tuple[float, float, int]:
        begin = time.perf_counter()
        cache = self._make_cache()
        # by position, as versions name it differently
        output = self._model(
            torch.tensor(prompts), None, None, cache, use_cache=True, logits_to_keep=1
        )
        token = output.logits[:, -1:].argmax(-1)
        first = time.perf_counter()
        for _ in range(num_tokens - 1):
            output = self._model(token, None, None, cache, use_cache=True)
            token = output.logits[:, -1:].argmax(-1)
        decode = time.perf_counter() - first
        return first - begin, decode, len(prompts) * (num_tokens - 1)


def measure(engine: Engine, batch: int, args: argparse.Namespace, seed: int) -> dict[str, float]:
    rng = random.Random(seed)
    prompts = [[rng.randrange(1000, 128000) for _ in range(args.input_len)] for _ in range(batch)]
    prefill, decode, num_late = engine.run(prompts, args.output_len)
    return {
        "prefill_tokens_per_s": batch * args.input_len / prefill,
        "decode_tokens_per_s": num_late / decode,
        "decode_step_ms": decode / num_late * batch * 1e3,
    }


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(r[key] for r in rounds), 2) for key in rounds[0]}


def ratios(rounds: dict[tuple[str, int], list[dict[str, float]]], batch: int) -> dict[str, float]:
    """Ours over transformers', tokens/s: the median of what the rounds gave."""
    pairs = list(zip(rounds["quire", batch], rounds["transformers", batch], strict=True))
    return {"batch": batch} | {
        phase: round(statistics.median(a[key] / b[key] for a, b in pairs), 2)
        for phase, key in (("prefill", "prefill_tokens_per_s"), ("decode", "decode_tokens_per_s"))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-sizes", default="1,8,16")
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="cpu_model", help="name of the result file")
    args = parser.parse_args()

    set_num_threads(args.threads)
    bandwidth = 1e9 * read_bandwidth()
    engines: dict[str, Engine] = {
        "quire": Ours(args.threads, args.input_len + args.output_len),
        "transformers": Transformers(),
    }
    batches = [int(b) for b in args.batch_sizes.split(",")]
    rounds: dict[tuple[str, int], list[dict[str, float]]] = {}
    for number in range(args.rounds + 1):  # round 0 warms up
        for batch in batches if number else batches[:1]:
            for name in sorted(engines, reverse=number % 2 == 0):
                result = measure(engines[name], batch, args, seed=number)
                print(f"round {number} batch {batch} {name}: {result}", flush=True)
                if number:
                    rounds.setdefault((name, batch), []).append(result)

    rows: list[dict[str, Any]] = [
        {"engine": name, "batch": batch} | medians(found) for (name, batch), found in rounds.items()
    ]
    save(
        args.name,
        {
            "input_len": args.input_len,
            "output_len": args.output_len,
            "rounds": args.rounds,
            "read_bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
            "rows": rows,
            "ratios": [ratios(rounds, batch) for batch in batches],
        },
    )
    show(rows)


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="Llama-3.2-1B shape, bfloat16")
    for column in ("batch", "engine", "prefill tokens/s", "decode tokens/s", "decode step ms"):
        table.add_column(column, justify="right")
    for row in sorted(rows, key=lambda r: (r["batch"], r["engine"])):
        table.add_row(
            str(row["batch"]),
            row["engine"],
            f"{row['prefill_tokens_per_s']:.0f}",
            f"{row['decode_tokens_per_s']:.1f}",
            f"{row['decode_step_ms']:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
