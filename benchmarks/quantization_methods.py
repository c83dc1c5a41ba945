"""Loss of each method of `quire quantize` on the bundled model, at the same size.

python benchmarks/quantization_methods.py

Calibrated on chats and text as the model was trained on; measured on held-out ones, and on
held-out questions that have one right answer. Figures are those of `quire verify`: of the numbers
that codes stand for, with activations rounded where the format says so.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import record
import torch
from quantization_quality import read_samples

from quire.compress.model_parts import ModelParts
from quire.compress.quantize_model import Quantization
from quire.compress.recipe import Recipe
from quire.compress.rotation import parts_beside
from quire.compress.task_answers import Task
from quire.compress.text_samples import TextSamples
from quire.compress.verify_model import compare_models
from quire.hub import resolve_model
from quire.tokenizer.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from data import MIX, plain_chat
from data.held_out import held_out

METHODS: dict[str, dict[str, Any]] = {
    "RTN symmetric": {"method": "rtn"},
    "RTN": {"method": "rtn", "symmetric": False},
    "GPTQ symmetric": {"method": "gptq"},
    "GPTQ": {"method": "gptq", "symmetric": False},
    "AWQ": {"method": "awq"},
    "AWQ by linear layers": {"method": "awq", "objective": "linear"},
    "AWQ + GPTQ": {"method": "awq+gptq"},
    "Learned rounding": {"method": "autoround", "symmetric": False},
    "AWQ + learned rounding": {"method": "awq+autoround"},
    "INT8": {"method": "int8"},
    "INT8 + SmoothQuant": {"method": "smoothquant"},
    "INT8 + SmoothQuant + GPTQ": {"method": "smoothquant+gptq"},
    "FP8": {"method": "fp8"},
    "FP8 + GPTQ": {"method": "fp8+gptq"},
    "FP8 W8A16": {"method": "fp8", "weight_only": True},
    "FP8 + GPTQ W8A16": {"method": "fp8+gptq", "weight_only": True},
    "Rotated RTN": {"method": "rtn", "symmetric": False, "rotate": True},
    "Rotated GPTQ": {"method": "gptq", "symmetric": False, "rotate": True},
    "Rotated FP8": {"method": "fp8", "rotate": True},
    "NF4": {"method": "nf4"},
    "MXFP4": {"method": "mxfp4"},
}
QUESTIONS = {"rewrite": 20, "json": 10, "talk": 0, "facts": 0}


def main() -> None:
    parser = record.parser(__doc__, "quantization_methods")
    parser.add_argument("--model", default="quire-tiny")
    parser.add_argument("--samples", type=int, default=96, help="windows for calibration")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=400, help="of learned rounding")
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--texts", type=int, default=8, help="held-out windows of text")
    parser.add_argument("--chats", type=int, default=16, help="held-out chats of each kind")
    parser.add_argument("--only", help="names of rows, with commas between")
    args = parser.parse_args()
    base = resolve_model(args.model)
    tokenizer = Tokenizer.from_folder(base)
    calibration = training_windows(tokenizer, args.samples, args.seq_len)
    windows = read_samples(base, args.texts, args.chats)
    samples = TextSamples(calibration, windows, "training mix")
    tasks = questions(tokenizer)
    measured: dict[str, Any] = {
        "model": args.model,
        "tokens": sum(map(len, windows)),
        "calibration_tokens": sum(map(len, calibration)),
        "questions": len(tasks),
        "group_size": args.group_size,
        "steps": args.steps,
        "rows": [],
    }
    if torch.cuda.is_available():
        measured["gpu"] = torch.cuda.get_device_name()
    for name, settings in METHODS.items():
        if args.only is None or name in args.only.split(","):
            recipe = Recipe(group_size=args.group_size, steps=args.steps, **settings)
            row = {"what": name, **measure(base, recipe, samples, tasks)}
            measured["rows"].append(row)
            print(name, brief(row), flush=True)
            record.save(args.name, measured, args.out)


def measure(base: Path, recipe: Recipe, samples: TextSamples, tasks: list[Task]) -> dict[str, Any]:
    """The report of one method, without its layers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        Quantization(base, out, recipe, samples, device).run(lambda *_: None)
        pair = parts_beside(base, out, device), ModelParts(out, device)
        report = compare_models(*pair, samples.verification, tasks, lambda *_: None)
    del report["layers"]
    return report


def brief(row: dict[str, Any]) -> str:
    change, kl = row["perplexity"]["change"], row["kl_divergence"]["mean"]
    same, cosine = row["same_top_1"]["share"], row["hidden_cosine"]["mean"]
    right = row.get("tasks", {}).get("right_quantized")
    return f"{change:+.2%} KL {kl:.4f} top-1 {same:.1%} cosine {cosine:.4f} right {right}"


def training_windows(tokenizer: Tokenizer, count: int, seq_len: int) -> list[list[int]]:
    """Windows of the training mix, documents one after the other."""
    rng, ids = Random(8), list[int]()
    while len(ids) < count * seq_len:
        task = rng.choices(list(MIX), list(MIX.values()))[0]
        messages = plain_chat(task, rng)
        if task == "text":
            ids += tokenizer.encode(messages[0][1])[:seq_len]
        else:
            chat = [{"role": role, "content": text} for role, text in messages]
            ids += tokenizer.encode_chat(chat, add_generation_prompt=False)
    return [ids[at : at + seq_len] for at in range(0, count * seq_len, seq_len)]


def questions(tokenizer: Tokenizer) -> list[Task]:
    """Held-out questions with one right answer."""
    found = []
    for chats in held_out(QUESTIONS).values():
        for turn in chats:
            if not turn.accepts and turn.answer:
                chat = [{"role": role, "content": text} for role, text in turn.prompt]
                prompt = tokenizer.encode_chat(chat)
                end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
                found.append(Task(prompt + tokenizer.encode_inside(turn.answer) + end, len(prompt)))
    return found


if __name__ == "__main__":
    main()
