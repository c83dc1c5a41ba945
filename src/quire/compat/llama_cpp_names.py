"""Engine settings of llama.cpp's server, of its binding llama-cpp-python, and of Ollama."""

from __future__ import annotations

from quire.compat.foreign_name import ANY, DEFAULT, ForeignName, alias, no_effect, only

_L, _LP, _O, _LO = "llama.cpp", "llama-cpp-python", "Ollama", "llama.cpp, Ollama"
_ROPE = "RoPE is that of config.json"
_EDIT = "change config.json in a copy of the model's folder"
_NO_DOWNLOAD = "single files are not downloaded"
_DOWNLOAD = "download the GGUF file (hf download REPO FILE), and name it as the model"
_ONE_DEVICE = "a model runs on one device"
_DRAFT = "a step samples one token of each request"
_NO_ADAPTER = "the weights are those of the model's folder"
_MERGE = "merge the adapter into its model (peft: merge_and_unload), and load the merged folder"
_MAPPED = "prepared weights are mapped, and the system may drop and read their pages"
_CACHE_TYPES = {"f16": "auto", "bf16": "auto", "f32": "auto", "q8_0": "int8"}
_CACHE_NUMBERS = {0: "auto", 1: "auto", 30: "auto", 8: "int8"}  # ggml's data types
_TEMPLATE = "conversations are rendered by the model's chat template"
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
    no_effect("ctx_checkpoints", _L, "the whole KV of a window is stored", "--swa-checkpoints",
              "-ctxcp"),
    no_effect("op_offload", _L, "all operations run on the one device", arity="switch"),
    only("cpu_moe", _L, (False,), _ONE_DEVICE, "leave it out", "-cmoe", arity="switch"),
    only("n_cpu_moe", _L, (0,), _ONE_DEVICE, "leave it out", "-ncmoe"),
    only("n_cpu_ffn", _L, (0,), _ONE_DEVICE, "leave it out", "-ncffn"),
    no_effect("n_ubatch", _L, "a step's token budget is max_num_batched_tokens", "-ub",
              "--ubatch-size"),
    no_effect("threads_batch", _L, "prompts and answers share one batch", "-tb"),
    no_effect("threads_http", _L, "an API process needs one thread; see api_server_count"),
    no_effect("cont_batching", _L, "batching is always continuous", "-cb", "-nocb", arity="switch"),
    no_effect("flash_attn", _L, "kernels are chosen by shape and device", "-fa",
              arity="optional"),
    no_effect("kv_unified", _L, "requests share one KV cache", "-kvu", "-no-kvu", arity="switch"),
    no_effect("swa_full", _L, "the whole KV of a window is stored", arity="switch"),
    no_effect("cache_reuse", _L, "equal prefixes are always shared"),
    no_effect("cache_ram", _L, "the prefix cache is a part of the KV cache", "-cram"),
    no_effect("defrag_thold", _L, "a paged KV cache needs no defragmentation", "-dt"),
    no_effect("mmap", _L, _MAPPED, arity="switch"),
    no_effect("no_mmap", _L, _MAPPED, arity="switch"),
    no_effect("use_mmap", _O, _MAPPED),
    no_effect("mlock", _L, _MAPPED, arity="switch"),
    no_effect("numa", _L, "threads run on the cores of the process; use numactl"),
    no_effect("prio", _L, "the process keeps its priority; use nice"),
    no_effect("poll", _L, "threads sleep between steps"),
    no_effect("warmup", _L, "kernels are always run once before the first request",
              arity="switch"),
    no_effect("no_warmup", _L, "kernels are always run once before the first request",
              arity="switch"),
    no_effect("jinja", _L, "chat templates are always rendered", arity="switch"),
    no_effect("perf", _L, "times are in /metrics", arity="switch"),
    no_effect("fit", _L, "the KV cache takes what fits", "-fit", arity="optional"),
    no_effect("fit_target", _L, "the KV cache takes what fits", "-fitt"),
    no_effect("fit_ctx", _L, "the KV cache takes what fits", "-fitc"),
    no_effect("main_gpu", _L, "the first visible GPU is used; set CUDA_VISIBLE_DEVICES", "-mg"),
    only("split_mode", _L, ("none", "layer"), _ONE_DEVICE, "leave it out", "-sm"),
    only("tensor_split", _L, (), _ONE_DEVICE, "run one server for each GPU", "-ts"),
    only("no_kv_offload", _L, (False,), "the KV cache is where the model is",
         "use device='cpu'", "-nkvo", arity="switch"),
    only("override_tensor", _L, (), _ONE_DEVICE, "leave it out", "-ot"),
    only("override_kv", _L, (), "config.json is read as it is", _EDIT),
    only("rope_scale", _L, (1,), _ROPE, _EDIT),
    only("rope_freq_base", _LO, (0,), _ROPE, _EDIT),
    only("rope_freq_scale", _LO, (1,), _ROPE, _EDIT),
    only("model_url", _L, (), _NO_DOWNLOAD, _DOWNLOAD, "-mu"),
    only("hf_file", _L, (), _NO_DOWNLOAD, _DOWNLOAD, "-hff"),
    only("docker_repo", _L, (), _NO_DOWNLOAD, _DOWNLOAD, "-dr"),
    only("mmproj", _L, (), "models read text alone", "leave it out", "-mm"),
    only("lora", _L, (), _NO_ADAPTER, _MERGE),
    only("lora_scaled", _L, (), _NO_ADAPTER, _MERGE),
    only("adapter", _O, (), _NO_ADAPTER, _MERGE),
    only("control_vector", _L, (), "hidden states are the model's own", "leave it out"),
    only("model_draft", _L, (), _DRAFT, "leave it out", "-md"),
    only("spec_type", _L, ("none",), _DRAFT, "leave it out"),
    only("draft_max", _L, (0,), _DRAFT, "leave it out", "--draft", "--draft-n"),
    only("draft_min", _L, (0,), _DRAFT, "leave it out", "--draft-n-min"),
    only("keep", _L, (0, -1), "a context is never shifted: an answer ends at max_model_len",
         "raise max_model_len"),
    only("context_shift", _L, (False,), "a context is never shifted",
         "raise max_model_len", arity="switch"),
    only("offline", _L, (False,), "the hub is asked for models without a folder",
         "set HF_HUB_OFFLINE=1", arity="switch"),
)  # fmt: skip

