"""The metadata of a GGUF file as the config.json of the model that it holds."""

from __future__ import annotations

import math
import struct
from typing import Any

from quire.gguf.architectures import ARCHITECTURES, Architecture
from quire.gguf.gguf_header import GgufHeader, GgufTensor
from quire.gguf.metadata import Metadata
from quire.gguf.tensor_names import EMBEDDING, HEAD, ROPE_FACTORS, model_name

ARCHITECTURE = "general.architecture"
METHOD = "gguf"  # of quantization_config
_LAYERS_OF_GEMMA2_27B = 46  # whose scores are scaled by its hidden size; no key says so


def read_architecture(metadata: Metadata) -> Architecture:
    """The architecture of a file. Raises CheckpointError for one that is not supported."""
    name = metadata.text(ARCHITECTURE)
    if name not in ARCHITECTURES:
        raise metadata.wrong(
            ARCHITECTURE,
            f"is {name[:64]!r}, which is not supported; take a model of {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[name]


def model_settings(header: GgufHeader, eos_token_ids: list[int]) -> dict[str, Any]:
    """The object of config.json. Raises CheckpointError for what the file lacks or has too much."""
    metadata, tensors = header.metadata, header.tensors
    architecture, name = read_architecture(metadata), metadata.text(ARCHITECTURE)
    settings = _sizes(metadata, name)
    if EMBEDDING not in tensors:
        raise metadata.wrong(EMBEDDING, "is missing; take a file with the whole model")
    settings |= {
        "architectures": [architecture.model_class],
        "model_type": name,
        "vocab_size": tensors[EMBEDDING].shape[0],
        "tie_word_embeddings": HEAD not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "eos_token_id": eos_token_ids,
        "dtype": _dtype(header),
    }
    settings |= _rope(header, name, settings["head_dim"])
    if name == "gemma2":
        settings |= _gemma2(metadata, settings)
    types = _quantized_modules(header, architecture)
    if types:
        settings["quantization_config"] = {"quant_method": METHOD, "types": types}
    return settings


def _sizes(metadata: Metadata, name: str) -> dict[str, Any]:
    """The sizes of layers, which are all alike."""
    if metadata.integer(f"{name}.expert_count", 0, low=0) > 0:
        raise metadata.wrong(f"{name}.expert_count", "is not 0; take a model without experts")
    hidden, heads = metadata.size(f"{name}.embedding_length"), f"{name}.attention.head_count"
    num_heads = metadata.size(heads)
    head_dim = metadata.integer(f"{name}.attention.key_length", max(1, hidden // num_heads))
    value_dim = metadata.integer(f"{name}.attention.value_length", head_dim)
    if value_dim != head_dim:
        raise metadata.wrong(
            f"{name}.attention.value_length", f"is {value_dim}, not {head_dim} as of keys, which "
            "is not supported; take another model",
        )  # fmt: skip
    return {
        "hidden_size": hidden,
        "num_hidden_layers": metadata.integer(f"{name}.block_count"),
        "intermediate_size": metadata.size(f"{name}.feed_forward_length"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.size(f"{heads}_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer(f"{name}.context_length"),
        "rms_norm_eps": metadata.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "sliding_window": metadata.integer(f"{name}.attention.sliding_window", 0, low=0) or None,
    }


def _dtype(header: GgufHeader) -> str:
    """The data type that the model runs in: float32 if all is; else what kernels are fast in."""
    kinds = {each.kind.name for each in header.tensors.values()}
    return "float32" if kinds == {"F32"} else "bfloat16"


def _rope(header: GgufHeader, name: str, head_dim: int) -> dict[str, Any]:
    """Base, rotated share and scaling of the rotary embedding."""
    metadata = header.metadata
    rotary_dim = metadata.integer(f"{name}.rope.dimension_count", head_dim)
    found = {
        "rope_theta": metadata.number(f"{name}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(header, f"{name}.rope.scaling", rotary_dim),
    }
    if rotary_dim != head_dim:  # a little more, as the product is rounded down
        found["partial_rotary_factor"] = (rotary_dim + 0.25) / head_dim
    trained = metadata.integer(f"{name}.rope.scaling.original_context_length", 0, low=0)
    return found | ({"original_max_position_embeddings": trained} if trained else {})


def _rope_scaling(header: GgufHeader, key: str, rotary_dim: int) -> dict[str, Any] | None:
    """rope_scaling of config.json: by the file's factors, or else by the kind that it names."""
    metadata, freqs, long, short = header.metadata, *(map(header.tensors.get, ROPE_FACTORS))
    kind = metadata.text(f"{key}.type", "none")
    attention = metadata.number(f"{key}.attn_factor", 1.0)
    if freqs is not None and kind in ("none", "linear"):
        # Llama 3's scaling, worked out when the file was made: each frequency has a divisor
        stretch = metadata.number(f"{key}.factor", 1.0) if kind == "linear" else 1.0
        factors = [stretch * each for each in _factors(header, freqs, rotary_dim)]
        return _longrope(factors, factors, 1.0)
    if long is not None and short is not None:
        return _longrope(
            _factors(header, short, rotary_dim), _factors(header, long, rotary_dim), attention
        )
    if kind == "none":
        return None
    factor = metadata.number(f"{key}.factor", 1.0)
    if kind == "linear":
        return {"rope_type": kind, "factor": factor}
    if kind == "yarn" and freqs is None:
        mscale = 0.1 * math.log(max(factor, 1.0)) + 1.0
        found = {"rope_type": kind, "factor": factor, "attention_factor": attention * mscale}
        for beta, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)):
            found[beta] = metadata.number(f"{key}.yarn_{beta}", usual)
        return found
    raise metadata.wrong(
        f"{key}.type", f"is {kind[:64]!r} here, which is not supported; take another file"
    )


def _longrope(short: list[float], long: list[float], attention: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "attention_factor": attention,
    }


def _factors(header: GgufHeader, tensor: GgufTensor, rotary_dim: int) -> list[float]:
    """The numbers of a small float32 tensor, one for each frequency."""
    if tensor.kind.name != "F32" or tensor.shape != (rotary_dim // 2,):
        found = f"{tensor.kind.name} {list(tensor.shape)}"
        raise header.metadata.wrong(
            tensor.name, f"is {found}, not F32 [{rotary_dim // 2}]; convert the model again"
        )
    with header.path.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{tensor.shape[0]}f", file.read(tensor.num_bytes)))


def _gemma2(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    is_largest = settings["num_hidden_layers"] == _LAYERS_OF_GEMMA2_27B
    per_head = settings["hidden_size"] // settings["num_attention_heads"]
    return {
        "query_pre_attn_scalar": per_head if is_largest else settings["head_dim"],
        "attn_logit_softcapping": metadata.number("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number("gemma2.final_logit_softcapping", 30.0),
        "sliding_window": metadata.integer("gemma2.attention.sliding_window", 4096),
    }


def _quantized_modules(header: GgufHeader, architecture: Architecture) -> dict[str, str]:
    """The types of quantized weights, by the names of their modules."""
    found = {}
    for tensor in header.tensors.values():
        name = model_name(tensor.name, architecture)
        if tensor.kind.is_quantized and name is not None:
            found[name.removesuffix(".weight")] = tensor.kind.name
    return found
