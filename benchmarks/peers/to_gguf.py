"""A checkpoint as GGUF, in each type of weights that is asked for.

    python -m peers.to_gguf CHECKPOINT FOLDER BF16 Q8_0 Q4_0

Runs in llama.cpp's environment. The bfloat16 file is written tensor by tensor with the `gguf`
package; llama.cpp's own quantizer makes the others from it, the head in the type that it chooses.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

Config = dict[str, Any]

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("types", nargs="+", choices=_FILE_TYPES)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    source = args.folder / "BF16.gguf"
    if not source.is_file():
        part = source.with_suffix(".part")
        write_bf16(args.checkpoint, part)
        part.rename(source)
    for name in args.types:
        target = args.folder / f"{name}.gguf"
        if not target.is_file():
            quantize(source, target, _FILE_TYPES[name])


def write_bf16(checkpoint: Path, target: Path) -> None:
    """The file that holds what the checkpoint holds."""
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(target, "llama")
    _write_settings(writer, config)
    writer.add_tensor("rope_freqs.weight", _rope_factors(config))
    for name, weight in _tensors(checkpoint / "model.safetensors"):
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        if name.startswith("model.layers."):
            gguf_name = f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"
        else:
            gguf_name = f"{_NAMES[name.removesuffix('.weight')]}.weight"
        if weight.ndim == 1:  # llama.cpp adds and multiplies vectors in float32 only
            writer.add_tensor(gguf_name, (weight.astype(np.uint32) << 16).view(np.float32))
            continue
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        if (part := gguf_name.split(".")[-2]) in heads:
            weight = _interleaved(weight, config[heads[part]])
        raw = np.ascontiguousarray(weight).view(np.uint8)
        writer.add_tensor(gguf_name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_settings(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _tensors(path: Path) -> list[tuple[str, np.ndarray]]:
    """Names and bfloat16 bits of a safetensors file, mapped."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    bits = np.memmap(path, np.uint16, "r", offset=8 + size)
    found = []
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (offset // 2 for offset in entry["data_offsets"])
            found.append((name, bits[begin:end].reshape(entry["shape"])))
    return found


def _interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows in GGUF's order: the two numbers that RoPE rotates together are adjacent."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _rope_factors(config: Config) -> np.ndarray:
    """Divisors of each frequency by Llama 3's scaling, as the checkpoint's config says."""
    scaling, dim = config["rope_scaling"], config["head_dim"]
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for index in range(0, dim, 2):
        rotations = original / (2 * math.pi * config["rope_theta"] ** (index / dim))
        smooth = min(max((rotations - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def quantize(source: Path, target: Path, file_type: int) -> None:
    """llama.cpp's own quantizer, with its own choice for the head."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    part = target.with_suffix(".part")
    status = llama_cpp.llama_model_quantize(
        str(source).encode(), str(part).encode(), ctypes.byref(params)
    )
    if status != 0:
        raise RuntimeError(f"llama_model_quantize returned {status} for {target.name}")
    part.rename(target)


if __name__ == "__main__":
    main()
