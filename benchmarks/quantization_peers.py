"""Other libraries' methods beside Quire's: one model, text, group size and number of steps.

    pip install auto-round llmcompressor gptqmodel bitsandbytes
    python benchmarks/quantization_peers.py --only "GPTQ (llm-compressor)" "NF4 (bitsandbytes)"

Both calibrate on the same windows of token ids and are measured on the same held-out ones by
Quire's reader of the other's files, so that only the codes differ. Rows are saved one by one, and
those of an earlier run for the same windows stay. A library that is not installed is left out.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import record
import torch
from quantization_methods import brief, training_windows
from quantization_quality import read_samples

from quire.compress.model_parts import ModelParts
from quire.compress.quantize_model import Quantization
from quire.compress.recipe import Recipe
from quire.compress.text_samples import TextSamples, Windows
from quire.compress.verify_model import compare_models
from quire.hub import resolve_model
from quire.tokenizer.tokenizer import Tokenizer

CPU = torch.device("cpu")
NAME = "quantization_peers"


@dataclass(frozen=True)
class Task:
    """Input of both quantizers: the 16-bit folder, windows for calibration, and settings."""

    base: Path
    windows: Windows
    group: int
    steps: int


Theirs = Callable[[Task, Path], None]  # writes a checkpoint to a folder


def auto_round(*, symmetric: bool) -> Theirs:
    """AutoRound's learned rounding."""

    def quantize(task: Task, out: Path) -> None:
        from auto_round import AutoRound

        rounding = AutoRound(
            _model(task),
            _tokenizer(task),
            scheme="W4A16",
            sym=symmetric,
            group_size=task.group,
            iters=task.steps,
            dataset=_batches(task),
            nsamples=len(task.windows),
            seqlen=len(task.windows[0]),
            device_map="cpu",
            enable_torch_compile=False,
            amp=False,
        )
        rounding.quantize_and_save(str(out), format="auto_round:auto_gptq")

    return quantize


def llm_compressor(modifier: str, scheme: str) -> Theirs:
    """A modifier of llm-compressor with a preset scheme, in groups of 128."""

    def quantize(task: Task, out: Path) -> None:
        from datasets import Dataset
        from llmcompressor import oneshot
        from llmcompressor.modifiers.awq import AWQModifier
        from llmcompressor.modifiers.gptq import GPTQModifier
        from llmcompressor.modifiers.quantization import QuantizationModifier
        from llmcompressor.pipelines.cache import IntermediatesCache

        known = (AWQModifier, GPTQModifier, QuantizationModifier)
        if not torch.cuda.is_available():  # its version 0.14 asks for pinned memory all the same
            IntermediatesCache._pin_intermediate = classmethod(lambda *_: None)
        recipe = next(each for each in known if each.__name__ == modifier)
        masks = [[1] * len(ids) for ids in task.windows]
        model = _model(task)
        oneshot(
            model=model,
            dataset=Dataset.from_dict({"input_ids": task.windows, "attention_mask": masks}),
            recipe=[recipe(targets=["Linear"], ignore=["lm_head"], scheme=scheme)],
            max_seq_length=len(task.windows[0]),
            num_calibration_samples=len(task.windows),
            tokenizer=_tokenizer(task),
        )
        model.save_pretrained(out, save_compressed=True)

    return quantize


def gptqmodel(task: Task, out: Path) -> None:
    """GPTQModel's GPTQ, symmetric."""
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # what version 7.7 needs, also on two cores
    from gptqmodel import GPTQModel, QuantizeConfig

    config = QuantizeConfig(bits=4, group_size=task.group, sym=True, desc_act=False)
    model = GPTQModel.load(str(task.base), config, device="cpu")
    windows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in task.windows]
    model.quantize(windows, batch_size=1)
    model.save(str(out))


def bitsandbytes(task: Task, out: Path) -> None:
    """bitsandbytes' NF4 with double quantization."""
    import transformers

    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    load = transformers.AutoModelForCausalLM.from_pretrained
    load(task.base, quantization_config=config, device_map="cpu").save_pretrained(out)


