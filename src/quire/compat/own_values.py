"""Values of Quire's own settings in the spellings of other engines, such as dtype="half"."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.compat.foreign_name import DEFAULT, same_value
from quire.errors import ConfigError
from quire.plain_values import plain_value

_FORMATS = ("safetensors", "hf", "fastsafetensors", "runai_streamer", "gguf")
_NO_PICKLE = "weights are read from safetensors; convert the checkpoint, and leave it out"
_LLAMA3 = ("llama3_json", "llama4_json", "llama", "llama_3")
_THINK = ("qwen3", "deepseek_r1", "deepseek-r1", "deepseek", "qwq", "qwen3-thinking", "glm45",
          "granite", "hunyuan_a13b")  # fmt: skip

_CASELESS = ("quantization", "dtype", "kv_cache_dtype", "log_level", "device", "method")
# settings that are a JSON object, which a YAML file has as a map
_JSON = ("default_chat_template_kwargs", "override_generation_config")
# of vLLM's `quantization`: what the checkpoint itself is
_CHECKPOINTS = {
    "auto_awq": "awq",
    "awq_marlin": "awq",
    "auto_gptq": "gptq",
    "gptq_marlin": "gptq",
    "inc": "auto-round",
    "modelopt_fp8": "modelopt",
    "modelopt_fp4": "modelopt",
    "modelopt_mxfp8": "modelopt",
    "modelopt_mixed": "modelopt",
    "petit_nvfp4": "modelopt",
    "fbgemm_fp8": "fp8",
}
_NOT_READ = (
    "torchao",
    "quark",
    "hqq",
    "fp_quant",
    "experts_int8",
    "moe_wna16",
    "humming",
    "aqlm",
    "marlin",
    "gptq_marlin_24",
    "bitblas",
    "gptq_bitblas",
    "deepspeedfp",
    "blockwise_int8",
    "w4afp8",
    "qoq",
    "rtn",
)

# types of GGUF files, of llama-quantize and `ollama create`, by their fix; in lower case
_OF_FILES = "a GGUF file says its types itself, so leave it out there"
_AS_INT8 = "q5_0 q5_1 q5_k q5_k_s q5_k_m q6_k q8_0"
_AS_INT4 = """
    q2_k q2_k_s q3_k q3_k_s q3_k_m q3_k_l q4_0 q4_1 q4_k q4_k_s q4_k_m mxfp4_moe
    iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq2_m iq3_xxs iq3_xs iq3_s iq3_m iq4_nl iq4_xs tq1_0 tq2_0
"""
_GGUF_TYPES = {
    name: f"{_OF_FILES}; use {own} to convert another model while it is loaded"
    for names, own in (
        (_AS_INT4, "'int4'"),
        (_AS_INT8, "'int8'"),
        ("f16", "dtype 'float16'"),
        ("bf16", "dtype 'bfloat16'"),
        ("f32", "dtype 'float32'"),
    )
    for name in names.split()
}

# names of the templates in llama.cpp's code
_TEMPLATES = """
    bailing bailing-think bailing2 chatglm3 chatglm4 chatml command-r deepseek deepseek-ocr
    deepseek2 deepseek3 exaone-moe exaone3 exaone4 falcon3 gemma gigachat glmedge gpt-oss granite
    granite-4.0 grok-2 hunyuan-dense hunyuan-moe hunyuan-ocr kimi-k2 llama2 llama2-sys
    llama2-sys-bos llama2-sys-strip llama3 llama4 megrez minicpm mistral-v1 mistral-v3
    mistral-v3-tekken mistral-v7 mistral-v7-tekken monarch openchat orion pangu-embedded phi3 phi4
    rwkv-world seed_oss smolvlm solar-open vicuna vicuna-orca yandex zephyr
"""
# types of KV caches, of vLLM and llama.cpp
_NO_KV_TYPE = """
    fp8_e5m2 fp8_inc fp8_ds_mla fp8_per_token_head nvfp4 q4_0 q4_1 q5_0 q5_1 iq4_nl
