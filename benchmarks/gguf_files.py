"""Writes GGUF files: any metadata and tensors, or a checkpoint in one of the types that are read.

    python gguf_files.py CHECKPOINT FILE [TYPE]

Rounds to the nearest, without the searches of llama.cpp's quantizer, so files of 4 and 5 bits are a
little worse than its own. For tests and for measuring what a conversion loses; `gguf` and llama.cpp
write the files that people use.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quire.array_types import Bytes, Singles
from quire.gguf.architectures import ARCHITECTURES
from quire.gguf.block_types import BLOCK_TYPES, TYPES_BY_NAME, BlockType
from quire.gguf.tensor_names import model_name
from quire.models.checkpoints.checkpoint import Checkpoint

_NUMBERS = {name.name: number for number, name in BLOCK_TYPES.items()}
_ALIGNMENT = 32


# The container


def header_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> bytes:
    """The header. tensors: type and shape (rows first) by name; their bytes follow in order."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [_text(key) + _value(value) for key, value in metadata.items()]
    offset = 0
    for name, (kind, shape) in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        parts += [_text(name), dims, struct.pack("<IQ", _NUMBERS[kind], offset)]
        size = TYPES_BY_NAME[kind].row_bytes(shape[-1]) * int(np.prod(shape[:-1], initial=1))
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    header = b"".join(parts)
    return header + bytes(-len(header) % _ALIGNMENT)


def write_gguf(
    file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, Singles]]
) -> None:
    """Write a file. tensors: type and numbers by name; matrices in that type, others in F32."""
    kinds = {
        name: ("F32" if len(numbers.shape) == 1 else kind, numbers)
        for name, (kind, numbers) in tensors.items()
    }
    described = {name: (kind, numbers.shape) for name, (kind, numbers) in kinds.items()}
    with file.open("wb") as out:
        out.write(header_bytes(metadata, described))
        for kind, numbers in kinds.values():
            content = encode(kind, numbers).tobytes()
            out.write(content + bytes(-len(content) % _ALIGNMENT))


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _value(value: Any) -> bytes:
    kind, content = _typed(value)
    return struct.pack("<I", kind) + content


def _typed(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _text(value)
    items = [_typed(item) for item in value]
    kind = items[0][0] if items else 4
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(content for _, content in items)


# The types


def encode(kind: str, numbers: Singles) -> Bytes:
    """Numbers [N, K] as rows of blocks, uint8 [N, bytes]."""
    blocks = np.ascontiguousarray(numbers, np.float32).reshape(-1, TYPES_BY_NAME[kind].items)
    return _ENCODERS[kind](blocks).reshape(*numbers.shape[:-1], -1)


def _halves(values: Singles) -> Bytes:
    return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)


def _bfloat16(blocks: Singles) -> Bytes:
    bits = blocks.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.ascontiguousarray(rounded.astype(np.uint16)).view(np.uint8)


def _over(numbers: Singles, scale: Singles) -> Singles:
    """Numbers divided by a scale; 0 where that is 0."""
    found: Singles = np.divide(numbers, scale, out=np.zeros_like(numbers), where=scale != 0)
    return found


def _largest(blocks: Singles) -> Singles:
    """The number of each block that is farthest from 0, with its sign."""
    where = np.abs(blocks).argmax(-1)[..., None]
    return np.take_along_axis(blocks, where, -1)


def _codes(blocks: Singles, scale: Singles, shift: Singles | int, most: int) -> Bytes:
    return np.clip(np.rint(_over(blocks - shift, scale)), 0, most).astype(np.uint8)


def _shared(codes: Bytes) -> Bytes:
    """Codes [blocks, 32] as 16 bytes: codes i and i + 16 share a byte."""
    return codes[:, :16] & 15 | (codes[:, 16:] & 15) << 4


def _fifth(codes: Bytes) -> Bytes:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _half(values: Singles) -> Singles:
    return values.astype(np.float16).astype(np.float32)


def _signed(bits: int) -> Callable[[Singles], Bytes]:
    """Q4_0 and Q5_0: the number farthest from 0 gets the lowest code."""

    def run(blocks: Singles) -> Bytes:
        middle = 1 << (bits - 1)
        scale = _half(_largest(blocks) / -middle)
        codes = _codes(blocks, scale, -middle * scale, 2 * middle - 1)
        high = [_fifth(codes)] if bits == 5 else []
        return np.concatenate([_halves(scale), *high, _shared(codes)], 1)

    return run


def _with_minimum(bits: int) -> Callable[[Singles], Bytes]:
    """Q4_1 and Q5_1."""

    def run(blocks: Singles) -> Bytes:
        low, most = _half(blocks.min(1, keepdims=True)), (1 << bits) - 1
        scale = _half((blocks.max(1, keepdims=True) - low) / most)
        codes = _codes(blocks, scale, low, most)
        high = [_fifth(codes)] if bits == 5 else []
        return np.concatenate([_halves(scale), _halves(low), *high, _shared(codes)], 1)

    return run


