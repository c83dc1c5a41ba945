"""Methods and attributes of other engines' classes, and what to use for those that are not here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.compat import phrases as say

# methods of llama-cpp-python's Llama
_TOKENIZER = "use get_tokenizer()"
_LIMITS = "use llm.info, and llm.info.limits"
_STEPS = "steps are the engine's own; use generate, or LLMEngine for requests one by one"
_STATE = "equal prefixes are always shared; leave it out"

_LLAMA_METHODS: Mapping[str, str] = {
    "create_completion": "use generate",
    "create_chat_completion": "use chat",
    "create_chat_completion_openai_v1": "use chat, or a server with OpenAI's client",
    "create_embedding": "use embed",
    "tokenize": "use get_tokenizer().encode",
    "detokenize": "use get_tokenizer().decode",
    **dict.fromkeys(("token_bos", "token_eos", "token_nl"), _TOKENIZER),
    **dict.fromkeys(("n_ctx", "n_vocab", "n_embd", "metadata", "pooling_type"), _LIMITS),
    **dict.fromkeys(("eval", "sample", "reset", "eval_tokens", "eval_logits", "ctx"), _STEPS),
    **dict.fromkeys(("save_state", "load_state", "set_cache", "longest_token_prefix"), _STATE),
    "set_seed": "use seed in SamplingParams",
    "logits_to_logprobs": "use logprobs in SamplingParams",
}

_STREAMS = ("stream", "stream_generate", "generate_stream", "astream", "stream_chat")
_ASYNC = ("agenerate", "async_generate", "acompletion", "acreate")

# methods of other libraries' models, of SGLang, transformers and ollama-python
_LOADED: Mapping[str, str] = {
    "from_pretrained": "use LLM(MODEL): a folder, a name on the hub, or a GGUF file",
    **dict.fromkeys(("to", "cuda", "cpu", "half", "quantize"), "set it at the start: LLM(MODEL, "
                    "device=..., dtype=..., quantization=...)"),
    **dict.fromkeys(("forward", "logits", "get_logits"), "use logprobs in SamplingParams"),
    **dict.fromkeys(_STREAMS, "use on_output of generate or chat, or AsyncEngine, whose generate "
                    "streams"),
    **dict.fromkeys(_ASYNC, "use AsyncEngine"),
    **dict.fromkeys(("complete", "completion", "predict", "invoke", "completions"), "use generate"),
    **dict.fromkeys(("create_embeddings", "embeddings", "embed_query", "embed_documents"),
                    "use embed"),
    **dict.fromkeys(("rerank", "similarity"), "use score"),
    **dict.fromkeys(("shutdown", "unload", "exit"), "use close, or `with LLM() as llm:`"),
    "flush_cache": "use reset_prefix_cache",
    **dict.fromkeys(("get_server_info", "model", "config", "device", "dtype", "model_name",
                     "max_model_len", "max_seq_len", "context_length"), _LIMITS),
}  # fmt: skip

_WEIGHTS = "load changed weights as a new LLM"
_SETTINGS = "settings are arguments of LLM, by their names; facts of the model are in llm.info"
_INSIDE = "the engine's own code is another: see ARCHITECTURE.md"
_WHOLE = "requests are not paused; abort those that are to end"

# of vLLM's LLM, LLMEngine and AsyncLLM
_VLLM_METHODS: Mapping[str, str] = {
    "get_metrics": say.STATS,
    "reward": "reward models are not supported; use score, or embed",
    "llm_engine": "use LLM itself; for requests that come one by one use LLMEngine or AsyncEngine",
    "collective_rpc": "the model runs in this process; there are no workers to call",
    "apply_model": "the model runs as compiled calls; there is no module to call",
    **dict.fromkeys(("start_profile", "stop_profile"), say.PROFILE),
    "enqueue_chat": "pass all conversations to chat, or use AsyncEngine",
    "get_world_size": say.ONE_DEVICE,
    "release_kv_cache_memory": "use sleep",
    **dict.fromkeys(("reset_mm_cache", "reset_encoder_cache"), say.LEAVE_TEXT_ONLY),
    "enqueue": "pass all prompts to generate, or use AsyncEngine",
    "wait_for_completion": "generate returns when all answers are there",
    "set_tokenizer": "start with the setting tokenizer",
    "preprocess_chat": "use get_tokenizer().apply_chat_template",
    **dict.fromkeys(("init_weight_transfer_engine", "update_weights", "start_weight_update",
                     "finish_weight_update"), _WEIGHTS),
    **dict.fromkeys(("add_lora", "remove_lora", "list_loras", "pin_lora"), say.MERGE_THAT),
    **dict.fromkeys(("model_config", "vllm_config", "get_model_config", "get_vllm_config",
                     "cache_config", "scheduler_config", "parallel_config"), _SETTINGS),
    **dict.fromkeys(("get_supported_tasks", "supported_tasks", "runner_type"), say.BOTH_TASKS),
    **dict.fromkeys(("engine_core", "model_executor", "input_processor", "output_processor",
                     "processor", "renderer", "io_processor", "scheduler"), _INSIDE),
    "default_sampling_params": "use get_default_sampling_params()",
    "from_vllm_config": "use from_engine_args",
    **dict.fromkeys(("do_log_stats", "do_log_stats_with_interval", "log_stats"),
                    "nothing is logged; stats are those of LLM and AsyncEngine"),
    "is_tracing_enabled": "requests over HTTP are traced; use `quire serve`",
    **dict.fromkeys(("pause_generation", "resume_generation", "is_paused"), _WHOLE),
    "has_unfinished_requests_dp": "a model runs on one device; use has_unfinished_requests",
    "scale_elastic_ep": say.ONE_DEVICE,
    "validate_outputs": "leave it out",
}  # fmt: skip

# methods and attributes that a model has not, and what to use instead
METHODS: Mapping[str, str] = {**_LLAMA_METHODS, **_LOADED, **_VLLM_METHODS}

_SLEEP = "use shutdown, and make another one; LLM and LLMEngine sleep"
_HEALTH = "use check_health, which raises an error"
_POOL = "use LLM.embed, or embed of an AsyncEngine"
_NO_FIELD = "leave it out: it is None for models that read only text"
_STATS = "use an AsyncEngine, which has stats and metrics"

_OF_TOKENIZERS = """
    add_special_tokens add_tokens added_tokens_decoder added_tokens_encoder all_special_tokens
    backend_tokenizer batch_encode_plus convert_tokens_to_string encode_plus from_pretrained
    get_added_vocab get_chat_template get_special_tokens_mask is_fast model_input_names name_or_path
    num_special_tokens_to_add pad push_to_hub save_pretrained save_vocabulary special_tokens_map
    tokenize train_new_from_iterator unk_token unk_token_id
