"""Scores of prompts by an engine's kernels with quantized weights, beside those in 16 bits.

    python benchmarks/quantization_served.py                         # the bundled model, here
    python benchmarks/quantization_served.py --model FOLDER --formats int4 --steps 64 2048

`quire verify` computes with the numbers that codes stand for, in float32. Here an engine serves the
model, and scores held-out windows as prompts (`prompt_logprobs`): so activations are rounded as the
device's kernels do it. --steps are tokens of a step, by which the kernels are chosen: on a GPU INT4
weights meet activations in bfloat16 up to 64 tokens, in FP8 above. A format is one of
`--quantization`, or a folder with a quantized copy. Text: --ids, token ids that
quantization_trained.py leaves beside the model it trains, else what the bundled model was made for.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import record
from quantization_quality import read_samples

from quire import LLM, SamplingParams
from quire.hub import resolve_model

HELD_OUT = "held_out.json"  # windows of token ids, beside a trained model
Scores = tuple[list[float], list[int]]  # of each token: its log-probability; the likeliest instead


def main() -> None:
    parser = record.parser(__doc__, "quantization_served")
    parser.add_argument("--model", default="quire-tiny")
    parser.add_argument("--formats", nargs="+", default=["int8", "int4"])
    parser.add_argument("--steps", nargs="+", type=int, default=[16, 64, 2048])
    parser.add_argument("--windows", type=int, default=64, help="at most")
    parser.add_argument("--seconds", type=float, default=120, help="no engine starts after so many")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    begin, base = time.monotonic(), resolve_model(args.model)
    windows = _windows(base)[: args.windows]
    measured: dict[str, Any] = {"model": args.model, "device": args.device, "rows": []}
    measured["tokens"] = sum(len(window) - 1 for window in windows)
    right = scores(base, None, max(args.steps), windows, args.device)
    for name in args.formats:
        for step in args.steps:
            if time.monotonic() - begin > args.seconds:
                print(f"{name}, {step}: left out, the {args.seconds} seconds are over", flush=True)
                continue
            folder = Path(name)
            copy = (folder, None) if folder.is_dir() else (base, name)
            row = {"what": name, "step_tokens": step}
            row |= compared(right, scores(*copy, step, windows, args.device))
            measured["rows"].append(row)
            print(row, flush=True)
            record.save(args.name, measured, args.out)


def scores(
    folder: Path, quantization: str | None, step: int, windows: list[list[int]], device: str
) -> Scores:
    """A served model's scores of all tokens of the windows but their first ones."""
    longest = max(map(len, windows))
    options: dict[str, Any] = {} if quantization is None else {"quantization": quantization}
    with LLM(
        str(folder), device=device, max_model_len=longest + 1, max_num_batched_tokens=step,
        max_num_seqs=min(step, 16), num_blocks=16 * (longest // 16 + 2), quality_gate="off",
        enable_prefix_caching=False, **options,
    ) as llm:  # fmt: skip
        prompts = [{"prompt_token_ids": window} for window in windows]
        asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1, ignore_eos=True)
        outputs = llm.generate(prompts, asked, use_tqdm=False)
    own, first = list[float](), list[int]()
    for window, output in zip(windows, outputs, strict=True):
        assert output.prompt_logprobs is not None
        for token, found in zip(window[1:], output.prompt_logprobs[1:], strict=True):
            assert found is not None
            own.append(found[token].logprob)
            first.append(next(other for other, each in found.items() if each.rank == 1))
    return own, first


def compared(right: Scores, ours: Scores) -> dict[str, float]:
    """The change of perplexity, and the share of tokens with the same likeliest successor."""
    changes = [a - b for a, b in zip(right[0], ours[0], strict=True)]
    same = sum(a == b for a, b in zip(right[1], ours[1], strict=True))
    return {
        "perplexity_change": round(math.expm1(math.fsum(changes) / len(changes)), 6),
        "same_top_1": round(same / len(changes), 5),
    }


def _windows(base: Path) -> list[list[int]]:
    path = base / HELD_OUT
    if path.is_file():
        found: list[list[int]] = json.loads(path.read_text())
        return found
    return read_samples(base, 4, 6)


if __name__ == "__main__":
    main()
