"""Equality of answers by batch-invariant kernels on one GPU, and their cost beside the usual ones.

    python benchmarks/gpu_invariance.py --shapes llama-3.1-8b --quantizations fp8

Random weights in real shapes, whose scores lie close together, and temperature 0. The same prompts
are answered one by one and then all at once beside others that come and go; told is how many
answers differ. Then times, both engines by turns: the prefill of a prompt, and decode steps of one
request and of 64. Rows of other shapes and weights, from earlier runs on such a GPU, stay in the
result file.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from rich.console import Console
from rich.table import Table

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup.start_engine import start_engine

NAME = "gpu_invariance"
SHAPES = Path(__file__).parent / "shapes"
COMPARED, OTHERS, ANSWER = 12, 36, 48  # requests, and tokens
PROMPT, CONTEXT, STEPS, ROUNDS = 1950, 1024, 40, 5
BLOCKS = 8192  # more than all that runs at a time needs


class Driver:
    """One engine, its steps taken here."""

    def __init__(self, shape: str, quantization: str, *, batch_invariant: bool) -> None:
        self._core, _ = start_engine(
            EngineConfig.from_options(
                model=str(SHAPES / shape),
                load_format="dummy",
                device="cuda",
                dtype="bfloat16",
                quantization=quantization,
                max_model_len=4096,
                num_blocks=BLOCKS,
                enable_prefix_caching=False,
                batch_invariant=batch_invariant,
            )
        )
        self.answers: dict[str, list[int]] = {}

    @property
    def core(self) -> EngineCore:
        return self._core

    def add(self, name: str, prompt: list[int], num_tokens: int) -> None:
        """Add a request at temperature 0 for this exact number of tokens."""
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        self._core.handle(AddRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))

    def step(self) -> int:
        """One step → tokens that it gave."""
        deltas = self._core.step().deltas
        for delta in deltas:
            self.answers.setdefault(delta.request_id, []).extend(delta.token_ids)
        return sum(len(delta.token_ids) for delta in deltas)

    def finish(self) -> None:
        """Run until nothing is left."""
        while self._core.has_work:
            self.step()


def prompts(count: int, longest: int, seed: int) -> list[list[int]]:
    """Random prompts of random lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1000, 100_000, rng.integers(8, longest)).tolist() for _ in range(count)]


def differing(driver: Driver) -> int:
    """Number of the compared answers that are not the same alone and among others."""
    compared, others = prompts(COMPARED, 700, 1), prompts(OTHERS, 700, 2)
    for number, prompt in enumerate(compared):
        driver.add(f"alone{number}", prompt, ANSWER)
        driver.finish()
    for number, prompt in enumerate(others):
        driver.add(f"other{number}", prompt, 8 + number)
        if number % 3 == 0:
            driver.add(f"among{number // 3}", compared[number // 3], ANSWER)
        driver.step()
    driver.finish()
    answers = driver.answers
    return sum(answers[f"alone{n}"] != answers[f"among{n}"] for n in range(COMPARED))


def times(drivers: list[Driver]) -> list[dict[str, float]]:
    """Milliseconds of a prompt and of decode steps for each driver; the best rounds."""
    found: list[dict[str, list[float]]] = [{} for _ in drivers]
    for number in range(ROUNDS):
        for driver, rounds in zip(drivers, found, strict=True):
            rounds.setdefault("prefill", []).append(_prefill(driver, number))
    for batch in (1, 64):
        for driver in drivers:
            _begin(driver, batch)
        for _ in range(ROUNDS):
            for driver, rounds in zip(drivers, found, strict=True):
                rounds.setdefault(f"decode_{batch}", []).append(_decode(driver))
        for driver in drivers:
            driver.finish()
    return [{name: 1e3 * min(each) for name, each in rounds.items()} for rounds in found]


def _prefill(driver: Driver, number: int) -> float:
    prompt = np.random.default_rng(number).integers(1000, 100_000, PROMPT).tolist()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    driver.add(f"prefill{number}", prompt, 1)
    driver.finish()
    return time.perf_counter() - begin


def _begin(driver: Driver, batch: int) -> None:
    """Start this number of requests, and wait until all are decoding."""
    for number, prompt in enumerate(prompts(batch, 9, 3)):
        driver.add(f"decode{batch}-{number}", (prompt * CONTEXT)[:CONTEXT], (ROUNDS + 2) * STEPS)
    while driver.step() < batch:
        pass


def _decode(driver: Driver) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS):
        driver.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / STEPS


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--shapes", nargs="+", default=["llama-3.1-8b", "llama-3.2-1b"])
    parser.add_argument("--quantizations", nargs="+", default=["none", "fp8"])
    args = parser.parse_args()
    record.require_gpu()
    gpu, rows = torch.cuda.get_device_name(), list[dict[str, Any]]()
    for shape, quantization in itertools.product(args.shapes, args.quantizations):
        drivers = [Driver(shape, quantization, batch_invariant=each) for each in (False, True)]
        differ, each_ms = [differing(driver) for driver in drivers], times(drivers)
        for is_invariant in (False, True):
            row = {"shape": shape, "quantization": quantization, "batch_invariant": is_invariant}
            row |= {"compared": COMPARED, "differing": differ[is_invariant]}
            rows.append(row | {"ms": each_ms[is_invariant]})
        del drivers
        torch.cuda.empty_cache()
    show(rows)
    measured = {"gpu": gpu, "rows": rows + earlier(rows, gpu, args.out)}
    print(record.save(NAME, measured, args.out))


def earlier(rows: list[dict[str, Any]], gpu: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of other shapes and weights from earlier runs on the same kind of GPU."""
    path = folder / f"{NAME}.json"
    found = json.loads(path.read_text()) if path.is_file() else {"gpu": None}
    earlier = found["rows"] if found["gpu"] == gpu else []
    new = {weights(row) for row in rows}
    return [row for row in earlier if weights(row) not in new]


def weights(row: dict[str, Any]) -> tuple[str, str]:
    """The shape and format of a row's weights."""
    return row["shape"], row.get("quantization", "none")


def show(rows: list[dict[str, Any]]) -> None:
    """A table, with how many times as long each step takes."""
    table = Table("model", "weights", "kernels", "answers that differ", *rows[0]["ms"])
    for usual, row in zip(rows[::2] + rows[::2], rows[::2] + rows[1::2], strict=True):
        ratios = [f"{ms:.2f} ms ({ms / usual['ms'][what]:.2f})" for what, ms in row["ms"].items()]
        name = "batch-invariant" if row["batch_invariant"] else "usual"
        table.add_row(*weights(row), name, f"{row['differing']} of {row['compared']}", *ratios)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
