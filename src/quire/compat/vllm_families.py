"""Families of vLLM's settings that belong to something that Quire does not have or set."""

from __future__ import annotations

from quire.compat import phrases as say
from quire.compat.foreign_name import ForeignName, each

VLLM_FAMILIES: tuple[ForeignName, ...] = (
    *each("mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm mm_encoder_only?"
          " mm_shm_cache_max_object_size_mb mm_encoder_tp_mode mm_encoder_attn_backend"
          " mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path"
          " mm_encoder_fp8_scale_save_margin mm_tensor_ipc mm_processor_device"
          " mm_ipc_gpu_memory_gb mm_device_do_normalize? media_io_kwargs interleave_mm_strings?"
          " enable_mm_embeds? skip_mm_profiling? enable_mm_processor_stats?"
          " disable_chunked_mm_input? video_pruning_rate video_pruning_method"
          " allowed_local_media_path allowed_media_domains",
          say.TEXT_ONLY),
    *each("prefill_context_parallel_size/-pcp decode_context_parallel_size/-dcp"
          " data_parallel_size_local/-dpl nnodes enable_eplb? enable_elastic_ep? enable_dbo?",
          say.ONE_DEVICE,
          say.MORE_DEVICES, 1),
    *each("data_parallel_rank/-dpn data_parallel_start_rank/-dpr data_parallel_address/-dpa"
          " data_parallel_rpc_port/-dpp data_parallel_hybrid_lb?/-dph"
          " data_parallel_external_lb?/-dpe data_parallel_multi_port_external_lb?/-dpm"
          " data_parallel_backend/-dpb dcp_comm_backend"
          " dcp_q_replicate? dcp_kv_cache_interleave_size cp_kv_cache_interleave_size"
          " master_addr master_port node_rank distributed_timeout_seconds"
          " cpu_distributed_timeout_seconds numa_bind? numa_bind_nodes numa_bind_cpus"
          " device_ids all2all_backend elastic_ep_max_dp_size dp_sync_interval"
          " dbo_decode_token_threshold dbo_prefill_token_threshold eplb_config"
          " disable_nccl_for_dp_synchronization? expert_placement_strategy"
          " enable_ep_weight_filter? enable_hc_sp? enable_batch_sharded_sampling?"
          " enable_nccl_comm_suspend? ray_workers_use_nsight?",
          say.ONE_DEVICE),
    *each("moe_backend linear_backend sparse_indexer_topk_backend gdn_prefill_backend"
          " kda_prefill_backend kda_decode_backend mamba_backend attention_config/-ac kernel_config"
          " enable_flashinfer_autotune? monokernel? ir_op_priority kv_sharing_fast_prefill?"
          " swa_bounded_replay? use_fp64_gumbel?",
          say.OWN_KERNELS),
    *each("mamba_config mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size"
          " mamba_cache_mode mamba_ssu_algorithm mamba_cache_philox_rounds"
          " enable_mamba_shared_prefix_checkpoint? enable_mamba_cache_stochastic_rounding?"
          " use_replayssm? replayssm_buffer_len engram_config",
          "no family of models here has such layers"),
    *each("offload_group_size offload_num_in_group offload_prefetch_step offload_params"
          " cpu_offload_params kv_offloading_size",
          "weights and KV cache are on one device",
          "use quantization='fp8', kv_cache_dtype='fp8', or a smaller model"),
    *each("offload_backend kv_offloading_backend", "weights and KV cache are on one device"),
    *each("fully_sharded_loras? lora_target_modules max_lora_cls_labels default_mm_loras"
          " enable_tower_connector_lora? specialize_active_lora? enable_moe_shared_loras?"
          " enable_mixed_moe_lora_format?",
          say.NO_ADAPTER),
    *each("spec_method spec_model spec_tokens", say.ONE_TOKEN, "leave it out"),
    *each("kv_cache_metrics? kv_cache_metrics_sample cudagraph_metrics? enable_mfu_metrics?"
          " enable_layerwise_nvtx_tracing? enable_logging_iteration_details?"
          " aggregate_engine_logging? per_request_spec_decode_metrics jit_monitor_mode"
          " jit_monitor_verbose? custom_histogram_buckets",
          "what is measured is in /metrics"),
    *each("safetensors_load_strategy safetensors_prefetch_num_threads use_tqdm_on_load?"
          " safetensors_prefetch_block_size pt_load_map_location enable_shm_tensor_arena?",
          "safetensors are mapped, and read by as many threads as help"),
    *each("sleep_mode_backend sleep_mode_offload_cudagraph? sleep_preserve_parameter_names"
          " enable_cumem_allocator?", "LLM.sleep needs no preparation"),
    *each("enable_fault_tolerance? fault_tolerance_config watchdog_config",
          "an engine that dies or hangs is always restarted"),
    *each("prefix_cache_retention_interval prefix_match_unit",
          "cached blocks stay until their memory is needed"),
    *each("long_prefill_token_threshold_adaptive? scheduler_reserve_full_isl? watermark"
          " prefill_schedule_interval", "the scheduler needs no such tuning"),
    *each("max_num_scheduled_tokens", "a step has one budget of tokens",
          "use max_num_batched_tokens"),
    *each("max_num_active_seqs", "a step has one limit of requests", "use max_num_seqs"),
    *each("renderer_num_workers", "prompts are read by the API processes"),
    *each("io_processor_plugin reasoning_parser_plugin scheduler_cls worker_extension_cls"
          " model_class_overrides aux_output_config",
          say.NO_PLUG_INS, "leave it out"),
    *each("weight_transfer_config ec_transfer_config ec_manager_config watermark_config"
          " diffusion_config/-dc enable_trace_replay? enable_return_routed_experts?"
          " return_sampling_mask? tokens_only? quantization_config model_weights",
          "there is nothing of the kind here", "leave it out"),
    *each("profiler_config", "profiles are made by a command of their own",
          "leave it out, and run quire profile MODEL"),
    *each("logging_config", "the log goes to standard error",
          "use log_level and log_format of quire serve"),
    *each("logprobs_mode", "log-probabilities are those of the model's own distribution",
          "leave it out", "raw_logprobs"),
    *each("allow_deprecated_quantization?", "a checkpoint's quantization is read from its files"),
    *each("fail_on_environ_validation?", "other engines' environment variables are not read"),
)  # fmt: skip

