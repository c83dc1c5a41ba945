"""Engine settings of llama.cpp's server, of its binding llama-cpp-python, and of Ollama."""

from __future__ import annotations

from functools import partial

from quire.compat import phrases as say
from quire.compat.foreign_name import (
    ANY,
    DEFAULT,
    ForeignName,
    alias,
    always,
    each,
    no_effect,
    only,
)

_L, _LP, _O, _LO = "llama.cpp", "llama-cpp-python", "Ollama", "llama.cpp, Ollama"
_each = partial(each, engines=_L)
_CORES = "threads run on the cores of the process"
_CACHE_TYPES = {"f16": "auto", "bf16": "auto", "f32": "auto", "q8_0": "int8"}
_CACHE_NUMBERS = {0: "auto", 1: "auto", 30: "auto", 8: "int8"}  # ggml's data types
_CACHE_FIX = "use kv_cache_dtype 'fp8' or 'int8'"

LLAMA_CPP_NAMES: tuple[ForeignName, ...] = (
    alias("ctx_size", "max_model_len", _L, "-c", values={0: DEFAULT}),
    alias("n_ctx", "max_model_len", _L, values={0: DEFAULT}),
    alias("kv_unified_per_slot", "max_model_len", _L, values={0: DEFAULT}),
    alias("num_ctx", "max_model_len", _O),
    alias("n_threads", "threads", _L, values={-1: DEFAULT}),
    alias("num_thread", "threads", _O, values={0: DEFAULT}),
    alias("parallel", "max_num_seqs", _L, "-np", values={-1: DEFAULT}),
    alias("num_parallel", "max_num_seqs", _O),
    alias("batch_size", "max_num_batched_tokens", _L, "-b"),
    alias("n_batch", "max_num_batched_tokens", _L),
    alias("num_batch", "max_num_batched_tokens", _O),
    alias("cache_type_k", "kv_cache_dtype", _L, "-ctk", values=_CACHE_TYPES, others=False,
          text="the KV cache has one data type", fix=_CACHE_FIX),
    alias("cache_type_v", "kv_cache_dtype", _L, "-ctv", values=_CACHE_TYPES, others=False,
          text="the KV cache has one data type", fix=_CACHE_FIX),
    alias("n_gpu_layers", "device", _L, "-ngl", "--gpu-layers", values={0: "cpu"}, others=False,
          takes=ANY, text="all layers run on the one device"),
    alias("num_gpu", "device", _O, values={0: "cpu"}, others=False,
          takes=ANY, text="all layers run on the one device"),
    alias("hf_repo", "model", _L, "-hf", "-hfr"),
    alias("alias", "served_model_name", _L, "-a"),
    alias("chat_template_file", "chat_template", _L),
    alias("cache_prompt", "enable_prefix_caching", _L, arity="switch"),
    no_effect("kv_offload", _L, "the KV cache is where the model is", "-kvo", arity="switch"),
    *_each("ctx_checkpoints/--swa-checkpoints/-ctxcp swa_full?",
          "the whole KV of a window is stored"),
    no_effect("op_offload", _L, "all operations run on the one device", arity="switch"),
    only("cpu_moe", _L, (False,), say.ONE_DEVICE, "leave it out", "-cmoe", arity="switch"),
    only("n_cpu_moe", _L, (0,), say.ONE_DEVICE, "leave it out", "-ncmoe"),
    only("n_cpu_ffn", _L, (0,), say.ONE_DEVICE, "leave it out", "-ncffn"),
    no_effect("n_ubatch", _L, "a step's token budget is max_num_batched_tokens", "-ub",
              "--ubatch-size"),
    no_effect("threads_batch", _L, "prompts and answers share one batch", "-tb"),
    no_effect("threads_http", _L, "an API process needs one thread; see api_server_count"),
    always("cont_batching", _L, "batching is always continuous", "-cb", "-nocb", arity="switch"),
    no_effect("flash_attn", _L, say.OWN_KERNELS, "-fa", arity="optional", neutral=()),
    always("kv_unified", _L, "requests share one KV cache", "-kvu", "-no-kvu", arity="switch"),
    no_effect("cache_reuse", _L, "equal prefixes are always shared"),
    no_effect("cache_ram", _L, say.PREFIXES, "-cram", neutral=()),
    no_effect("defrag_thold", _L, "a paged KV cache needs no defragmentation", "-dt"),
    always("mmap", _L, say.MAPPED, arity="switch"),
    *_each("no_mmap? mlock?", say.MAPPED),
    always("use_mmap", _O, say.MAPPED),
    no_effect("numa", _L, "threads run on the cores of the process; use numactl"),
    no_effect("prio", _L, "the process keeps its priority; use nice"),
    no_effect("poll", _L, "threads sleep between steps"),
    always("warmup", _L, "kernels are always run once before the first request",
              arity="switch"),
    no_effect("no_warmup", _L, "kernels are always run once before the first request",
              arity="switch"),
    always("jinja", _L, "chat templates are always rendered", arity="switch"),
    no_effect("perf", _L, "times are in /metrics", arity="switch"),
    no_effect("fit", _L, "the KV cache takes what fits", "-fit", arity="optional"),
    *_each("fit_target/-fitt fit_ctx/-fitc", "the KV cache takes what fits"),
    no_effect("main_gpu", _L, "the first visible GPU is used; set CUDA_VISIBLE_DEVICES", "-mg"),
    only("split_mode", _L, ("none", "layer", 0, 1), say.ONE_DEVICE, "leave it out", "-sm"),
    only("tensor_split", _L, (), say.ONE_DEVICE, "run one server for each GPU", "-ts"),
    only("no_kv_offload", _L, (False,), "the KV cache is where the model is",
         "use device='cpu'", "-nkvo", arity="switch"),
    only("override_tensor", _L, (), say.ONE_DEVICE, "leave it out", "-ot"),
    only("override_kv", _L, (), say.AS_IT_IS, say.EDIT),
    only("rope_scale", _L, (1,), say.ROPE, say.EDIT),
    only("rope_freq_base", _LO, (0,), say.ROPE, say.EDIT),
    only("rope_freq_scale", _LO, (1,), say.ROPE, say.EDIT),
    only("model_url", _L, (), say.NO_FILES, say.DOWNLOAD, "-mu"),
    only("hf_file", _L, (), say.NO_FILES, say.DOWNLOAD, "-hff"),
    only("docker_repo", _L, (), say.NO_FILES, say.DOWNLOAD, "-dr"),
    only("mmproj", _L, (), say.TEXT_ONLY, "leave it out", "-mm"),
    only("lora", _L, (), say.NO_ADAPTER, say.MERGE),
    only("lora_scaled", _L, (), say.NO_ADAPTER, say.MERGE),
    only("adapter", _O, (), say.NO_ADAPTER, say.MERGE),
    only("control_vector", _L, (), "hidden states are the model's own", "leave it out"),
    only("model_draft", _L, (), say.ONE_TOKEN, "leave it out", "-md"),
    only("spec_type", _L, ("none",), say.ONE_TOKEN, "leave it out"),
    only("draft_max", _L, (0,), say.ONE_TOKEN, "leave it out", "--draft", "--draft-n"),
    only("draft_min", _L, (0,), say.ONE_TOKEN, "leave it out", "--draft-n-min"),
    only("keep", _L, (0, -1), "a context is never shifted: an answer ends at max_model_len",
         "raise max_model_len"),
    only("context_shift", _L, (False,), say.NO_SHIFT, "raise max_model_len", arity="switch"),
    only("offline", _L, (False,), "the hub is asked for models without a folder",
         "set HF_HUB_OFFLINE=1", arity="switch"),
    *_each("cpu_mask/-C cpu_range/-Cr cpu_mask_batch/-Cb cpu_range_batch/-Crb", _CORES,
           "use taskset"),
    *_each("cpu_strict cpu_strict_batch", _CORES),
    *_each("prio_batch", "the process keeps its priority; use nice"),
    *_each("poll_batch", "threads sleep between steps"),
    *_each("repack?/-nr", "weights are always stored as the kernels read them"),
    *_each("no_host?", "weights are where the model is"),
    *_each("load_mode/-lm lazy_mode/-lzm", say.MAPPED),
    *_each("check_tensors?", "types, shapes and sizes of tensors are always checked"),
    *_each("cache_idle_slots? checkpoint_min_step/-cms", say.PREFIXES),
    *_each("rpc", say.ONE_DEVICE, "leave it out"),
    *_each("yarn_orig_ctx yarn_ext_factor yarn_attn_factor yarn_beta_slow yarn_beta_fast",
           say.ROPE, say.EDIT,
           -1),
    *_each("lora_init_without_apply?", say.NO_ADAPTER, say.MERGE),
    *_each("control_vector_scaled control_vector_layer_range",
           "hidden states are the model's own", "leave it out"),
    *_each("mmproj_url/-mmu mmproj_device/-mmdev", say.TEXT_ONLY, "leave it out"),
    *_each("mmproj_auto? mmproj_offload? no_mmproj? image_min_tokens image_max_tokens"
           " mtmd_batch_max_tokens video_fps video_timestamp_interval video_ffmpeg_dir",
           say.TEXT_ONLY),
    *_each("spec_default? spec_draft_hf/-hfd/-hfrd/--hf-repo-draft spec_draft_model"
           " lookup_cache_static/-lcs lookup_cache_dynamic/-lcd", say.ONE_TOKEN, "leave it out"),
    *_each("spec_draft_threads/-td/--threads-draft spec_draft_n_max spec_draft_n_min"
           " spec_draft_threads_batch/-tbd/--threads-batch-draft"
           " spec_draft_cpu_mask/-Cd/--cpu-mask-draft spec_draft_cpu_range/-Crd/--cpu-range-draft"
           " spec_draft_cpu_strict/--cpu-strict-draft spec_draft_prio/--prio-draft"
           " spec_draft_poll/--poll-draft spec_draft_poll_batch/--poll-batch-draft"
           " spec_draft_cpu_mask_batch/-Cbd/--cpu-mask-batch-draft"
           " spec_draft_cpu_strict_batch/--cpu-strict-batch-draft"
           " spec_draft_prio_batch/--prio-batch-draft spec_draft_device/-devd/--device-draft"
           " spec_draft_override_tensor/-otd/--override-tensor-draft"
           " spec_draft_cpu_moe?/-cmoed/--cpu-moe-draft"
           " spec_draft_n_cpu_moe/--spec-draft-ncmoe/-ncmoed/--n-cpu-moe-draft"
           " spec_draft_ngl/-ngld/--gpu-layers-draft/--n-gpu-layers-draft"
           " spec_draft_p_min/--draft-p-min spec_draft_p_split/--draft-p-split"
           " spec_draft_type_k/-ctkd/--cache-type-k-draft"
           " spec_draft_type_v/-ctvd/--cache-type-v-draft spec_draft_backend_sampling?"
           " spec_ngram_mod_n_match spec_ngram_mod_n_min spec_ngram_mod_n_max"
           " spec_ngram_simple_size_n spec_ngram_simple_size_m spec_ngram_simple_min_hits"
           " spec_ngram_map_k_size_n spec_ngram_map_k_size_m spec_ngram_map_k_min_hits"
           " spec_ngram_map_k4v_size_n spec_ngram_map_k4v_size_m spec_ngram_map_k4v_min_hits"
           " spec_ngram_size_n spec_ngram_size_m spec_ngram_min_hits spec_synth_len"
           " spec_synth_rates", say.ONE_TOKEN),
    *_each("embd_gemma_default? fim_qwen_1_5b_default?/--fim-qwen-1.5b-default"
           " fim_qwen_3b_default? fim_qwen_7b_default? fim_qwen_7b_spec? fim_qwen_14b_spec?"
           " fim_qwen_30b_default? gpt_oss_20b_default? gpt_oss_120b_default?"
           " vision_gemma_4b_default? vision_gemma_12b_default?",
           "a model is named by its folder or its name on the hub", "write it after the command"),
)  # fmt: skip