"""

_MODELS = ("LLM", "LLMEngine", "AsyncLLM", "AsyncEngine")
# those of one class, which go before METHODS
_OF_CLASS: Mapping[str, Mapping[str, str]] = {
    "AsyncLLM": {
        "chat": "use generate, with the prompt of get_tokenizer().apply_chat_template",
        **dict.fromkeys(("add_request", *_STREAMS, *_ASYNC), "use generate, which streams"),
        **dict.fromkeys(("encode", "embed", "score"), _POOL),
        **dict.fromkeys(("sleep", "wake_up", "is_sleeping", "release_kv_cache_memory"), _SLEEP),
        **dict.fromkeys(("is_running", "is_stopped", "errored", "dead_error"), _HEALTH),
        **dict.fromkeys(("get_metrics", "do_log_stats", "stats", "info", "metrics"), _STATS),
        "close": "use shutdown",
        "wait_for_requests_to_drain": "await the streams of generate",
    },
    "LLMEngine": {
        **dict.fromkeys(("generate", *_STREAMS), "use add_request and step, or LLM.generate"),
        "chat": "use LLM.chat",
        **dict.fromkeys(("encode", "embed", "score"), "use LLM.embed"),
        "get_metrics": "use stats, and output.metrics of each request",
        "llm_engine": "it is the engine itself",
        "shutdown": "use close",
        "abort": "use abort_request",
    },
    "RequestOutput": {
        **dict.fromkeys(("text", "token_ids", "logprobs", "finish_reason", "stop_reason",
                         "cumulative_logprob"), "use outputs[0], which has it"),
        **dict.fromkeys(("choices", "generated_text", "message", "response", "content"),
                        "use outputs[0].text"),
        "usage": "count prompt_token_ids, and the token_ids of outputs",
        **dict.fromkeys(("encoder_prompt", "encoder_prompt_token_ids"), _NO_FIELD),
        **dict.fromkeys(("lora_request", "kv_transfer_params", "multi_modal_placeholders"),
                        _NO_FIELD),
    },
    "CompletionOutput": dict.fromkeys(("lora_request", "routed_experts", "logits"), _NO_FIELD),
    "RequestTimes": {
        "first_token_ts": "use first_token",
        "last_token_ts": "use last_token",
        "num_generation_tokens": "count the token_ids of outputs",
        **dict.fromkeys(("time_in_queue", "first_scheduled_time", "queued_ts", "scheduled_ts",
                         "scheduler_time", "model_execute_time"),
                        "times in the queue are in /metrics of `quire serve`"),
    },
    "TransformersTokenizer": dict.fromkeys(
        _OF_TOKENIZERS.split(), "use AutoTokenizer of transformers"
    ),
    "AsyncEngine": {
        "from_engine_args": "use AsyncLLM.from_engine_args, or `await AsyncEngine.start(config)`",
        "abort": "close the stream of generate, or use AsyncLLM",
        **dict.fromkeys((*_STREAMS, *_ASYNC), "use generate, which streams"),
        "shutdown": "use `await engine.close()`",
        "get_tokenizer": "use tokenizer",
    },
    "SamplingParams": {
        "from_optional": "use SamplingParams, and leave out what is None",
        **dict.fromkeys(("update_from_generation_config", "update_from_tokenizer", "verify"),
                        "leave it out: params are checked as they are made, and the engine adds "
                        "what its model asks for"),
        "sampling_type": "use is_greedy, and seed",
        "guided_decoding": "use structured_outputs",
        "best_of": "use n",
        **dict.fromkeys(("all_stop_token_ids", "eos_token_id"),
                        "use stop_token_ids; a model's end tokens are those of its files"),
        "bad_words_token_ids": "use bad_words",
        "logits_processors": say.USE_BIAS,
        "truncate_prompt_tokens": "give it to generate or chat instead",
        **dict.fromkeys(("extra_args", "flat_logprobs", "skip_clone", "skip_reading_prefix_cache",
                         "spaces_between_special_tokens"), "leave it out"),
    },
    "PoolingParams": {
        "clone": "use it itself: it cannot be changed",
        "verify": "leave it out: params are checked as they are made",
        "task": "use LLM.embed",
        "use_activation": "use normalize",
        "truncate_prompt_tokens": "give it to LLM.embed instead",
    },
    "EngineArgs": {
        **dict.fromkeys(("create_engine_config", "create_model_config"),
                        "use LLM.from_engine_args, or another engine's"),
    },
}  # fmt: skip


def what_to_use(classes: Iterable[str], name: str) -> str | None:
    """The advice on a missing attribute; None for an unknown one. classes: its class and bases."""
    for cls in classes:
        general = METHODS.get(name) if cls in _MODELS else None
        if text := _OF_CLASS.get(cls, {}).get(name, general):
            return text
    return None


def all_methods() -> dict[str, str]:
    """Every name, those of one class alone with it in front, and what to use."""
    of_classes = {
        f"{cls}.{n}": text for cls, names in _OF_CLASS.items() for n, text in names.items()
    }
    return {**METHODS, **of_classes}
