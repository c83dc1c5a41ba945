"""Time of a decode step on a CPU: microseconds of each stage, interpreter included.

    python benchmarks/step_overhead.py                                   # the bundled model
    python benchmarks/step_overhead.py --model llama-3.2-1b --batch-sizes 1,16

An engine core runs greedy (or, with --random, drawn) requests of --context tokens, with each stage
wrapped in a clock; the median step counts. Where modules run the model, operations are inside
`forward` (`quire.kernels`), and what forward takes beyond them is the interpreter between them and
the embedding.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import record

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.core import model_runner, running_requests
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.input_batch import InputBatch
from quire.engine.startup import start_engine
from quire.kernels.dispatch import Kernels, kernels_for
from quire.kernels.rope_table import RopeTable
from quire.layers.embedding import VocabParallelEmbedding
from quire.layers.rope import RotaryEmbedding
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading import loader
from quire.models.runtimes.compiled_decoder import CompiledDecoder
from quire.sampling.sampler import Sampler
from quire.scheduler.scheduler import Scheduler

STAGES: list[tuple[Any, str]] = [
    (Scheduler, "schedule"),
    (running_requests.RunningRequests, "apply_differences"),
    (InputBatch, "prepare"),
    (CompiledDecoder, "forward"),
    (RopeTable, "up_to"),
    (CompiledDecoder, "logits"),
    (LlamaForCausalLM, "forward"),
    (VocabParallelEmbedding, "forward"),
    (RotaryEmbedding, "forward"),
    (LlamaForCausalLM, "compute_logits"),
    (Sampler, "sample"),
    (running_requests.RunningRequests, "sample"),
    (running_requests.RunningRequests, "process_hidden_states"),
    (model_runner.ModelRunner, "run"),
    (Scheduler, "update"),
    (Scheduler, "observe"),
    (EngineCore, "_take_output"),
    (EngineCore, "step"),
]


class Clocks:
    """Seconds and calls of each name, one step at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.now: dict[str, float] = defaultdict(float)
        self.steps: list[dict[str, float]] = []

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.now[name] += self.clock() - begin

        return timed

    def end_step(self) -> None:
        self.steps.append(dict(self.now))
        self.now.clear()

    def medians(self) -> dict[str, float]:
        """Microseconds."""
        names = dict.fromkeys(name for step in self.steps for name in step)
        return {
            name: round(1e6 * statistics.median(step.get(name, 0.0) for step in self.steps), 1)
            for name in names
        }


def timed_kernels(clocks: Clocks) -> Kernels:
    kernels = kernels_for("cpu")
    names = [field.name for field in fields(Kernels)]
    if not kernels.fuses:  # which layers tell by this one
        names.remove("rms_norm_linear")
    if not kernels.fuses_rope:  # and by this one
        names.remove("qkv_rope_write_kv")
    return replace(
        kernels, **{name: clocks.wrap(f"op {name}", getattr(kernels, name)) for name in names}
    )


def measure(config: EngineConfig, batch: int, args: argparse.Namespace, clocks: Clocks) -> None:
    core, _ = start_engine.start_engine(config)
    sampling = SamplingParams(
        temperature=1.0 if args.random else 0.0,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=1,
        max_tokens=args.steps + 40,
        ignore_eos=True,
        logprobs=args.logprobs,
    )
    for number in range(batch):
        prompt = [(7 * number + index) % 500 + 3 for index in range(args.context)]
        core.handle(AddRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
    while sum(len(delta.token_ids) for delta in core.step().deltas) < batch:
        pass
    for _ in range(10):
        core.step()
    clocks.steps.clear()
    clocks.now.clear()
    for _ in range(args.steps):
        core.step()
        clocks.end_step()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="quire-tiny", help="a shape's name, or a folder")
    parser.add_argument("--batch-sizes", default="1,8,64")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--random", action="store_true", help="temperature 1 instead of 0")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--logprobs", type=int)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="the engine thread's processor time: the same on a busy machine, with one thread",
    )
    parser.add_argument("--plain", action="store_true", help="one clock, around the whole step")
    parser.add_argument("--out", help="folder of the result file; nothing is written without it")
    args = parser.parse_args()
    shape = Path(__file__).parent / "shapes" / args.model
    clocks = Clocks(time.thread_time if args.cpu_time else time.perf_counter)
    for owner, name in STAGES[-1:] if args.plain else STAGES:
        setattr(owner, name, clocks.wrap(f"{owner.__name__}.{name}", getattr(owner, name)))
    if not args.plain:
        loader.kernels_for = lambda _: timed_kernels(clocks)  # type: ignore[attr-defined]
    found = {}
    for batch in map(int, args.batch_sizes.split(",")):
        config = EngineConfig.from_options(
            model=str(shape) if shape.is_dir() else args.model,
            load_format="dummy" if shape.is_dir() else "auto",
            dtype=args.dtype,
            device="cpu",
            threads=args.threads,
            num_blocks=batch * -(-(args.context + args.steps + 50) // 16) + 8,
            max_model_len=args.context + args.steps + 50,
            enable_prefix_caching=False,
        )
        measure(config, batch, args, clocks)
        found[str(batch)] = clocks.medians()
    print(f"{'microseconds of a step, batch':34}" + "".join(f"{batch:>10}" for batch in found))
    for stage in dict.fromkeys(stage for medians in found.values() for stage in medians):
        print(f"{stage:34}" + "".join(f"{m.get(stage, 0.0):>10}" for m in found.values()))
    if args.out:
        record.save("step_overhead", {"model": args.model, "batches": found}, Path(args.out))


if __name__ == "__main__":
    main()