LLAMA_PYTHON_NAMES: tuple[ForeignName, ...] = (
    alias("type_k", "kv_cache_dtype", _LP, values=_CACHE_NUMBERS, others=False,
          text="the KV cache has one data type", fix=_CACHE_FIX),
    alias("type_v", "kv_cache_dtype", _LP, values=_CACHE_NUMBERS, others=False,
          text="the KV cache has one data type", fix=_CACHE_FIX),
    alias("model_alias", "served_model_name", _LP),
    no_effect("n_threads_batch", _LP, "prompts and answers share one batch"),
    no_effect("use_mlock", _LP, "prepared weights are mapped, and the system may drop their pages"),
    no_effect("offload_kqv", _LP, "the KV cache is where the model is"),
    no_effect("no_perf", _LP, "times are in output.metrics", arity="switch"),
    no_effect("logits_all", _LP, "each request asks for its log-probabilities"),
    no_effect("embedding", _LP, say.BOTH_TASKS, arity="switch"),
    no_effect("last_n_tokens_size", _LP, "penalties cover the whole answer"),
    only("vocab_only", _LP, (False,), "a model is loaded whole", "use transformers' AutoTokenizer"),
    only("kv_overrides", _LP, (), say.AS_IT_IS, say.EDIT),
    only("rope_scaling_type", _LP, (-1,), say.ROPE, say.EDIT),
    only("attention_type", _LP, (-1,), "attention is that of config.json", say.EDIT),
    only("pooling_type", _LP, (-1,), "pooling is a setting by its name", "use pooling"),
    only("lora_base", _LP, (), say.NO_ADAPTER, say.MERGE),
    only("lora_path", _LP, (), say.NO_ADAPTER, say.MERGE),
    only("lora_scale", _LP, (1,), say.NO_ADAPTER, say.MERGE),
    only("chat_format", _LP, (), say.TEMPLATE, "use chat_template, or leave it out"),
    only("chat_handler", _LP, (), say.TEMPLATE, "use chat_template, or leave it out"),
    only("draft_model", _LP, (), say.ONE_TOKEN, "leave it out"),
)  # fmt: skip

