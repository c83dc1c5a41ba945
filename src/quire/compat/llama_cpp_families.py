"""Families of llama.cpp's options that belong to something that Quire does not have or set."""

from __future__ import annotations

from functools import partial

from quire.compat import phrases as say
from quire.compat.foreign_name import ForeignName, each

_each = partial(each, engines="llama.cpp")
_CORES = "threads run on the cores of the process"

LLAMA_CPP_FAMILIES: tuple[ForeignName, ...] = (
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

LLAMA_SERVER_FAMILIES: tuple[ForeignName, ...] = (
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