"""
_KV_TYPES = "its types have 16 or 8 bits; use 'fp8' or 'int8'"
_NO_TEMPLATE = (
    "llama.cpp's names are those of templates in its code; leave it out to use the model's own, or "
    "use a file, such as ./template.jinja, or the template itself"
)

# what libraries call the results of `quire quantize --method`, which several methods may make
_METHODS_OF = {
    "int4 w4a16 w4a16_asym": "use 'awq', 'gptq', 'autoround' or 'rtn', which needs no text",
    "w8a16 int8_w8a16": "INT8 beside 16-bit activations is made at load; serve the 16-bit model "
    "with quantization 'w8a16', or use 'fp8' with weight_only",
    "nvfp4 fp4": "such checkpoints are read, not made; use 'mxfp4'",
    "gguf": "GGUF files are read, not made; use another method, or llama.cpp's llama-quantize",
    "bnb bitsandbytes bnb_4bit": "use 'nf4', which is its type of 4 bits, or 'int8'",
    "compressed-tensors llm-compressor": "it is a format; use 'rtn', 'gptq', 'awq' or 'autoround' "
    "with format 'compressed-tensors', or 'int8' or 'fp8'",
    "w4a8 int3 int2": "weights have 8 or 4 bits, and activations beside 4 bits have 16; use "
    "'int8', or 'awq', 'gptq' or 'autoround' for 4 bits",
    "hqq aqlm quip spqr squeezellm eetq torchao quanto": "use 'awq', 'gptq' or 'autoround'",
}

_FIRST_GPU = "the first visible GPU is used; use 'cuda', and set CUDA_VISIBLE_DEVICES="

OWN_VALUES: Mapping[str, Mapping[Any, Any]] = {
    "dtype": {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32",
              "fp32": "float32"},
    "load_format": dict.fromkeys(_FORMATS, "auto"),
    "quantization": {"w8a8_fp8": "fp8", "ptpc_fp8": "fp8", "w8a8_int8": "int8"} | _CHECKPOINTS,
    "kv_cache_dtype": {"auto": "auto", "f16": "auto", "bf16": "auto", "q8_0": "int8",
                       "int8_per_token_head": "int8"},
    "generation_config": {"vllm": "none"},
    "method": {"auto-round": "autoround", "auto_round": "autoround", "signround": "autoround",
               "w8a8": "int8", "w8a8_int8": "int8", "fp8_dynamic": "fp8", "w8a8_fp8": "fp8"},
    "device": {"gpu": "cuda", "cuda:0": "cuda", "cuda0": "cuda", "none": "cpu"},
    "threads": {-1: DEFAULT, 0: DEFAULT},
    "max_model_len": {-1: DEFAULT, "auto": DEFAULT},
    "tool_call_parser": dict.fromkeys(_LLAMA3, "llama3")
    | {"qwen3_xml": "qwen3_coder", "qwen25": "hermes", "qwen": "hermes",
       "granite-20b-fc": "granite", "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31"},
    "reasoning_parser": dict.fromkeys(_THINK, "think"),
}  # fmt: skip

# values that other engines have and Quire has not, in any case: why, and what to use
REFUSED_VALUES: Mapping[str, Mapping[str, str]] = {
    "quantization": {
        **dict.fromkeys(
            _NOT_READ,
            "such checkpoints are not read; use `quire quantize` on the "
            "original, or quantization 'fp8', 'int8' or 'int4'",
        ),
        **_GGUF_TYPES,
    },
    "kv_cache_dtype": dict.fromkeys(_NO_KV_TYPE.split(), _KV_TYPES),
    "chat_template": dict.fromkeys(_TEMPLATES.split(), _NO_TEMPLATE),
    "device": {
        **{f"cuda:{i}": f"{_FIRST_GPU}{i}" for i in range(1, 16)},
        **{f"cuda{i}": f"{_FIRST_GPU}{i}" for i in range(1, 16)},
        **dict.fromkeys(
            ("mps", "metal", "rocm", "hip", "xpu", "tpu", "hpu", "npu", "vulkan"),
            "it runs on CPUs and NVIDIA GPUs; use 'cpu', or 'cuda'",
        ),
    },
    "method": {name: fix for names, fix in _METHODS_OF.items() for name in names.split()},
    "load_format": dict.fromkeys(("pt", "npcache", "tensorizer", "sharded_state"), _NO_PICKLE),
}


def own_value(name: str, value: Any) -> Any:
    """The value of one of Quire's settings as Quire spells it; DEFAULT: leave the setting out.

    None is the default of each setting. A torch.dtype is its name, an array or a set a list. Raises
    ConfigError for a value that is known and not there.
    """
    if value is None:
        return DEFAULT
    value = plain_value(value)
    if type(value).__module__.partition(".")[0] == "torch":
        value = str(value).removeprefix("torch.")
    if name == "served_model_name" and value == []:
        return DEFAULT
    if name in _JSON and isinstance(value, dict):
        return _as_json(name, value)
    if name == "seed" and same_value(value, -1):  # as in llama.cpp, Ollama and KoboldCpp
        return random.getrandbits(63)
    spelled = value.lower() if name in _CASELESS and isinstance(value, str) else value
    for foreign, own in OWN_VALUES.get(name, {}).items():
        if same_value(spelled, foreign):
            return own
    why = REFUSED_VALUES.get(name, {}).get(value.lower()) if isinstance(value, str) else None
    if why and not (name == "chat_template" and Path(value).is_file()):
        raise ConfigError(f"{name} {value!r} is not supported: {why}")
    return spelled


def _as_json(name: str, members: dict[Any, Any]) -> str:
    try:
        return json.dumps(members, default=plain_value)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(f"{name} must have JSON values, not {members!r:.64}") from None
