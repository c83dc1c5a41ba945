"""A checkpoint's entry on its KV cache: keys and values in FP8, and their scales.

No torch. Scales are tensors of one number, or of one for each head, beside the attention layer's
weights: codes times the scale are the key or the value.
"""

from __future__ import annotations

import re

import msgspec

from quire.config_file import ConfigFile

# vLLM's and ModelOpt's names, those of llm-compressor, and AutoFP8's `k_proj.output_scale`
_SCALE = re.compile(
    r"(?P<layer>(?:.*\.)?layers\.\d+)\.self_attn\."
    r"(?:attn\.|(?:qkv|(?P<module>[qkv]))_proj\.)?(?P<name>(?:[qkv]|kv|prob|output)_scale)"
)
# queries and probabilities are not rounded here, so that their scales have no use
_KINDS = {"k_scale": "k", "v_scale": "v", "kv_scale": "kv", "q_scale": "", "prob_scale": ""}


class KVScaleName(msgspec.Struct, frozen=True):
    """A tensor with scales of an FP8 KV cache.

    layer: its module's name. kinds: "k", "v" or both, whose scale it is; empty for one that has no
    use here.
    """

    layer: str
    kinds: str


def kv_scale_name(tensor: str) -> KVScaleName | None:
    """The scale that a tensor of this name is: its layer and kinds; None for all other names."""
    found = _SCALE.fullmatch(tensor)
    if found is None:
        return None
    module, name = found["module"], found["name"]
    if name == "output_scale":
        return None if module is None else KVScaleName(found["layer"], module.replace("q", ""))
    return KVScaleName(found["layer"], _KINDS[name])


def read_kv_cache_dtype(section: ConfigFile | None) -> str | None:
    """The setting `kv_cache_dtype` that a checkpoint was made for: "fp8", or None for none.

    section: its quantization_config, or that of hf_quant_config.json. Raises CheckpointError.
    """
    if section is None:
        return None
    if section.get("kv_cache_quant_algo") == "FP8":  # ModelOpt's
        return "fp8"
    scheme = section.get("kv_cache_scheme")
    if scheme is None or isinstance(scheme, str):  # AutoFP8's, and ModelOpt's for other types
        return "fp8" if scheme in ("static", "FP8") else None
    found = section.section("kv_cache_scheme")
    if found is None:
        return None
    is_fp8 = (found.text("type", "float"), found.integer("num_bits", 8)) == ("float", 8)
    return "fp8" if is_fp8 else None
