"""Further options of SGLang's server, and of TGI's launcher, by what they belong to."""

from __future__ import annotations

from functools import partial

from quire.compat import phrases as say
from quire.compat.foreign_name import DEFAULT, ForeignName, alias, each, only

_each = partial(each, engines="SGLang")
_tgi = partial(each, engines="TGI")
_EXPERTS = "experts run on the one device"

SGLANG_FAMILIES: tuple[ForeignName, ...] = (
    alias("tokenizer_path", "tokenizer", "SGLang"),
    only("cuda_graph_bs", "SGLang", (), "CUDA graphs are recorded for all sizes of a step",
         "leave it out"),
    alias("fastapi_root_path", "root_path", "SGLang"),
    alias("log_level_http", "log_level", "SGLang"),
    alias("tokenizer_worker_num", "api_server_count", "SGLang"),
    alias("watchdog_timeout", "engine_hang_timeout", "SGLang"),
    alias("max_prefill_tokens", "max_num_batched_tokens", "SGLang"),
    only("max_total_tokens", "SGLang, TGI", (), "it is the size of a cache, or the length of a "
         "request", "use num_blocks, or max_model_len"),
    *_each("pp_size expert_parallel_size ep_size dist_init_addr disaggregation_mode",
           say.ONE_DEVICE, say.MORE_DEVICES, 1, "null"),
    *_each("dist_timeout base_gpu_id gpu_id_step load_balance_method enable_nccl_nvls?"
           " enable_mscclpp? enable_dp_attention? enable_dp_lm_head? enable_p2p_check?",
           say.ONE_DEVICE),
    *_each("enable_ep_moe? moe_a2a_backend disable_shared_experts_fusion?", _EXPERTS),
    *_each("mm_attention_backend flashinfer_mla_disable_ragged? triton_attention_reduce_in_fp32?"
           " enable_torch_compile? torch_compile_max_bs disable_cuda_graph_padding?",
           say.OWN_KERNELS),
    *_each("quantization_param_path", "scales of an FP8 KV cache are the checkpoint's, or 1"),
    *_each("torchao_config modelopt_quant", "a checkpoint's quantization is read from its files",
           "use quantization"),
    *_each("schedule_conservativeness disable_overlap_schedule? enable_mixed_chunk?"
           " num_continuous_decode_steps stream_output?", "the scheduler needs no such tuning"),
    *_each("speculative_draft_model_path speculative_num_steps speculative_eagle_topk"
           " speculative_num_draft_tokens", say.ONE_TOKEN, "leave it out"),
    *_each("log_requests? log_requests_level show_time_cost? decode_log_interval"
           " bucket_time_to_first_token bucket_e2e_request_latency crash_dump_folder",
           "what is measured is in /metrics, and prompts are never logged"),
    *_each("enable_cache_report?", "usage always has the cached tokens"),
    *_each("file_storage_path", "files are read by `quire run-batch`"),
    *_each("constrained_json_whitespace_pattern", "each request has its own",
           "send it in structured_outputs"),
    *_each("preferred_sampling_params", "requests get the model's defaults",
           "use override_generation_config"),
    *_each("max_loras_per_batch", say.NO_ADAPTER),
    *_each("disable_outlines_disk_cache?", say.LLGUIDANCE),
    *_each("enable_nan_detection? delete_ckpt_after_loading? sleep_on_idle? skip_server_warmup?"
           " warmups enable_memory_saver? enable_multimodal?", "the engine needs no such setting"),
    *_each("allow_auto_truncate?", "a prompt is never shortened unasked",
           "send truncate_prompt_tokens in requests"),
    *_each("enable_custom_logit_processor?", say.NO_CODE, "leave it out"),
    *_each("disable_chunked_prefix_cache? enable_hierarchical_cache? hicache_ratio"
           " hybrid_kvcache_ratio", say.PREFIXES),
    *_each("completion_template", "prompts of completions are taken as they are", "leave it out"),
)  # fmt: skip

TGI_NAMES: tuple[ForeignName, ...] = (
    alias("model_id", "model", "TGI"),
    alias("quantize", "quantization", "TGI", values={"eetq": "w8a16", "bitsandbytes": "int8",
                                                     "bitsandbytes-nf4": "nf4"}),
    alias("max_concurrent_requests", "max_queued_requests", "TGI"),
    alias("max_batch_size", "max_num_seqs", "TGI"),
    alias("max_batch_prefill_tokens", "max_num_batched_tokens", "TGI"),
    alias("cuda_memory_fraction", "gpu_memory_utilization", "TGI"),
    alias("hostname", "host", "TGI"),
    alias("otlp_endpoint", "otlp_traces_endpoint", "TGI"),
    alias("cors_allow_origin", "allowed_origins", "TGI"),
    alias("payload_limit", "max_body_bytes", "TGI"),
    alias("json_output", "log_format", "TGI", values={True: "json", False: DEFAULT},
          arity="switch"),
    *_tgi("sharded num_shard", say.ONE_DEVICE, say.MORE_DEVICES, 1),
    *_tgi("validation_workers max_best_of max_stop_sequences waiting_served_ratio"
          " max_waiting_tokens max_batch_total_tokens max_client_batch_size",
          "the scheduler needs no such tuning"),
    *_tgi("max_top_n_tokens", "it is a limit of log-probabilities", "use max_logprobs"),
    *_tgi("max_input_tokens max_input_length", "prompt and answer share the context",
          "use max_model_len"),
    *_tgi("speculate", say.ONE_TOKEN, "leave it out"),
    *_tgi("huggingface_hub_cache weights_cache_override", say.HUB_CLIENT, say.HF_HOME),
    *_tgi("disable_custom_kernels? cuda_graphs", say.OWN_KERNELS),
    *_tgi("rope_factor", say.ROPE, say.EDIT),
    *_tgi("tokenizer_config_path", say.TEMPLATE, "use chat_template"),
    *_tgi("lora_adapters", say.NO_ADAPTER, say.MERGE),
    *_tgi("watermark_gamma watermark_delta", "answers have no watermark", "leave it out"),
    *_tgi("shard_uds_path master_shard_port usage_stats disable_usage_stats?"
          " disable_grammar_support? ngrok?", "there is nothing of the kind here"),
)  # fmt: skip
