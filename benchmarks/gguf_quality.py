"""Loss of GGUF files' weights by their conversion to run-time formats.

    python benchmarks/gguf_quality.py

The bundled model is written as GGUF in each type (gguf_files.py), and held-out text and chats are
scored with three models: the original in float32, the numbers of the file, and what a CPU serves.
The first two give what the file has lost already, the last two what the conversion adds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import record
import torch
from gguf_files import write_checkpoint
from quantization_quality import compare, load, read_samples, score

from quire.hub import resolve_model
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import kernels_for
from quire.models.config.model_config import ModelConfig

# type of most matrices: types of others, as llama.cpp mixes them
FILES: dict[str, tuple[str, dict[str, str]]] = {
    "Q8_0": ("Q8_0", {}),
    "Q6_K": ("Q6_K", {}),
    "Q5_K_M": ("Q5_K", {"attn_v": "Q6_K", "token_embd": "Q6_K"}),
    "Q4_K_M": ("Q4_K", {"attn_v": "Q6_K", "token_embd": "Q6_K"}),
    "Q4_0": ("Q4_0", {"token_embd": "Q6_K"}),
}
SETTINGS = ("none", "int4")


def main() -> None:
    parser = record.parser(__doc__, "gguf_quality")
    parser.add_argument("--texts", type=int, default=8, help="windows of text")
    parser.add_argument("--chats", type=int, default=16, help="of each kind")
    args = parser.parse_args()
    set_num_threads(1)
    torch.set_grad_enabled(False)
    folder = resolve_model("quire-tiny")
    samples = read_samples(folder, args.texts, args.chats)
    exact = scored(folder, "none", samples)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, (kind, others) in FILES.items():
            file = Path(temporary) / f"{name}.gguf"
            write_checkpoint(folder, file, kind, others)
            unpacked = resolve_model(str(file))
            numbers = scored(unpacked, "dequantized", samples)
            row: dict[str, Any] = {"file": name, "of_file": compare(samples, exact, numbers)}
            for setting in SETTINGS:
                served = scored(unpacked, setting, samples)
                row[setting] = compare(samples, numbers, served)
                row[f"{setting}_in_all"] = compare(samples, exact, served)
            rows.append(row)
            print(name, {key: value["mean_kl"] for key, value in row.items() if key != "file"})
    tokens = sum(len(ids) - 1 for ids in samples)
    print(record.save(args.name, {"tokens": tokens, "rows": rows}, args.out))


def scored(folder: Path, setting: str, samples: list[list[int]]) -> list[Any]:
    """Hidden states and log-probabilities of each sample."""
    config = ModelConfig.from_folder(folder)
    model = load(folder, config, setting, kernels_for("cpu"))
    return [score(model, config, ids, "auto") for ids in samples]


if __name__ == "__main__":
    main()