# by name: the library, Quire's settings, and the other's function
ROWS: dict[str, tuple[str, dict[str, Any], Theirs]] = {
    "learned rounding, symmetric (AutoRound)": (
        "auto_round", {"method": "autoround", "symmetric": True}, auto_round(symmetric=True)
    ),
    "learned rounding, zero points (AutoRound)": (
        "auto_round", {"method": "autoround", "symmetric": False}, auto_round(symmetric=False)
    ),
    "GPTQ (llm-compressor)": (
        "llmcompressor", {"method": "gptq"}, llm_compressor("GPTQModifier", "W4A16")
    ),
    "GPTQ (GPTQModel)": ("gptqmodel", {"method": "gptq"}, gptqmodel),
    "AWQ (llm-compressor)": (
        "llmcompressor", {"method": "awq"}, llm_compressor("AWQModifier", "W4A16_ASYM")
    ),
    "INT8 (llm-compressor)": (
        "llmcompressor", {"method": "int8"}, llm_compressor("QuantizationModifier", "W8A8")
    ),
    "FP8 (llm-compressor)": (
        "llmcompressor", {"method": "fp8"}, llm_compressor("QuantizationModifier", "FP8_DYNAMIC")
    ),
    "NF4 (bitsandbytes)": (
        "bitsandbytes", {"method": "nf4", "double_quantization": True}, bitsandbytes
    ),
}  # fmt: skip


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--model", default="quire-tiny")
    parser.add_argument("--samples", type=int, default=16, help="windows for calibration")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=200, help="of learned rounding")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    args = parser.parse_args()
    base = resolve_model(args.model)
    windows = training_windows(Tokenizer.from_folder(base), args.samples, args.seq_len)
    samples = TextSamples(windows, read_samples(base, 4, 6), "training mix")
    task = Task(base, windows, 128, args.steps)
    measured: dict[str, Any] = {
        "model": args.model,
        "tokens": sum(map(len, samples.verification)),
        "calibration_tokens": sum(map(len, windows)),
        "group_size": task.group,
        "steps": task.steps,
    }
    for name in args.only:
        library, settings, theirs = ROWS[name]
        if find_spec(library) is None:
            print(f"{name}: left out, {library} is not installed", flush=True)
            continue
        for who in ("Quire", library):
            try:
                row = _row(name, who, settings, theirs, task, samples)
            except Exception as error:  # of a library that changes quickly
                print(f"{name} by {who}: {error!r}", flush=True)
            else:
                _save(measured, row, args.out)


def _row(
    name: str, who: str, settings: dict[str, Any], theirs: Theirs, task: Task, samples: TextSamples
) -> dict[str, Any]:
    """Quantize by one of both, and measure the result."""
    with tempfile.TemporaryDirectory() as folder:
        out, begin = Path(folder) / "out", time.monotonic()
        if who == "Quire":
            Quantization(task.base, out, _recipe(settings, task), samples, CPU).run(lambda *_: None)
        else:
            theirs(task, out)
            out = next(path.parent for path in out.rglob("config.json"))
        seconds = round(time.monotonic() - begin, 1)
        pair = ModelParts(task.base, CPU), ModelParts(out, CPU)
        report = compare_models(*pair, samples.verification, [], lambda *_: None)
    for part in ("layers", "bytes", "pooled_cosine"):
        del report[part]
    row = {"what": name, "by": who, "seconds": seconds, **report}
    print(name, "by", who, brief(row), f"{seconds} s", flush=True)
    return row


def _recipe(settings: dict[str, Any], task: Task) -> Recipe:
    # half as many samples are in each
    own = {"steps": 2 * task.steps} if settings["method"] == "autoround" else {}
    grouped = settings["method"] in ("autoround", "gptq", "awq")
    return Recipe(**settings, **own, **({"group_size": task.group} if grouped else {}))


def _save(measured: dict[str, Any], row: dict[str, Any], results: Path) -> None:
    """Add a row to those of earlier runs with the same settings, in place of its older self."""
    path, rows = results / f"{NAME}.json", list[dict[str, Any]]()
    if path.is_file():
        found = json.loads(path.read_text())
        if measured.items() <= found.items():
            rows = record.earlier_rows(path)
    key = (row["what"], row["by"])
    rows = [each for each in rows if (each["what"], each.get("by")) != key]
    record.save(NAME, measured | {"rows": [*rows, row]}, results)


def _model(task: Task) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(task.base, dtype=torch.float32)


def _tokenizer(task: Task) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(task.base)


def _batches(task: Task) -> list[dict[str, Any]]:
    return [
        {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=int)}
        for ids in task.windows
    ]


if __name__ == "__main__":
    main()
