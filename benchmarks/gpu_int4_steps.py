"""A decode step of an 8B in INT4 under other configs of its linears, in the engine's own graph.

    python benchmarks/gpu_int4_steps.py --rows 1 16 --search 1 16 --workers 15 --seconds 140

An engine with random weights computes that many prompts; its decode step is then recorded once for
each variant; replays are interleaved, and variants have the same inputs, attention and head.
First what each kernel costs in the chain: the step without it. Then, with --search, one linear
after the other by every config worth trying, beside what was best until then: configs that are
quick alone need not be so where kernels overlap. Logits are compared with those of the rule.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_int4_layer import LINEARS, compile_case, rule
from gpu_shapes import SHAPES
from gpu_timing import (
    Budget,
    brief,
    gpu_parser,
    num_sms,
    parse_on_gpu,
    precompile,
    replay_interleaved,
    save,
)
from torch import Tensor
from workloads.backends import shape_folder
from workloads.vocabulary import make_folder

from quire.config import EngineConfig
from quire.core.messages import AddRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.startup.start_engine import start_engine
from quire.kernels.formats.fp8 import FP8
from quire.kernels.formats.int4 import Int4
from quire.kernels.operands import QuantSpec
from quire.kernels.triton.attention import attention_plan
from quire.kernels.triton.gemm.int4_config import (
    Int4Config,
    block_rows,
    half_heads_config,
    int4_config,
    shared_memory,
)
from quire.kernels.triton.ops import gpu_linear, int4_linear, paged_attention, words_linear
from quire.quantization.scheme import SCHEMES, Scheme

KEYS = 1950  # of each request, and some more
ROUNDS = 11
MOST_OFF = 0.1  # of logits, relative: sums in other orders, rounded to bfloat16 in each layer
CUTS = (
    (64, 2, 4),
    (32, 4, 4),
    (64, 1, 4),
    (32, 2, 4),
    (64, 4, 8),
    (128, 2, 8),
    (128, 1, 8),
    (128, 1, 4),
    (256, 1, 8),
)
Part = tuple[str, int]


@dataclass(frozen=True)
class Variant:
    """Configs in place of the rule's, by linear, and what is left out of the step.

    instead: functions of modules, by their names, and what is called for them.
    """

    configs: dict[str, Int4Config] = field(default_factory=dict)
    without: str = ""
    instead: tuple[tuple[Any, str, Any], ...] = ()


class Step:
    """The engine's decode step of m requests, which may be recorded again and again."""

    def __init__(self, model: str, group: int) -> None:
        self._model, self.group = SHAPES[model], group
        self.shapes, self.head_dim = self._model.linear_shapes(), self._model.head_dim
        layer = {"layer": (Int4(QuantSpec("int4", group=group)), FP8), "head": (FP8,)}
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.dict(SCHEMES["int4"], {"cuda": Scheme("int4", layer)}),
        ):
            make_folder(shape_folder(f"llama-3.1-{model}"), Path(folder))
            config = EngineConfig.from_options(
                model=folder, load_format="dummy", max_model_len=8192, quantization="int4",
                kv_cache_dtype="fp8", enable_prefix_caching=False,
                gpu_memory_utilization=0.5,
            )  # fmt: skip
            self._core, _ = start_engine(config)
        self._runner: Any = self._core._executor
        self._graphs, self._last = self._runner._graphs, self._runner._batch.last_tokens
        self._num = 0

    def begin(self, m: int) -> None:
        """Bring m requests to where all of them decode."""
        for _ in range(m):
            self._num += 1
            prompt = torch.randint(1000, 100_000, (KEYS,)).tolist()
            sampling = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
            self._core.handle(
                AddRequest(request_id=str(self._num), prompt_token_ids=prompt, sampling=sampling)
            )
        waiting = {str(self._num - i) for i in range(m)}
        while waiting:
            waiting -= {delta.request_id for delta in self._core.step().deltas}
        for _ in range(8):
            self._core.step()
        torch.cuda.synchronize()
        self._part: Part = ("decode", m)
        self._tokens = self._last.clone()

    def end(self) -> None:
        """Let the requests end."""
        while self._core.has_work:
            self._core.step()

    def rule(self, linear: str) -> Int4Config:
        """The config that the engine takes."""
        return rule(self._model, linear, self._part[1], self.group)

    @torch.inference_mode()
    def record(self, variant: Variant) -> Any:
        """A graph of the step."""
        with self._as(variant):
            self._graphs._launch(self._part)
            torch.cuda.synchronize()
            return self._graphs._record(partial(self._graphs._launch, self._part))

    @torch.inference_mode()
    def logits(self, graph: Any) -> Tensor:
        """The logits that a graph computes."""
        self._last.copy_(self._tokens)
        tensors = graph.replay()
        torch.cuda.synchronize()
        found: Tensor = tensors.logits.float()
        return found.clone()

    @contextmanager
    def _as(self, variant: Variant) -> Iterator[None]:
        by_shape = {self.shapes[name]: config for name, config in variant.configs.items()}
        left_out = self.shapes.get(variant.without)
        run = words_linear.WordsLinear.run

        def chosen(m: int, n: int, k: int, *rest: Any, **options: Any) -> Int4Config | None:
            return by_shape.get((n, k)) or int4_config(m, n, k, *rest, **options)

        def run_others(self: Any, config: Any, rows: Tensor, weight: Any, *rest: Any) -> None:
            if (len(weight.words), weight.inputs) != left_out:
                run(self, config, rows, weight, *rest)

        def nothing(*_: Any, **__: Any) -> None:
            pass

        def of_halves(m: int, n: int, k: int, *rest: Any, **options: Any) -> Int4Config | None:
            return by_shape.get((n, k)) or half_heads_config(m, n, k, *rest, **options)

        with ExitStack() as stack:
            patch: Callable[..., Any] = lambda *each: stack.enter_context(mock.patch.object(*each))  # noqa: E731
            patch(int4_linear, "int4_config", chosen)
            patch(int4_linear, "half_heads_config", of_halves)
            for each in variant.instead:
                patch(*each)
            if left_out is not None:
                patch(words_linear.WordsLinear, "run", run_others)
            if variant.without == "attention":
                patch(paged_attention, "decode_attention", nothing)
            if variant.without == "head":
                patch(gpu_linear, "run_ring", nothing)
            yield