def _q8_0(blocks: Singles) -> Bytes:
    scale = _half(np.abs(blocks).max(1, keepdims=True) / 127)
    codes = np.rint(_over(blocks, scale)).clip(-127, 127).astype(np.int8)
    return np.concatenate([_halves(scale), codes.view(np.uint8)], 1)


def _super_blocks(bits: int) -> Callable[[Singles], Bytes]:
    """Q4_K and Q5_K: scales and minima of 32 numbers in 6 bits."""

    def run(blocks: Singles) -> Bytes:
        parts, most = blocks.reshape(-1, 8, 32), (1 << bits) - 1
        minima = np.maximum(-parts.min(-1), 0)
        scales = (parts.max(-1) + minima) / most
        d, dmin = (_half(each.max(1, keepdims=True) / 63) for each in (scales, minima))
        sc, mn = (
            np.rint(_over(each, np.broadcast_to(unit, each.shape))).clip(0, 63).astype(np.uint8)
            for each, unit in ((scales, d), (minima, dmin))
        )
        codes = _codes(parts, (d * sc)[..., None], -(dmin * mn)[..., None], most)
        first, second = sc[:, :4] | sc[:, 4:] >> 4 << 6, mn[:, :4] | mn[:, 4:] >> 4 << 6
        packed = np.concatenate([first, second, sc[:, 4:] & 15 | (mn[:, 4:] & 15) << 4], 1)
        low = codes.reshape(-1, 4, 2, 32) & 15
        shared = (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128)
        weights = (1 << np.arange(8)).astype(np.uint8)[:, None]
        high = [(codes >> 4) * weights] if bits == 5 else []
        fifth = [each.sum(1, dtype=np.uint8) for each in high]
        return np.concatenate([_halves(d), _halves(dmin), packed, *fifth, shared], 1)

    return run


def _q6_k(blocks: Singles) -> Bytes:
    parts = blocks.reshape(-1, 16, 16)
    scales = _largest(parts)[..., 0] / -32
    d = _half(_largest(scales) / -128)
    sc = np.rint(_over(scales, np.broadcast_to(d, scales.shape))).clip(-128, 127).astype(np.int8)
    scale = (d * sc)[..., None]
    codes = _codes(parts, scale, -32 * scale, 63).reshape(-1, 2, 4, 32)
    low = codes[:, :, :2] & 15 | (codes[:, :, 2:] & 15) << 4
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = ((codes >> 4) << shifts).sum(2, dtype=np.uint8)
    packed = low.reshape(-1, 128), high.reshape(-1, 64), sc.view(np.uint8), _halves(d)
    return np.concatenate(packed, 1)


_ENCODERS: dict[str, Callable[[Singles], Bytes]] = {
    "F32": lambda blocks: blocks.view(np.uint8),
    "F16": _halves,
    "BF16": _bfloat16,
    "Q4_0": _signed(4),
    "Q4_1": _with_minimum(4),
    "Q5_0": _signed(5),
    "Q5_1": _with_minimum(5),
    "Q8_0": _q8_0,
    "Q4_K": _super_blocks(4),
    "Q5_K": _super_blocks(5),
    "Q6_K": _q6_k,
}
WRITTEN = tuple(_ENCODERS)  # of the types that are read


# A checkpoint


def write_checkpoint(
    folder: Path, file: Path, kind: str, others: Mapping[str, str] | None = None
) -> None:
    """Write a checkpoint's folder as a GGUF file; see `checkpoint_tensors`."""
    config = json.loads((folder / "config.json").read_text())
    write_gguf(file, metadata_of(folder, config), checkpoint_tensors(folder, kind, others))


def checkpoint_tensors(
    folder: Path, kind: str, others: Mapping[str, str] | None = None
) -> dict[str, tuple[str, Singles]]:
    """A checkpoint's tensors as `write_gguf` takes them, matrices in a type.

    others: types of tensors whose names hold a text, such as {"attn_v": "Q6_K"}.
    """
    config = json.loads((folder / "config.json").read_text())
    found = {}
    for own, numbers in _tensors(folder, _name(config), config).items():
        chosen = next((each for part, each in (others or {}).items() if part in own), kind)
        found[own] = (_that_fits(chosen, numbers), numbers)
    return {name: ("F32", numbers) for name, numbers in _rope_factors(config).items()} | found


def _name(config: Mapping[str, Any]) -> str:
    """The architecture's name; Mistral is Llama there."""
    name: str = config["model_type"]
    return "llama" if name == "mistral" else name


def _that_fits(kind: str, numbers: Singles) -> str:
    """The type, or what llama.cpp takes in its place where rows are no whole blocks."""
    found: BlockType = TYPES_BY_NAME[kind]
    if numbers.shape[-1] % found.items == 0:
        return kind
    return "Q8_0" if numbers.shape[-1] % 32 == 0 else "F16"


