"""Settings of other servers: options of `quire serve`, and lines of its YAML file."""

from __future__ import annotations

import json
from functools import partial

from quire.compat import phrases as say
from quire.compat.foreign_name import DEFAULT, ForeignName, alias, always, each, no_effect, only

_V, _L, _O, _S, _LP = "vLLM", "llama.cpp", "Ollama", "SGLang", "llama-cpp-python"
_LEVELS = {"critical": "error", "fatal": "error", "trace": "debug"}
_NUMBERS = {0: "error", 1: "error", 2: "warning", 3: "info", 4: "debug", 5: "debug"}
_CORS = "a browser may send what the API needs"
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_THINKS, _THINKS_NOT = (f'{{"enable_thinking": {word}}}' for word in ("true", "false"))
_MARKS = tuple(
    make({"reasoning_start_str": begin, "reasoning_end_str": end})
    for begin, end in (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
    for make in (dict, json.dumps, partial(json.dumps, separators=(",", ":")))
)
_EXPERTS = "experts run on the one device"
_each = partial(each, engines=_S)
_tgi = partial(each, engines="TGI")

SERVER_NAMES: tuple[ForeignName, ...] = (
    no_effect("escape", _L, "texts of requests are taken as they are", "-e", arity="switch"),
    no_effect("enable_auto_tool_choice", _V,
              "tools are called wherever the chat template has them", arity="switch"),
    no_effect("chat_template_content_format", _V, "both kinds of content are rendered"),
    only("response_role", _V, ("assistant",), "answers have the role assistant", "leave it out"),
    only("tool_parser_plugin", _V, ("",), say.NO_CODE, "use tool_call_parser one of its names"),
    only("tool_server", _V, (), say.CLIENTS_RUN, "leave it out"),
    no_effect("trust_request_chat_template", _V, "templates run in a sandbox with limits",
              arity="switch"),
    no_effect("exclude_tools_when_tool_choice_none", _V,
              "with tool_choice none the template gets no tools", arity="switch"),
    alias("uvicorn_log_level", "log_level", _V, values=_LEVELS),
    alias("verbose", "log_level", _L, "-v", "--log-verbose", values={True: "debug", False: DEFAULT},
          arity="switch"),
    alias("log_disable", "log_level", _L, values={True: "error", False: DEFAULT}, arity="switch"),
    alias("timeout", "request_timeout", _L, "-to"),
    only("config_file", _LP, (), "a file of options is YAML", "use config"),
    no_effect("interrupt_requests", _LP, "requests are answered together"),
    no_effect("disable_ping_events", _LP, say.EVENTS_ALONE),
    *(no_effect(name, _LP, say.PREFIXES)
      for name in ("cache", "cache_type", "cache_size")),
    only("keep_alive", _O, (-1,), "a model stays loaded", "use idle_unload_seconds"),
    alias("max_queue", "max_queued_requests", _O),
    alias("max_num_queued_reqs", "max_queued_requests", _V),
    alias("max_num_queued_tokens", "max_queued_tokens", _V),
    *each("disable_log_requests? max_log_len", say.NOT_LOGGED),
    always("enable_log_requests", _V, "each request has one line in the log, without its prompt",
              arity="switch"),
    no_effect("log_prefix", _L, "lines have their level", arity="switch"),
    no_effect("log_timestamps", _L, "lines have their time", arity="switch"),
    no_effect("log_colors", _L, "lines have no colours", arity="optional"),
    only("log_file", _L, (), "the log goes to standard error", "redirect it: 2> FILE"),
    only("log_config_file", _V, (), "the log goes to standard error",
         "use log_level and log_format"),
    alias("disable_uvicorn_access_log", "access_log", _V, values={True: False, False: True},
          arity="switch"),
    only("disable_access_log_for_endpoints", _V, (), "probes are logged at the level debug alone",
         "use access_log false for no access log"),
    only("ssl_keyfile", _V, (), say.PLAIN_HTTP, say.PROXY),
    only("ssl_certfile", _V, (), say.PLAIN_HTTP, say.PROXY),
    only("ssl_key_file", _L, (), say.PLAIN_HTTP, say.PROXY),
    only("ssl_cert_file", _L, (), say.PLAIN_HTTP, say.PROXY),
    only("ssl_ca_certs", _V, (), say.PLAIN_HTTP, say.PROXY),
    only("middleware", _V, ([],), say.NO_CODE, say.PROXY),
    no_effect("allow_credentials", _V, "keys are sent in a header, not in cookies",
              arity="switch"),
    no_effect("cors_credentials", _L, "keys are sent in a header, not in cookies",
              arity="switch"),
    alias("cors_origins", "allowed_origins", _L),
    only("cors_methods", _L, ("*", "GET, POST, DELETE, OPTIONS"), _CORS, "leave it out"),
    only("cors_headers", _L, ("*",), _CORS, "leave it out"),
    alias("log_jsonl", "log_format", _L, values={True: "json", False: DEFAULT}, arity="switch"),
    alias("reasoning_effort", "default_chat_template_kwargs", _L, others=False,
          values={"default": DEFAULT, **{level: f'{{"reasoning_effort": "{level}"}}'
                                         for level in _EFFORTS}},
          text="a chat template knows few levels",
          fix="use default_chat_template_kwargs with what it reads"),
    only("embd_normalize", _L, (2,), "vectors are normalised as the model's files say",
         "send normalize in requests"),
    only("prefill_assistant", _L, (False,), "a last message of the assistant is another turn",
         "send continue_final_message in requests", arity="switch"),
    only("models_autoload", _L, (True,), "models are loaded as model_load says",
         "use model_load", arity="switch"),
    only("sse_ping_interval", _L, (-1, 0), say.EVENTS_ALONE,
         "raise the read timeout of the proxy in front"),
    no_effect("no_agent", _L, say.CLIENTS_RUN, "-no-ag", arity="switch"),
    only("allowed_methods", _V, ("*", '["*"]', ["*"]), _CORS, "leave it out"),
    only("allowed_headers", _V, ("*", '["*"]', ["*"]), _CORS, "leave it out"),
    no_effect("enable_prompt_tokens_details", _V, "usage always has the cached tokens",
              arity="switch"),
    no_effect("enable_server_load_tracking", _V, "/load is always there", arity="switch"),
    no_effect("enable_tokenizer_info_endpoint", _V, "/tokenizer_info is always there",
              arity="switch"),
    no_effect("show_hidden_metrics_for_version", _V, "older names of metrics are always there"),
    no_effect("disable_frontend_multiprocessing", _V, "the engine is always a process of its own",
              arity="switch"),
    *each("h11_max_incomplete_event_size h11_max_header_count",
          "headers have a limit of their own"),
    always("enable_metrics", _S, "/metrics is always there", arity="switch"),
    always("metrics", _L, "/metrics is always there", arity="switch"),
    no_effect("slots", _L, "the live view and the admin endpoints show running requests",
              arity="switch"),
    *each("no_slots? slot_prompt_similarity/-sps", "there are no slots", engines=_L),
    no_effect("props", _L, "the admin endpoints change settings", arity="switch"),
    no_effect("webui", _L, "the page is at /", "--ui", arity="switch"),
    only("no_webui", _L, (False,), "the page at / is always there", say.PROXY, "--no-ui",
         arity="switch"),
    no_effect("embeddings", _L, say.BOTH_TASKS, arity="switch"),
    alias("reasoning_format", "reasoning_parser", _L, others=False,
          values={"none": "none", "auto": DEFAULT, "deepseek": DEFAULT},
          text="reasoning is either a field of its own or in the text",
          fix="use auto or none"),
    alias("reasoning", "default_chat_template_kwargs", _L, "-rea", others=False,
          values={"on": _THINKS, "off": _THINKS_NOT, "auto": DEFAULT},
          text="the chat template says whether a model reasons", fix="use on, off or auto"),
    alias("reasoning_budget", "default_chat_template_kwargs", _L, others=False,
          values={-1: DEFAULT, 0: _THINKS_NOT}, text="each request has its own",
          fix="send thinking_token_budget in requests, or use SamplingParams in Python"),
    only("reasoning_config", _V, _MARKS, "reasoning has the marks of its parser",
         "use reasoning_parser one of its names"),
    alias("chat_template_kwargs", "default_chat_template_kwargs", _L),
    no_effect("enable_reasoning", _V, "reasoning_parser alone asks for it", arity="switch"),
    no_effect("reranking", _L, "/rerank is always there", "--rerank", arity="switch"),
    no_effect("spm_infill", _L, "infill tokens are written into the prompt", arity="switch"),
    alias("log_verbosity", "log_level", _L, "-lv", "--verbosity", values=_NUMBERS, others=False,
          text="levels have names", fix="use log_level 'debug'"),
    alias("api_prefix", "root_path", _L),
    alias("sleep_idle_seconds", "idle_unload_seconds", _L, values={-1: DEFAULT}),
    only("models_dir", _L, (), "several models are named one by one",
         "use --model NAME=FOLDER for each, or --config FILE"),
    only("models_preset", _L, (), "several models are named one by one",
         "use --model NAME=FOLDER for each, or --config FILE"),
    only("models_max", _L, (), "loaded models are bounded by their memory",
         "use model_memory_bytes"),
    only("webui_config", _L, (), "the page comes with the server", "leave it out", "--ui-config"),
    only("webui_config_file", _L, (), "the page comes with the server", "leave it out",
         "--ui-config-file"),
    only("media_path", _L, (), say.TEXT_ONLY, "leave it out"),
    only("slot_save_path", _L, (), say.NOT_ON_DISK, "leave it out"),
    only("path", _L, (), "the page comes with the server", say.PROXY),
    only("headless", _V, (False,), "each server has its API", "leave it out", arity="switch"),
)  # fmt: skip

# further options of SGLang's server, and of TGI's launcher
SGLANG_NAMES: tuple[ForeignName, ...] = (
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
