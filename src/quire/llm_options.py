"""LLMOptions: the keyword arguments of `LLM`, for type checkers and editors.

A test keeps it equal to the fields of quire.config, which have the defaults and descriptions.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypedDict


class LLMOptions(TypedDict, total=False):
    """Every engine setting but the model, by its name in quire.config."""

    tokenizer: str | PathLike[str] | None
    skip_tokenizer_init: bool | None
    chat_template: str | PathLike[str] | None
    generation_config: str | PathLike[str] | None
    override_generation_config: str | dict[str, float] | None
    revision: str | None
    served_model_name: str | list[str] | None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    quantization: (
        Literal[
            "none", "fp8", "fp8_w8a16", "int8", "w8a16", "int4", "nf4", "mxfp4", "dequantized",
            "awq", "gptq", "auto-round", "bitsandbytes", "compressed-tensors", "modelopt", "gguf",
        ]
        | None
    )  # fmt: skip
    quantization_overrides: str | None
    quality_gate: str | None
    max_model_len: int | None
    load_format: Literal["auto", "bitsandbytes", "dummy", "null"] | None
    prepared_weights: str | PathLike[str] | None
    pooling: Literal["auto", "mean", "last"] | None
    max_logprobs: int | None
    seed: int | None
    block_size: int | None
    num_blocks: int | None
    kv_cache_memory_bytes: int | None
    gpu_memory_utilization: float | None
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8"] | None
    kv_cache_dtype_skip_layers: str | None
    enable_prefix_caching: bool | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    scheduling_policy: Literal["fcfs", "priority"] | None
    enable_chunked_prefill: bool | None
    long_prefill_token_threshold: int | None
    itl_target_ms: float | None
    ttft_target_ms: float | None
    device: Literal["auto", "cpu", "cuda"] | None
    threads: int | None
    enforce_eager: bool | None
    batch_invariant: bool | None