LLAMA_PYTHON_NAMES: tuple[ForeignName, ...] = (
    alias("type_k", "kv_cache_dtype", _LP, values=_CACHE_NUMBERS, others=False,
          text="the KV cache has one data type", fix=_CACHE_FIX),
    alias("type_v", "kv_cache_dtype", _LP, values=_CACHE_NUMBERS, others=False,
          text="the KV cache has one data type", fix=_CACHE_FIX),
    no_effect("n_threads_batch", _LP, "prompts and answers share one batch"),
    no_effect("use_mlock", _LP, "prepared weights are mapped, and the system may drop their pages"),
    no_effect("offload_kqv", _LP, "the KV cache is where the model is"),
    no_effect("no_perf", _LP, "times are in output.metrics", arity="switch"),
    no_effect("logits_all", _LP, "each request asks for its log-probabilities"),
    no_effect("embedding", _LP, "each model generates and embeds", arity="switch"),
    no_effect("last_n_tokens_size", _LP, "penalties cover the whole answer"),
    only("vocab_only", _LP, (False,), "a model is loaded whole", "use transformers' AutoTokenizer"),
    only("kv_overrides", _LP, (), "config.json is read as it is", _EDIT),
    only("rope_scaling_type", _LP, (-1,), _ROPE, _EDIT),
    only("attention_type", _LP, (-1,), "attention is that of config.json", _EDIT),
    only("pooling_type", _LP, (-1,), "pooling is a setting by its name", "use pooling"),
    only("lora_base", _LP, (), _NO_ADAPTER, _MERGE),
    only("lora_path", _LP, (), _NO_ADAPTER, _MERGE),
    only("lora_scale", _LP, (1,), _NO_ADAPTER, _MERGE),
    only("chat_format", _LP, (), _TEMPLATE, "use chat_template, or leave it out"),
    only("chat_handler", _LP, (), _TEMPLATE, "use chat_template, or leave it out"),
    only("draft_model", _LP, (), "a step samples one token of each request", "leave it out"),
)  # fmt: skip
