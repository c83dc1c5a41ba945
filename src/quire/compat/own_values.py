"""Values of Quire's own settings in the spellings of other engines, such as dtype="half"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quire.compat.foreign_name import DEFAULT, same_value
from quire.errors import ConfigError

_FORMATS = ("safetensors", "hf", "fastsafetensors", "runai_streamer", "gguf", "bitsandbytes")
_NO_PICKLE = "weights are read from safetensors; convert the checkpoint, and leave it out"
_LLAMA3 = ("llama3_json", "llama4_json", "llama", "llama_3")
_THINK = ("qwen3", "deepseek_r1", "deepseek-r1", "deepseek", "qwq", "qwen3-thinking", "glm45",
          "granite", "hunyuan_a13b")  # fmt: skip

# settings that are a JSON object, which a YAML file has as a map
_JSON = ("default_chat_template_kwargs", "override_generation_config")
# of vLLM's `quantization`: what the checkpoint itself is
_CHECKPOINTS = {
    "auto_awq": "awq",
    "awq_marlin": "awq",
    "auto_gptq": "gptq",
    "gptq_marlin": "gptq",
    "inc": "auto-round",
}
_NOT_READ = (
    "torchao",
    "quark",
    "hqq",
    "fp_quant",
    "fbgemm_fp8",
    "experts_int8",
    "moe_wna16",
    "humming",
    "modelopt_fp4",
    "modelopt_mxfp8",
    "modelopt_mixed",
)

OWN_VALUES: Mapping[str, Mapping[Any, Any]] = {
    "dtype": {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32",
              "fp32": "float32"},
    "load_format": dict.fromkeys(_FORMATS, "auto"),
    "quantization": {"w8a8_fp8": "fp8", "w8a8_int8": "int8"} | _CHECKPOINTS,
    "kv_cache_dtype": {"auto": "auto", "f16": "auto", "bf16": "auto", "q8_0": "int8"},
    "generation_config": {"vllm": "none"},
    "device": {"gpu": "cuda", "cuda:0": "cuda", "CUDA0": "cuda", "none": "cpu"},
    "max_model_len": {-1: DEFAULT, "auto": DEFAULT},
    "tool_call_parser": dict.fromkeys(_LLAMA3, "llama3")
    | {"qwen3_xml": "qwen3_coder", "qwen25": "hermes", "qwen": "hermes",
       "granite-20b-fc": "granite", "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31"},
    "reasoning_parser": dict.fromkeys(_THINK, "think"),
}  # fmt: skip

# values that other engines have and Quire has not: why, and what to use
REFUSED_VALUES: Mapping[str, Mapping[str, str]] = {
    "quantization": {
        **dict.fromkeys(
            _NOT_READ,
            "such checkpoints are not read; use `quire quantize` on the "
            "original, or quantization 'fp8', 'int8' or 'int4'",
        ),
        "bitsandbytes": "a checkpoint of bitsandbytes says it itself, so leave it out there; use "
        "'nf4' to quantize another one while it is loaded",
    },
    "load_format": dict.fromkeys(("pt", "npcache", "tensorizer", "sharded_state"), _NO_PICKLE),
}


def own_value(name: str, value: Any) -> Any:
    """The value of one of Quire's settings as Quire spells it; DEFAULT: leave the setting out.

    None is the default of each setting. A torch.dtype is its name. Raises ConfigError for a value
    that is known and not there.
    """
    if value is None:
        return DEFAULT
    if type(value).__module__.partition(".")[0] == "torch":
        value = str(value).removeprefix("torch.")
    if name == "served_model_name" and isinstance(value, list | tuple):
        return ",".join(map(str, value)) or DEFAULT
    if name in _JSON and isinstance(value, dict):
        return json.dumps(value)
    for foreign, own in OWN_VALUES.get(name, {}).items():
        if same_value(value, foreign):
            return own
    if isinstance(value, str) and (why := REFUSED_VALUES.get(name, {}).get(value)):
        raise ConfigError(f"{name} {value!r} is not supported: {why}")
    return value