def _tensors(folder: Path, name: str, config: Mapping[str, Any]) -> dict[str, Singles]:
    """The checkpoint's tensors by the names of GGUF, changed as llama.cpp's converter does."""
    architecture, checkpoint = ARCHITECTURES[name], Checkpoint.open(folder)
    names = _names(architecture, config["num_hidden_layers"])
    found = {}
    for entry, tensor in checkpoint.tensors(set(checkpoint.entries)):
        numbers = tensor.float().numpy().copy()
        if architecture.adds_one and entry.name.endswith("norm.weight"):
            numbers += 1
        if architecture.interleaves_rope and (".q_proj." in entry.name or ".k_proj." in entry.name):
            key = "num_attention_heads" if ".q_proj." in entry.name else "num_key_value_heads"
            numbers = _interleaved(numbers, config[key])
        if not (entry.name == "lm_head.weight" and config.get("tie_word_embeddings")):
            found[names[entry.name]] = numbers
    return found


def _names(architecture: Any, num_layers: int) -> dict[str, str]:
    """Names of GGUF by those of the model."""
    parts = [
        *(f"attn_{part}" for part in ("q", "k", "v", "qkv", "output", "q_norm", "k_norm", "norm")),
        *(f"ffn_{part}" for part in ("gate", "up", "down", "norm")),
        *architecture.parts,
    ]
    own = ["token_embd.weight", "output.weight", "output_norm.weight"]
    own += [
        f"blk.{layer}.{part}.{leaf}"
        for layer in range(num_layers)
        for part in parts
        for leaf in ("weight", "bias")
    ]
    return {found: name for name in own if (found := model_name(name, architecture)) is not None}


def _interleaved(numbers: Singles, num_heads: int) -> Singles:
    rows = numbers.reshape(num_heads, 2, -1, *numbers.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(numbers.shape)


def metadata_of(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a checkpoint's folder, its tokenizer's if it has one."""
    name, heads = _name(config), config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    found: dict[str, Any] = {
        "general.architecture": name,
        f"{name}.context_length": config["max_position_embeddings"],
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.attention.head_count": heads,
        f"{name}.attention.head_count_kv": config["num_key_value_heads"],
        f"{name}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{name}.rope.freq_base": float(rope.get("rope_theta", 10000.0)),
    }
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    found |= {f"{name}.attention.{part}_length": head_dim for part in ("key", "value")}
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key) is not None:
            found[f"{name}.{key}"] = float(config[key])
    if config.get("sliding_window"):
        found[f"{name}.attention.sliding_window"] = config["sliding_window"]
    if (folder / "tokenizer.json").is_file():
        found |= _tokenizer(folder, config)
    return found | _rope(name, rope, config, head_dim)


def _rope(
    name: str, rope: Mapping[str, Any], config: Mapping[str, Any], head_dim: int
) -> dict[str, Any]:
    """The keys of the rotary embedding's scaling."""
    key, kind = f"{name}.rope.scaling", rope.get("rope_type", "default")
    share = rope.get("partial_rotary_factor", 1.0)
    found: dict[str, Any] = {f"{name}.rope.dimension_count": int(head_dim * share)}
    if kind in ("linear", "yarn", "longrope"):
        found[f"{key}.type"] = kind
    if kind in ("linear", "yarn"):
        found[f"{key}.factor"] = float(rope["factor"])
    original = rope.get("original_max_position_embeddings", config.get(_ORIGINAL))
    if kind in ("yarn", "longrope"):
        found[f"{key}.original_context_length"] = original
    if kind == "longrope":
        factor = config["max_position_embeddings"] / original
        found[f"{key}.attn_factor"] = math.sqrt(1 + math.log(factor) / math.log(original))
    return found


_ORIGINAL = "original_max_position_embeddings"


def _rope_factors(config: Mapping[str, Any]) -> dict[str, Singles]:
    """Tensors with what divides each frequency: of Llama 3's scaling, and of longrope."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        names = ("long", "short")
        return {f"rope_factors_{n}.weight": np.float32(rope[f"{n}_factor"]) for n in names}
    if rope.get("rope_type") != "llama3":
        return {}
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    lengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    share = np.clip((rope[_ORIGINAL] / lengths - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": np.float32(1 / ((1 - share) / factor + share))}


def _tokenizer(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """A byte-level BPE tokenizer whose digits stand alone."""
    found = json.loads((folder / "tokenizer.json").read_text())
    vocab = {**found["model"]["vocab"], **{t["content"]: t["id"] for t in found["added_tokens"]}}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    special = {token["content"]: 3 if token["special"] else 4 for token in found["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in found["model"]["merges"]]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [special.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
    }
    if isinstance(settings.get("chat_template"), str):
        values["tokenizer.chat_template"] = settings["chat_template"]
    return values


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], *([kind] for kind in TYPES_BY_NAME)):
        sys.exit(f"python gguf_files.py CHECKPOINT FILE [TYPE]; types: {', '.join(TYPES_BY_NAME)}")
    write_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), *(sys.argv[3:] or ["Q8_0"]))
