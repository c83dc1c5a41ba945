"""Loss of each method of `quire quantize` on a model that is trained on the spot.

python benchmarks/quantization_trained.py                  # on one GPU, in about six minutes
python benchmarks/quantization_trained.py --random 8b --only GPTQ

The first trains a model of 85 million parameters on Python's sources, quantizes it with each method
and measures it on files that were held out. The second times an 8B of random numbers: `quantize`
layer by layer, and `verify`; it needs 25 GB in --work, and says what each layer took. A row that
is not done when --most-seconds are over is stopped; what was done by then is in the result. To
try all of it on a CPU in a few minutes:

python benchmarks/quantization_trained.py --out /tmp/try --dim 128 --layers 2 --heads 4 \\
    --kv-heads 2 --intermediate 384 --vocab 2048 --context 256 --characters 2e6 --no-compile \\
    --batch-tokens 4096 --train-seconds 20 --samples 8 --seq-len 128 --windows 8 --steps 20
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import record
import torch
from quantization_methods import METHODS, brief
from quantization_parts import measure_rows
from quantization_served import HELD_OUT
from trained_model import Shape, read_text, save_random, save_trained, train

from quire.compress.model_parts import ModelParts
from quire.compress.quantize_model import Quantization
from quire.compress.recipe import Recipe
from quire.compress.rotation import parts_beside
from quire.compress.text_samples import TextSamples, Windows
from quire.compress.verify_model import compare_models

SPACE = 25e9  # bytes that an 8B and its quantized copy take
RANDOM = {
    "tiny": Shape(128, 2, 4, 2, 384, 512, 1024, is_tied=False),  # to try it
    "8b": Shape(4096, 32, 32, 8, 14336, 128256, 4096, is_tied=False),
}


def main() -> None:
    args = _arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    begin, base = time.monotonic(), args.work / "base"
    for old in (base, args.work / "out"):
        shutil.rmtree(old, ignore_errors=True)
    if args.random == "8b" and shutil.disk_usage(args.work).free < SPACE:
        sys.exit(
            f"{args.work} has less than {SPACE / 1e9:.0f} GB of free space; name another --work"
        )
    if args.random:
        name, samples, measured = f"quantization_{args.random}", *_random_model(base, args)
    else:
        name, samples, measured = "quantization_trained", *_trained_model(base, args)
    measured |= {"preparing_seconds": round(time.monotonic() - begin, 1), "rows": []}
    measured |= {"group_size": args.group_size, "steps": args.steps} | _device()
    print({key: value for key, value in measured.items() if key != "training"}, flush=True)
    for row, settings in METHODS.items():
        if args.only is not None and row not in args.only.split(","):
            continue
        if time.monotonic() - begin > args.seconds:
            print(f"{row}: left out, the {args.seconds} seconds are over")
            continue
        recipe = Recipe(group_size=args.group_size, steps=args.steps, **settings)
        progress = Progress(begin + args.most_seconds)
        found: dict[str, Any] = {"what": row}
        try:
            found |= _measure(base, args.work / "out", recipe, samples, progress)
            print(row, brief(found), f"{found['seconds']} s", flush=True)
        except OutOfTimeError:
            print(f"{row}: stopped, the {args.most_seconds} seconds are over", flush=True)
        measured["rows"].append(found | progress.record())
        measured["seconds"] = round(time.monotonic() - begin, 1)
        record.save(name, measured, args.out)
    if args.parts:
        about = {key: measured[key] for key in ("model", "calibration_tokens", "training")}
        measure_rows(base, samples, about | _device(), begin + args.most_seconds, args.out)


class OutOfTimeError(Exception):
    """Ends a row between two layers."""


class Progress:
    """Tells what each layer took, and ends a row that takes too long. end: by time.monotonic()."""

    def __init__(self, end: float) -> None:
        self._end, self._last, self._before = end, time.monotonic(), ""
        self.layers: dict[str, list[float]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """A layer begins, or the last one has ended."""
        now = time.monotonic()
        if done:
            self.layers.setdefault(what, []).append(now - self._last)
            print(f"{what}: {done} of {total} layers, {now - self._last:.2f} s", flush=True)
        self._last = now
        if now > self._end:
            raise OutOfTimeError

    def record(self) -> dict[str, Any]:
        """Layers that were done, and the seconds of the fastest and the slowest one."""
        return {
            f"{what}_layers": {
                "done": len(each),
                "seconds": [round(min(each), 2), round(max(each), 2)],
                "seconds_in_all": round(sum(each), 1),
            }
            for what, each in self.layers.items()
        }


def _trained_model(base: Path, args: argparse.Namespace) -> tuple[TextSamples, dict[str, Any]]:
    """Train a model and write it; windows of its text, and what it is."""
    text = read_text(int(args.characters), args.vocab, seed=1)
    print(f"{len(text.training):,} tokens to train on, {len(text.held_out):,} held out", flush=True)
    shape = Shape(
        args.dim, args.layers, args.heads, args.kv_heads, args.intermediate, args.vocab,
        args.context,
    )  # fmt: skip
    model, training = train(
        shape, text, args.train_seconds, args.batch_tokens, compiled=args.compile
    )
    print({**training, "loss": training["loss"][-1:]}, flush=True)
    save_trained(model, text.tokenizer, base)
    samples = TextSamples(
        _windows(text.training, args.samples, args.seq_len),
        _windows(text.held_out, args.windows, args.seq_len),
        "Python sources",
    )
    (base / HELD_OUT).write_text(json.dumps(samples.verification))
    model_name = f"{training['parameters'] / 1e6:.0f}M, trained"
    return samples, {"model": model_name, "training": training, **_counts(samples)}


def _random_model(base: Path, args: argparse.Namespace) -> tuple[TextSamples, dict[str, Any]]:
    """Write a model of random numbers; windows of random tokens, and what it is."""
    shape = RANDOM[args.random]
    save_random(shape, base)
    ids = np.random.default_rng(0).integers(shape.vocab, size=1 << 20)
    samples = TextSamples(
        _windows(ids, args.samples, args.seq_len),
        _windows(ids, args.samples // 4, args.seq_len),
        "random tokens",
    )
    return samples, {"model": f"{args.random}, random", **_counts(samples)}


def _windows(ids: np.ndarray, count: int, length: int) -> Windows:
    """Windows of token ids, at even distances in any order."""
    most = len(ids) // length
    chosen = [index * most // count for index in range(min(count, most))]
    Random(2).shuffle(chosen)
    return [ids[at * length : (at + 1) * length].tolist() for at in chosen]


def _counts(samples: TextSamples) -> dict[str, int]:
    return {
        "tokens": sum(map(len, samples.verification)),
        "calibration_tokens": sum(map(len, samples.calibration)),
    }


def _device() -> dict[str, str]:
    return {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def _measure(
    base: Path, out: Path, recipe: Recipe, samples: TextSamples, progress: Progress
) -> dict[str, Any]:
    """The report of one method, with the seconds of quantizing and of verifying."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shutil.rmtree(out, ignore_errors=True)
    quantizing = _timed(lambda: Quantization(base, out, recipe, samples, device).run(progress))[0]
    verifying, report = _timed(
        lambda: compare_models(
            parts_beside(base, out, device),
            ModelParts(out, device),
            samples.verification,
            [],
            progress,
        )
    )
    del report["layers"]
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    return {
        **report,
        "seconds": round(quantizing, 1),
        "verify_seconds": round(verifying, 1),
        "gpu_gib": round(memory, 1),
    }


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.monotonic()
    found = work()
    return time.monotonic() - begin, found


