"""LLMArguments: the keyword arguments of `LLM`, for type checkers and editors.

Tests keep them equal to the fields of quire.config, which have the defaults and descriptions, and
to vLLM's names in the table of foreign names, whose values are checked at run time.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal, TypedDict


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
    quantization_overrides: str | list[str] | None
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
    kv_cache_dtype_skip_layers: str | list[str] | None
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


VLLMOptions = TypedDict("VLLMOptions", {  # noqa: UP013 - a class has a line for each name
    "additional_config": Any, "aggregate_engine_logging": Any, "all2all_backend": Any,
    "allow_deprecated_quantization": Any, "allowed_local_media_path": Any,
    "allowed_media_domains": Any, "async_scheduling": Any, "attention_backend": Any,
    "attention_config": Any, "aux_output_config": Any, "calculate_kv_scales": Any,
    "code_revision": Any, "collect_detailed_traces": Any, "compilation_config": Any,
    "config_format": Any, "convert": Any, "cp_kv_cache_interleave_size": Any,
    "cpu_distributed_timeout_seconds": Any, "cpu_offload_gb": Any, "cpu_offload_params": Any,
    "cudagraph_capture_sizes": Any, "cudagraph_metrics": Any, "custom_histogram_buckets": Any,
    "data_parallel_address": Any, "data_parallel_backend": Any, "data_parallel_external_lb": Any,
    "data_parallel_hybrid_lb": Any, "data_parallel_multi_port_external_lb": Any,
    "data_parallel_rank": Any, "data_parallel_rpc_port": Any, "data_parallel_size": Any,
    "data_parallel_size_local": Any, "data_parallel_start_rank": Any,
    "dbo_decode_token_threshold": Any, "dbo_prefill_token_threshold": Any, "dcp_comm_backend": Any,
    "dcp_kv_cache_interleave_size": Any, "dcp_q_replicate": Any,
    "decode_context_parallel_size": Any, "default_mm_loras": Any, "device_ids": Any,
    "device_memory_utilization": Any, "diffusion_config": Any, "disable_async_output_proc": Any,
    "disable_cascade_attn": Any, "disable_chunked_mm_input": Any, "disable_custom_all_reduce": Any,
    "disable_hybrid_kv_cache_manager": Any, "disable_log_stats": Any,
    "disable_nccl_for_dp_synchronization": Any, "disable_sliding_window": Any,
    "distributed_executor_backend": Any, "distributed_timeout_seconds": Any, "download_dir": Any,
    "dp_sync_interval": Any, "ec_manager_config": Any, "ec_transfer_config": Any,
    "elastic_ep_max_dp_size": Any, "enable_batch_sharded_sampling": Any,
    "enable_cumem_allocator": Any, "enable_dbo": Any, "enable_elastic_ep": Any,
    "enable_ep_weight_filter": Any, "enable_eplb": Any, "enable_expert_parallel": Any,
    "enable_fault_tolerance": Any, "enable_flashinfer_autotune": Any, "enable_hc_sp": Any,
    "enable_layerwise_nvtx_tracing": Any, "enable_logging_iteration_details": Any,
    "enable_lora": Any, "enable_mamba_cache_stochastic_rounding": Any,
    "enable_mamba_shared_prefix_checkpoint": Any, "enable_mfu_metrics": Any,
    "enable_mixed_moe_lora_format": Any, "enable_mm_embeds": Any, "enable_mm_processor_stats": Any,
    "enable_moe_shared_loras": Any, "enable_nccl_comm_suspend": Any, "enable_prompt_embeds": Any,
    "enable_return_routed_experts": Any, "enable_shm_tensor_arena": Any, "enable_sleep_mode": Any,
    "enable_tower_connector_lora": Any, "enable_trace_replay": Any, "engram_config": Any,
    "eplb_config": Any, "expert_placement_strategy": Any, "fail_on_environ_validation": Any,
    "fault_tolerance_config": Any, "fully_sharded_loras": Any, "gdn_prefill_backend": Any,
    "guided_decoding_backend": Any, "hf_config_path": Any, "hf_overrides": Any, "hf_token": Any,
    "ignore_patterns": Any, "interleave_mm_strings": Any, "io_processor_plugin": Any,
    "ir_op_priority": Any, "jit_monitor_mode": Any, "jit_monitor_verbose": Any,
    "kda_decode_backend": Any, "kda_prefill_backend": Any, "kernel_config": Any,
    "kv_cache_metrics": Any, "kv_cache_metrics_sample": Any, "kv_events_config": Any,
    "kv_offloading_backend": Any, "kv_offloading_size": Any, "kv_sharing_fast_prefill": Any,
    "kv_transfer_config": Any, "language_model_only": Any, "limit_mm_per_prompt": Any,
    "linear_backend": Any, "logging_config": Any, "logits_processor_pattern": Any,
    "logits_processors": Any, "logprobs_mode": Any, "long_prefill_token_threshold_adaptive": Any,
    "lora_dtype": Any, "lora_modules": Any, "lora_target_modules": Any, "mamba_backend": Any,
    "mamba_block_size": Any, "mamba_cache_dtype": Any, "mamba_cache_mode": Any,
    "mamba_cache_philox_rounds": Any, "mamba_config": Any, "mamba_ssm_cache_dtype": Any,
    "mamba_ssu_algorithm": Any, "master_addr": Any, "master_port": Any, "max_cpu_loras": Any,
    "max_cudagraph_capture_size": Any, "max_long_partial_prefills": Any, "max_lora_cls_labels": Any,
    "max_lora_rank": Any, "max_loras": Any, "max_num_active_seqs": Any,
    "max_num_partial_prefills": Any, "max_num_scheduled_tokens": Any,
    "max_parallel_loading_workers": Any, "max_seq_len_to_capture": Any, "media_io_kwargs": Any,
    "mm_device_do_normalize": Any, "mm_encoder_attn_backend": Any, "mm_encoder_attn_dtype": Any,
    "mm_encoder_fp8_scale_path": Any, "mm_encoder_fp8_scale_save_margin": Any,
    "mm_encoder_fp8_scale_save_path": Any, "mm_encoder_only": Any, "mm_encoder_tp_mode": Any,
    "mm_hasher_algorithm": Any, "mm_ipc_gpu_memory_gb": Any, "mm_processor_cache_gb": Any,
    "mm_processor_cache_type": Any, "mm_processor_device": Any, "mm_processor_kwargs": Any,
    "mm_shm_cache_max_object_size_mb": Any, "mm_tensor_ipc": Any, "model_class_overrides": Any,
    "model_impl": Any, "model_loader_extra_config": Any, "model_weights": Any, "moe_backend": Any,
    "monokernel": Any, "multi_step_stream_outputs": Any, "nnodes": Any, "node_rank": Any,
    "num_gpu_blocks_override": Any, "num_scheduler_steps": Any, "num_speculative_tokens": Any,
    "numa_bind": Any, "numa_bind_cpus": Any, "numa_bind_nodes": Any, "offload_backend": Any,
    "offload_group_size": Any, "offload_num_in_group": Any, "offload_params": Any,
    "offload_prefetch_step": Any, "optimization_level": Any, "override_pooler_config": Any,
    "per_request_spec_decode_metrics": Any, "performance_mode": Any, "pipeline_parallel_size": Any,
    "pooler_config": Any, "preemption_mode": Any, "prefill_context_parallel_size": Any,
    "prefill_schedule_interval": Any, "prefix_cache_retention_interval": Any,
    "prefix_caching_hash_algo": Any, "prefix_match_unit": Any, "profiler_config": Any,
    "pt_load_map_location": Any, "quantization_config": Any, "ray_workers_use_nsight": Any,
    "reasoning_parser_plugin": Any, "renderer_num_workers": Any, "replayssm_buffer_len": Any,
    "return_sampling_mask": Any, "rope_scaling": Any, "rope_theta": Any, "runner": Any,
    "safetensors_load_strategy": Any, "safetensors_prefetch_block_size": Any,
    "safetensors_prefetch_num_threads": Any, "scheduler_cls": Any, "scheduler_delay_factor": Any,
    "scheduler_reserve_full_isl": Any, "skip_mm_profiling": Any, "sleep_mode_backend": Any,
    "sleep_mode_offload_cudagraph": Any, "sleep_preserve_parameter_names": Any,
    "sparse_indexer_topk_backend": Any, "spec_method": Any, "spec_model": Any, "spec_tokens": Any,
    "specialize_active_lora": Any, "speculative_config": Any, "speculative_model": Any,
    "stream_interval": Any, "structured_outputs_config": Any, "swa_bounded_replay": Any,
    "swap_space": Any, "task": Any, "tensor_parallel_size": Any, "tokenizer_mode": Any,
    "tokenizer_pool_size": Any, "tokenizer_revision": Any, "tokens_only": Any,
    "trust_remote_code": Any, "use_fp64_gumbel": Any, "use_replayssm": Any, "use_tqdm_on_load": Any,
    "use_v2_block_manager": Any, "video_pruning_method": Any, "video_pruning_rate": Any,
    "watchdog_config": Any, "watermark": Any, "watermark_config": Any,
    "weight_transfer_config": Any, "worker_cls": Any, "worker_extension_cls": Any,
}, total=False)  # fmt: skip


class LLMArguments(LLMOptions, VLLMOptions, total=False):
    """The settings by their own names, which editors show first, and by vLLM's."""