def time_interleaved(graphs: dict[str, Any]) -> dict[str, float]:
    """Median microseconds of graphs that are replayed interleaved."""
    return replay_interleaved({name: graph.graph for name, graph in graphs.items()}, ROUNDS)


def candidates(shape: tuple[int, int], linear: str, m: int, group: int) -> list[Int4Config]:
    """Configs worth trying beside the rule's; tiles of QKV hold heads or parts of both halves."""
    n, k = shape
    splits = {"gate_up": (1,), "qkv": (1, 2, 3, 4, 5, 6)}.get(linear, (1, 2, 3, 4, 6, 8))
    found, block_m = [], block_rows(m)
    every = itertools.product(CUTS, splits, (2, 3, 4), (96, 128, None))
    for (block_n, parts, warps), split, stages, registers in every:
        own = -(-k // (256 * parts)) / split  # steps of a program
        programs = -(-n // block_n) * split
        is_even = 2 <= parts * block_m <= max(32, block_m) and (parts < 4 or m == 1)
        is_usual = parts * block_n >= 64 and (
            m <= 8 or linear == "gate_up" or block_n <= (16 if m > 16 else 32) * warps
        )
        if not is_even or not is_usual or (linear == "qkv" and block_n > 128):
            continue
        if block_n >= 128 and m <= 8 and linear in ("o", "down"):
            continue
        if stages > max(2, own) or (split > 1 and own < 2):
            continue
        least = 96 if linear == "qkv" or block_n > 64 else num_sms() - 4
        if linear != "gate_up" and not least <= programs <= 3 * num_sms():
            continue
        each = Int4Config(block_n, parts, stages, split, warps, registers)
        most = 114 if block_n == 64 or registers else 226
        if shared_memory(m, k, group, zeros=False, config=each) <= most * 1024:
            found.append(each)
    return found


def other_limits(rule_of: Callable[[str], Int4Config], m: int) -> dict[str, dict[str, Int4Config]]:
    """Configs that fit more programs on a multiprocessor than a round has, or fewer."""
    if m == 1:
        own = rule_of("gate_up")
        limits = None, 80, 96, 104
        return {f"gate_up in {each} registers": {"gate_up": replace(own, registers=each)}
                for each in limits}  # fmt: skip
    if not 8 < m <= 16:
        return {}
    both = itertools.product(("gate_up", "down"), (2, 3, 4))
    return {f"{name} in {stages} stages": {name: replace(rule_of(name), stages=stages)}
            for name, stages in both}  # fmt: skip


def measure(step: Step, m: int, budget: Budget) -> dict[str, Any]:
    """The rule's step, the step without each of its kernels, and with what was slower."""
    plain = step.record(Variant())
    expected = step.logits(plain)
    rules = {name: step.rule(name) for name in LINEARS}
    heads = int4_config(m, *step.shapes["qkv"], step.group, num_sms(), head_dim=step.head_dim)
    assert heads is not None
    named = {"rule": Variant(), "rule again": Variant()}
    named |= {"qkv in whole heads": Variant({"qkv": heads})}
    named |= {name: Variant(own) for name, own in other_limits(step.rule, m).items()}
    last = (words_linear, "SCALES_FIRST", 0)
    if m == 1:
        named |= {"scales last": Variant(instead=(last,))}
    if m > 4:
        across = (attention_plan, "keeps_requests", lambda _: False)
        late = (paged_attention, "opens_early", lambda *_, **__: False)
        named |= {"runs across requests": Variant(instead=(across,))}
        named |= {"o launched late": Variant(instead=(late,))}
    if 2 < m <= 4:
        few = replace(rules["down"], warps=4, registers=None)
        named |= {"down in 4 warps": Variant({"down": few})}
    without = {f"without {name}": Variant(without=name) for name in (*LINEARS, "attention", "head")}
    graphs = {name: step.record(each) for name, each in named.items()}
    for name, graph in graphs.items():
        error = float((step.logits(graph) - expected).norm() / expected.norm())
        print(f"logits of {name}: {error:.1e} from the rule's", flush=True)
    graphs |= {name: step.record(each) for name, each in without.items()}
    times = time_interleaved(graphs)
    print(f"{m} rows, us of a step:", flush=True)
    for name, us in times.items():
        print(f"  {us:8.1f} {us - times['rule']:+7.1f}  {name}", flush=True)
    return {"m": m, "us": times, "rule": {name: asdict(each) for name, each in rules.items()},
            "left": budget.left}  # fmt: skip


def search(step: Step, m: int, group: int, budget: Budget) -> dict[str, Any]:
    """The best config of one linear after the other."""
    best: dict[str, Int4Config] = {}
    expected = step.logits(step.record(Variant()))
    found: dict[str, Any] = {}
    for linear in ("down", "o", "gate_up", "qkv"):
        base, times = step.record(Variant(best)), {}
        for config in candidates(step.shapes[linear], linear, m, group):
            if budget.left < 4:
                break
            try:
                graph = step.record(Variant(best | {linear: config}))
            except Exception as error:
                print(f"FAILED {linear} {brief(asdict(config))}: {str(error)[:100]}", flush=True)
                continue
            error_of = float((step.logits(graph) - expected).norm() / expected.norm())
            both = time_interleaved({"base": base, "own": graph})
            if error_of < MOST_OFF:
                times[config] = both["own"] - both["base"]
            else:
                print(f"WRONG {linear} {brief(asdict(config))}: {error_of:.1e}", flush=True)
        order = sorted(times, key=lambda each: times[each])
        shown = "; ".join(f"{times[each]:+.1f} {brief(asdict(each))}" for each in order[:8])
        print(f"  {m} rows {linear} ({brief(asdict(step.rule(linear)))}): {shown}", flush=True)
        found[linear] = [asdict(each) | {"us": times[each]} for each in order[:8]]
        if order and times[order[0]] < -1.0:
            best[linear] = order[0]
    names = {"rule": Variant(), "searched": Variant(best)}
    last = time_interleaved({name: step.record(each) for name, each in names.items()})
    print(f"  {m} rows: rule {last['rule']:.1f}, searched {last['searched']:.1f} us", flush=True)
    return {"m": m, "searched": found, "us": last}


def main() -> None:
    """Measure what the command line names."""
    parser = gpu_parser(__doc__, "gpu_int4_steps")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--search", type=int, nargs="*", default=[], help="rows of all configs")
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--model", default="8b")
    args = parse_on_gpu(parser)
    budget = Budget(args.seconds)
    shapes = SHAPES[args.model].linear_shapes()
    cases = [
        (args.model, linear, m, args.group, config)
        for m, linear in itertools.product(args.search, LINEARS)
        for config in candidates(shapes[linear], linear, m, args.group)
    ]
    for m in args.rows:
        rule_of = partial(rule, SHAPES[args.model], m=m, group=args.group)
        for own in other_limits(rule_of, m).values():
            cases += [(args.model, linear, m, args.group, each) for linear, each in own.items()]
    precompile(compile_case, cases, args.workers, Budget(min(45.0, budget.left / 3)))
    step = Step(args.model, args.group)
    print(f"engine ready, {budget.left:.0f} s left", flush=True)
    rows = []
    for m in args.rows:
        step.begin(m)
        rows.append(measure(step, m, budget))
        if m in args.search:
            rows.append(search(step, m, args.group, budget))
        step.end()
        save(args, model=args.model, group=args.group, rows=rows)


if __name__ == "__main__":
    main()
