"""Names of tensors in GGUF files, as the names that models in Hugging Face's format have."""

from __future__ import annotations

import re

from quire.gguf.architectures import Architecture

# the rotary embedding's factors: a setting of the model, not a weight
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_WHOLE = {
    EMBEDDING: "model.embed_tokens.weight",
    HEAD: "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,3})\.(\w+)\.(weight|bias)")
_LAYER = re.compile(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)")


def model_name(name: str, architecture: Architecture) -> str | None:
    """The name of a tensor in the model; None for one that no family here has."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    layer, part, leaf = match.groups()
    module = _parts(architecture).get(part)
    return None if module is None else f"model.layers.{layer}.{module}.{leaf}"


def file_name(name: str, architecture: Architecture) -> str:
    """The name in a file of a tensor that the model has; the same for one that no file has."""
    whole = {model: own for own, model in _WHOLE.items()}
    match = _LAYER.fullmatch(name)
    if match is None:
        return whole.get(name, name)
    layer, module, leaf = match.groups()
    parts = {module: part for part, module in _parts(architecture).items()}
    return f"blk.{layer}.{parts[module]}.{leaf}" if module in parts else name


def _parts(architecture: Architecture) -> dict[str, str]:
    return _PARTS | dict(architecture.parts)