LLAMA_SERVER_NAMES: tuple[ForeignName, ...] = (
    *_each("agent?/-ag tools tools_runtime mcp_servers_config mcp_servers_json"
           " ui_mcp_proxy?/--webui-mcp-proxy", say.CLIENTS_RUN, "leave it out"),
    *_each("no_ui_mcp_proxy?/--no-webui-mcp-proxy", say.CLIENTS_RUN),
    *_each("backend_sampling?/-bs", "tokens are drawn where the model runs"),
    *_each("tags", "models are listed by their names"),
    *_each("reuse_port?", "the API processes of a server share its port", "use api_server_count"),
    *_each("log_prompts_dir", say.NOT_LOGGED, "leave it out"),
    *_each("skip_chat_parsing?", "tool calls and reasoning are parsed",
           "use tool_call_parser 'none' and reasoning_parser 'none'"),
    *_each("reasoning_budget_message", "the end of reasoning is forced as the model marks it",
           "leave it out"),
    *_each("reasoning_preserve?", "the chat template decides which reasoning it reads"),
    *_each("json_schema grammar logit_bias", "each request sets it",
           "send it there, or use SamplingParams of LLM in Python"),
    *_each("list_devices?", "a server has one device", "use --dry-run, which names it"),
    *_each("cache_list?/-cl", "models on disk are the hub's", "run hf cache ls"),
    *_each("completion_bash?", "completion is a command", "run quire completion bash"),
    *_each("version?", "the version is not an option of a command", "run quire --version"),
    *_each("usage?", "a command explains itself", "use --help"),
)  # fmt: skip