SERVER_FAMILIES: tuple[ForeignName, ...] = (
    *each("trust_request_mm_kwargs?", say.TEXT_ONLY),
    *each("enable_log_outputs? enable_log_deltas?", "texts are never logged"),
    *each("log_error_stack?", "an internal error's traceback is always logged"),
    *each("enable_per_request_metrics?", "what is measured is in /metrics"),
    *each("dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s"
          " dp_supervisor_probe_failure_threshold data_parallel_supervisor_port",
          say.ONE_DEVICE),
    *each("cohere_is_reasoning_model? cohere_format", "there are no routes of Cohere's chat API"),
    *each("enable_offline_docs?", "the page at /docs needs no network"),
    *each("enable_flash_late_interaction?", say.OWN_KERNELS),
    *each("enable_ssl_refresh? ssl_cert_reqs ssl_ciphers", say.PLAIN_HTTP, say.PROXY),
    *each("disable_fastapi_docs?", "the page at /docs has nothing of this server's data",
          "put a proxy in front that refuses /docs"),
    *each("sse_keep_alive_interval", say.EVENTS_ALONE,
          "raise the read timeout of the proxy in front"),
    *each("grpc? grpc_port enable_scale_out?", "the server speaks HTTP alone", "leave it out"),
    *each("reasoning_effort_map anthropic_disabled_thinking_effort",
          "the chat template reads reasoning_effort as it is", "use default_chat_template_kwargs"),
    *each("tool_strict_level", "arguments are enforced for tools with strict", "set it in tools"),
    *each("fingerprint_mode fingerprint_value", "the fingerprint follows model and settings",
          "leave it out"),
)  # fmt: skip
