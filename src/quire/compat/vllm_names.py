"""Engine settings of vLLM and SGLang: arguments of `LLM(...)`, options and lines of YAML files."""

from __future__ import annotations

from quire.compat import phrases as say
from quire.compat.foreign_name import DEFAULT, ForeignName, alias, always, each, no_effect, only

_V, _S, _VS = "vLLM", "SGLang", "vLLM, SGLang"
_RECORDED = "CUDA graphs are recorded for steps of up to 8,192 tokens, padded to a few sizes"

VLLM_NAMES: tuple[ForeignName, ...] = (
    alias("device_memory_utilization", "gpu_memory_utilization", _V),
    alias("num_gpu_blocks_override", "num_blocks", _V),
    no_effect("enable_sleep_mode", _V, "LLM.sleep needs no preparation", arity="switch"),
    no_effect("trust_remote_code", _VS, "no code of a model's folder is ever run", arity="switch"),
    no_effect("code_revision", _V, "no code of a model's folder is ever run"),
    no_effect("swap_space", _V, "a preempted request is computed again, not swapped out"),
    only("preemption_mode", _V, ("recompute",), "a preempted request is computed again",
         "leave it out"),
    only("cpu_offload_gb", _V, (0,), "all weights are on one device",
         "use quantization='fp8', or a smaller model"),
    only("tensor_parallel_size", _V, (1,), say.ONE_DEVICE, say.MORE_DEVICES, "-tp"),
    only("tp_size", _S, (1,), say.ONE_DEVICE, say.MORE_DEVICES, "--tp"),
    only("pipeline_parallel_size", _V, (1,), say.ONE_DEVICE, say.MORE_DEVICES, "-pp"),
    only("data_parallel_size", _V, (1,), say.ONE_DEVICE, say.MORE_DEVICES, "-dp"),
    only("dp_size", _S, (1,), say.ONE_DEVICE, say.MORE_DEVICES, "--dp"),
    only("enable_expert_parallel", _V, (False,), say.ONE_DEVICE, say.MORE_DEVICES, "-ep",
         arity="switch"),
    *each("distributed_executor_backend worker_cls", say.ONE_DEVICE),
    no_effect("disable_custom_all_reduce", _VS, say.ONE_DEVICE, arity="switch"),
    no_effect("max_parallel_loading_workers", _V, "weights are read by as many threads as help"),
    no_effect("disable_log_stats", _V, "statistics are in /metrics, not in the log",
              arity="switch"),
    *each("max_seq_len_to_capture max_cudagraph_capture_size", _RECORDED),
    no_effect("cudagraph_capture_sizes", _V, _RECORDED, arity="numbers"),
    no_effect("cuda_graph_max_bs", _S, _RECORDED),
    no_effect("compilation_config", _V, "kernels are compiled for their shapes at the start",
              "-O", "-cc", neutral=({},)),
    no_effect("optimization_level", _V, "kernels are compiled for their shapes at the start",
              neutral=()),
    no_effect("performance_mode", _V, "one way of scheduling serves both"),
    no_effect("num_scheduler_steps", _V, "steps are always planned ahead"),
    always("async_scheduling", _V, "steps are always planned ahead", arity="switch"),
    always("multi_step_stream_outputs", _V, "each step is streamed", arity="switch"),
    no_effect("stream_interval", _VS, "each step is streamed"),
    no_effect("disable_async_output_proc", _V, "outputs are processed beside the next step",
              arity="switch"),
    always("use_v2_block_manager", _V, "there is one block manager", arity="switch"),
    no_effect("disable_hybrid_kv_cache_manager", _V, "there is one KV cache manager",
              arity="switch"),
    *each("max_num_partial_prefills max_long_partial_prefills",
          "any number of prompts may be cut into chunks"),
    only("scheduler_delay_factor", _V, (0,), "a request starts as soon as there is space",
         "leave it out"),
    no_effect("prefix_caching_hash_algo", _V, "block hashes are SHA-256"),
    no_effect("attention_backend", _VS, say.OWN_KERNELS),
    no_effect("sampling_backend", _S, say.OWN_KERNELS),
    no_effect("disable_cascade_attn", _V, say.OWN_KERNELS, arity="switch"),
    *each("guided_decoding_backend structured_outputs_config", say.LLGUIDANCE),
    no_effect("grammar_backend", _S, say.LLGUIDANCE),
    no_effect("collect_detailed_traces", _V, "traces have all that is measured"),
    no_effect("tokenizer_pool_size", _V, "each API process has a tokenizer"),
    no_effect("ignore_patterns", _V, "only what a model needs is downloaded"),
    only("tokenizer_mode", _VS, ("auto", "fast", "slow", "hf"),
         "tokenizer.json is read, which gives the same token ids",
         "use tokenizer= a folder with a tokenizer.json"),
    only("tokenizer_revision", _V, (), "the tokenizer is that of the model's revision",
         "use revision, or tokenizer= a folder"),
    only("config_format", _V, ("auto", "hf"), "config.json is read",
         "use a folder in Hugging Face's format"),
    only("model_impl", _VS, ("auto", "vllm", "sglang"), "models run by Quire's own code",
         "leave it out"),
    only("task", _V, ("auto", "generate", "embed", "embedding"),
         say.BOTH_TASKS, "leave it out; LLM.embed and /v1/embeddings embed"),
    only("runner", _V, ("auto", "generate", "pooling"), say.BOTH_TASKS,
         "leave it out; LLM.embed and /v1/embeddings embed"),
    only("convert", _V, ("auto", "none", "embed"), say.BOTH_TASKS,
         "leave it out; LLM.embed and /v1/embeddings embed"),
    no_effect("is_embedding", _S, say.BOTH_TASKS, arity="switch"),
    only("pooler_config", _V, (), "pooling follows the checkpoint's files", "use pooling"),
    only("override_pooler_config", _V, (), "pooling follows the checkpoint's files",
         "use pooling"),
    only("rope_scaling", "vLLM, llama.cpp", ({},), say.ROPE, say.EDIT),
    only("rope_theta", _V, (), say.ROPE, say.EDIT),
    only("hf_overrides", _V, ({},), say.AS_IT_IS, say.EDIT),
    only("json_model_override_args", _S, ("{}",), say.AS_IT_IS, say.EDIT),
    only("disable_sliding_window", _V, (False,), "windows are those of config.json",
         "lower max_model_len to the window", arity="switch"),
    only("download_dir", _VS, (), "downloads are in the hub client's folder", say.HF_HOME),
    only("hf_token", "vLLM, llama.cpp", (), "the hub's client reads the key", "set HF_TOKEN",
         "-hft"),
    only("model_loader_extra_config", _V, ({}, "{}"), "safetensors are mapped",
         "leave it out"),
    only("calculate_kv_scales", _V, (False,),
         "scales of an FP8 KV cache are the checkpoint's, or 1", "leave it out", arity="switch"),
    only("kv_transfer_config", _V, ({},), "each engine has a KV cache of its own",
         "leave it out"),
    only("kv_events_config", _V, ({},), "KV blocks are shown in the live view", "leave it out"),
    only("logits_processors", _V, ([],), "logits are changed by sampling params alone",
         say.CONSTRAIN),
    only("enable_prompt_embeds", _V, (False,), "prompts are text or token ids", "leave it out",
         arity="switch"),
    only("additional_config", _V, ({}, "{}"), say.NO_PLUG_INS, "leave it out"),
    only("enable_lora", _VS, (False,), say.NO_ADAPTER, say.MERGE, arity="switch"),
    only("lora_modules", _V, ([],), say.NO_ADAPTER, say.MERGE),
    only("lora_paths", _S, ([],), say.NO_ADAPTER, say.MERGE),
    *each("max_loras max_cpu_loras lora_dtype", say.NO_ADAPTER),
    no_effect("max_lora_rank", _VS, say.NO_ADAPTER),
    *each("limit_mm_per_prompt mm_processor_kwargs language_model_only?", say.TEXT_ONLY),
    only("speculative_config", _V, ({},), say.ONE_TOKEN, "leave it out", "-sc"),
    only("speculative_model", _V, (), say.ONE_TOKEN, "leave it out"),
    only("num_speculative_tokens", _V, (0,), say.ONE_TOKEN, "leave it out"),
    only("speculative_algorithm", _S, (), say.ONE_TOKEN, "leave it out"),
    alias("model_path", "model", _S),
    alias("context_length", "max_model_len", _S),
    alias("mem_fraction_static", "gpu_memory_utilization", _S),
    alias("max_running_requests", "max_num_seqs", _S),
    alias("chunked_prefill_size", "max_num_batched_tokens", _S, values={-1: DEFAULT}),
    alias("schedule_policy", "scheduling_policy", _S, values={"lpm": "fcfs"}),
    alias("page_size", "block_size", _S),
    alias("random_seed", "seed", _S),
    alias("disable_radix_cache", "enable_prefix_caching", _S,
          values={True: False, False: True}, arity="switch"),
    alias("disable_cuda_graph", "enforce_eager", _S, arity="switch"),
    only("hf_config_path", _V, (), "config.json is that of the model's folder",
         "change it in a copy of the folder"),
    only("logits_processor_pattern", _V, (), say.NO_CODE, "leave it out"),
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

# what `quire serve` is given besides
VLLM_SERVER_NAMES: tuple[ForeignName, ...] = (
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
