"""Checks and times the drawing of tokens on a GPU beside what PyTorch offers, inside CUDA graphs.

python benchmarks/gpu_sampling.py --seconds 200

Each case is S rows of logits with one set of sampling params. "model" logits fall off as a language
model's do; "flat" ones are near each other, so that filters keep tens of thousands. PyTorch's
methods are argmax, softmax and multinomial, and a sort with cumulative sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import gpu_timing
import numpy as np
import torch
from gpu_timing import (
    DEVICE,
    Budget,
    copies_beyond_cache,
    gpu_parser,
    parse_on_gpu,
    save,
    time_graph,
)
from torch import Tensor

from quire.core.sampling_params import SamplingParams
from quire.kernels.triton.sampling.draw_kernels import Cut
from quire.sampling.device_sampler import DeviceSampler
from quire.sampling.host_logits import History
from quire.sampling.sampler import Sampler
from quire.sampling.sampling_state import SamplingState

VOCAB = 128_256
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(temperature=0.8),
    "top-k 50": SamplingParams(top_k=50),
    "top-p 0.95": SamplingParams(top_p=0.95),
    "top-k 50, top-p 0.9": SamplingParams(top_k=50, top_p=0.9, temperature=0.7),
    "min-p 0.05": SamplingParams(min_p=0.05),
}
CUTS = [Cut(), Cut(finders_per_sm=8), Cut(per_sm=16), Cut(piece=2048, per_sm=8)]


def make_logits(kind: str, count: int) -> Tensor:
    """[count, VOCAB] in float32."""
    noise = torch.randn(count, VOCAB, device=DEVICE)
    if kind == "flat":
        return noise
    ranks = torch.argsort(torch.rand(count, VOCAB, device=DEVICE), dim=1) + 1  # Zipf's law
    return -1.2 * ranks.float().log() + 0.5 * noise + 15


def torch_draw(params: SamplingParams) -> Callable[[Tensor], Tensor]:
    """The usual PyTorch code that draws with these sampling params."""
    if params.is_greedy:
        return lambda logits: logits.argmax(-1)

    def draw(logits: Tensor) -> Tensor:
        probs = torch.softmax(logits / params.temperature, -1)
        if params.min_p > 0:
            probs = probs.where(probs >= params.min_p * probs.amax(-1, keepdim=True), 0.0)
        if params.top_k <= 0 and params.top_p == 1.0:
            return torch.multinomial(probs, 1)
        probs, ids = probs.sort(dim=-1, descending=True)
        if params.top_k > 0:
            probs[:, params.top_k :] = 0.0
        passed = probs.cumsum(-1)
        probs = probs.where(passed - probs < params.top_p * passed[:, -1:], 0.0)
        return ids.gather(1, torch.multinomial(probs, 1))

    return draw


def measure_case(kind: str, count: int, name: str, cuts: list[Cut]) -> dict[str, Any]:
    """Times of one case in microseconds: each cut's, PyTorch's; and whether the host agrees."""
    state = SamplingState(count, VOCAB)
    for row in range(count):
        state.set_row(row, PARAMS[name], seed=row, eos_token_ids=[], bad_words_ids=[])
    copies = copies_beyond_cache(count * VOCAB * 4, 4)
    inputs = [make_logits(kind, count) for _ in range(copies)]
    rows = torch.arange(count, dtype=torch.int32, device=DEVICE)
    positions = torch.full_like(rows, 7)
    known = np.full(count, 7)
    few = list(range(min(count, 16)))
    expected = Sampler(state).sample(
        inputs[0][: len(few)].cpu().numpy(),
        few,
        History(np.zeros((count, 8), np.int32), known, known),
    )
    times, wrong = [], 0
    for cut in cuts:
        sampler = DeviceSampler(state, count, VOCAB, DEVICE, cut)
        sampler.upload(range(count))
        tokens, _ = sampler.sample(inputs[0], rows, positions)
        wrong += tokens.tolist()[: len(few)] != expected.token_ids
        calls = [lambda x=x, s=sampler: s.sample(x, rows, positions) for x in inputs]
        times.append({"cut": asdict(cut), "us": time_graph(calls)})
    draw = torch_draw(PARAMS[name])
    theirs = time_graph([lambda x=x: draw(x) for x in inputs])
    return {
        "logits": kind, "rows": count, "params": name, "wrong": wrong,
        "us": times[0]["us"], "torch_us": theirs, "cuts": times,
    }  # fmt: skip


def main() -> None:
    parser = gpu_parser(__doc__, "gpu_sampling", 200.0, compiles=False)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64, 256])
    args = parse_on_gpu(parser)
    budget = Budget(args.seconds)
    bandwidth = gpu_timing.read_bandwidth()
    cases: list[dict[str, Any]] = []
    launch_us = gpu_timing.launch_us()
    every = [
        (kind, rows, name) for kind in ("model", "flat") for rows in args.rows for name in PARAMS
    ]
    for kind, rows, name in every:
        if budget.left < 0:
            print("out of time")
            break
        cuts = CUTS if kind == "model" else CUTS[:1]
        case = measure_case(kind, rows, name, cuts)
        cases.append(case)
        read = rows * VOCAB * 4 / bandwidth * 1e6
        best = min(case["cuts"], key=lambda timed: timed["us"])
        print(
            f"{kind:5} {rows:4} x {name:20} {case['us']:8.1f} us, torch {case['torch_us']:8.1f}, "
            f"one read {read:6.1f}; best {best['us']:.1f} {gpu_timing.brief(best['cut'])}"
            + ("  WRONG" if case["wrong"] else ""),
            flush=True,
        )
        save(args, read_bandwidth=bandwidth, vocab=VOCAB, launch_us=launch_us, cases=cases)


if __name__ == "__main__":
    main()
