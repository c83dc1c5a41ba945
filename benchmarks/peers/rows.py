"""Rows of cpu_peers.py: engines, weight formats, and the best settings found for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quire.config import iter_options


@dataclass(frozen=True)
class Row:
    """An engine with one weight format. model: its folder or file, as `models.py` makes it."""

    engine: str
    weights: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.engine} {self.weights}"


def _llama_cpp(weights: str) -> Row:
    return Row("llama_cpp", weights, f"gguf/{weights}.gguf", {"flash_attention": True})


def _llama_cpp_plain(weights: str) -> Row:
    """Long contexts: decodes are quicker than by its flash attention, prompts slower."""
    name = f"{weights}, plain attention"
    return Row("llama_cpp", name, f"gguf/{weights}.gguf", {"flash_attention": False})


def _openvino(weights: str) -> Row:
    return Row("openvino", weights, f"openvino/{weights}", {"max_num_batched_tokens": 4096})


def _transformers(dtype: str) -> Row:
    return Row("transformers", dtype, "checkpoint", {"dtype": dtype})


PEERS = [
    *(_llama_cpp(weights) for weights in ("BF16", "F16", "Q8_0", "Q4_0")),
    *(_llama_cpp_plain(weights) for weights in ("BF16", "Q8_0", "Q4_0")),
    *(_openvino(weights) for weights in ("f16", "int8", "int4")),
    *(_transformers(dtype) for dtype in ("bfloat16", "float32")),
]


def ours() -> list[Row]:
    """Quire in its data types, and in each 8- or 4-bit weight format that it knows."""
    rows = [
        Row("quire", dtype, "checkpoint", {"dtype": dtype}) for dtype in ("bfloat16", "float32")
    ]
    known = next(o.choices for _, o in iter_options() if o.name == "quantization") or ()
    for format_name in ("int8", "int4", "nf4", "mxfp4"):
        if format_name in known:
            options = {"dtype": "bfloat16", "quantization": format_name}
            rows.append(Row("quire", format_name, "checkpoint", options))
    return rows


def all_rows() -> list[Row]:
    """Every row, ours last."""
    return [*PEERS, *ours()]