def _arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    add = parser.add_argument
    add("--random", choices=list(RANDOM), help="an untrained model of this size, for times alone")
    add("--dim", type=int, default=768)
    add("--layers", type=int, default=12)
    add("--heads", type=int, default=12)
    add("--kv-heads", type=int, default=4)
    add("--intermediate", type=int, default=2048)
    add("--vocab", type=int, default=8192)
    add("--context", type=int, default=1024, help="tokens of a training sample")
    add("--characters", type=float, default=200e6, help="of text, at most")
    add("--batch-tokens", type=int, default=65536, help="of a training step")
    add("--train-seconds", type=float, default=120)
    add("--seconds", type=float, default=420, help="no method begins after so many")
    add("--most-seconds", type=float, default=560, help="a row is stopped after so many")
    add("--samples", type=int, default=128, help="windows for calibration")
    add("--windows", type=int, default=128, help="held-out windows")
    add("--seq-len", type=int, default=512)
    add("--steps", type=int, default=400, help="of learned rounding")
    add("--group-size", type=int, default=128)
    add("--only", help="names of rows, with commas between")
    add("--parts", action="store_true", help="then the rows of quantization_parts.py")
    add("--no-compile", dest="compile", action="store_false")
    work = Path(tempfile.gettempdir(), "quire-trained")
    add("--work", type=Path, default=work, help="folder for the models; 25 GB for an 8B")
    return parser.parse_args()


if __name__ == "__main__":
    main()
