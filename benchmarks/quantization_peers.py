"""AutoRound's own learned rounding beside Quire's: one model, text, group size and number of steps.

    pip install auto-round && python benchmarks/quantization_peers.py

Both calibrate on the same windows of token ids and are measured on the same held-out ones by
Quire's reader of AutoRound's files, so that only the codes differ.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import record
import torch
from quantization_methods import brief, training_windows
from quantization_quality import read_samples

from quire.compress.model_parts import ModelParts
from quire.compress.quantize_model import Quantization
from quire.compress.recipe import Recipe
from quire.compress.text_samples import TextSamples
from quire.compress.verify_model import compare_models
from quire.hub import resolve_model
from quire.tokenizer.tokenizer import Tokenizer

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="quire-tiny")
    parser.add_argument("--samples", type=int, default=24, help="windows for calibration")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--symmetric", action="store_true", help="not with zero points, too")
    parser.add_argument("--results", type=Path, default=record.RESULTS, help="folder")
    args = parser.parse_args()
    record.require("auto_round")
    base = resolve_model(args.model)
    tokenizer = Tokenizer.from_folder(base)
    calibration = training_windows(tokenizer, args.samples, args.seq_len)
    samples = TextSamples(calibration, read_samples(base, 4, 6), "training mix")
    measured: dict[str, Any] = {
        "model": args.model,
        "tokens": sum(map(len, samples.verification)),
        "calibration_tokens": sum(map(len, calibration)),
        "group_size": args.group_size,
        "steps": args.steps,
        "rows": [],
    }
    for symmetric in (True,) if args.symmetric else (True, False):
        for name, quantize in (("Quire", ours), ("AutoRound", theirs)):
            with tempfile.TemporaryDirectory() as folder:
                out, begin = Path(folder) / "out", time.monotonic()
                out = quantize(base, out, samples, args, symmetric=symmetric)
                seconds = round(time.monotonic() - begin, 1)
                pair = ModelParts(base, CPU), ModelParts(out, CPU)
                report = compare_models(*pair, samples.verification, [], lambda *_: None)
            del report["layers"]
            what = f"{name}, {'symmetric' if symmetric else 'zero points'}"
            measured["rows"].append({"what": what, "seconds": seconds, **report})
            print(what, brief(measured["rows"][-1]), f"{seconds} s", flush=True)
            record.save("quantization_peers", measured, args.results)


def ours(
    base: Path, out: Path, samples: TextSamples, args: argparse.Namespace, *, symmetric: bool
) -> Path:
    """The folder of Quire's checkpoint."""
    settings = {"group_size": args.group_size, "steps": args.steps, "symmetric": symmetric}
    recipe = Recipe(method="autoround", **settings)
    Quantization(base, out, recipe, samples, CPU).run(lambda *_: None)
    return out


def theirs(
    base: Path, out: Path, samples: TextSamples, args: argparse.Namespace, *, symmetric: bool
) -> Path:
    """The folder of AutoRound's checkpoint."""
    import transformers
    from auto_round import AutoRound

    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    windows = [
        {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=int)}
        for ids in samples.calibration
    ]
    rounding = AutoRound(
        model,
        transformers.AutoTokenizer.from_pretrained(base),
        scheme="W4A16",
        sym=symmetric,
        group_size=args.group_size,
        iters=args.steps,
        dataset=windows,
        nsamples=len(windows),
        seqlen=args.seq_len,
        device_map="cpu",
        enable_torch_compile=False,
        amp=False,
    )
    rounding.quantize_and_save(str(out), format="auto_round:auto_gptq")
    return next(path.parent for path in [*out.rglob("config.json")])


if __name__ == "__main__":
    main()
