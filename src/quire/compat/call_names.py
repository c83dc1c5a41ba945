"""Arguments of the methods of vLLM's `LLM`, and commands of other engines."""

from __future__ import annotations

from collections.abc import Mapping

from quire.compat.foreign_name import ForeignName, alias, no_effect, only

_V = "vLLM"
_OF_PARAMS = "each request has params of its own"
_NO_ADAPTER = "the weights are those of the model's folder"
_MERGE = "merge the adapter into its model (peft: merge_and_unload), and load the merged folder"

CALL_NAMES: tuple[ForeignName, ...] = (
    alias("prompt_token_ids", "prompts", _V),
    alias("inputs", "prompts", _V),
    alias("text_1", "data_1", _V),
    alias("text_2", "data_2", _V),
    only("lora_request", _V, ([],), _NO_ADAPTER, _MERGE),
    only("prompt_adapter_request", _V, (), _NO_ADAPTER, _MERGE),
    only("mm_processor_kwargs", _V, ({},), "models read text alone", "leave it out"),
    only("guided_options_request", _V, (), "each request has params of its own",
         "use structured_outputs in SamplingParams"),
    only("priority", _V, ([],), "the prompts of a call run in their order",
         "sort them, or give add_request of an LLMEngine a priority"),
    only("response_format", "OpenAI", ({"type": "text"},), _OF_PARAMS,
         "use structured_outputs in SamplingParams"),
    only("grammar", "llama.cpp", (), _OF_PARAMS, "use structured_outputs in SamplingParams"),
    only("format", "Ollama", ("",), _OF_PARAMS, "use structured_outputs in SamplingParams"),
    only("options", "Ollama", ({},), _OF_PARAMS, "use SamplingParams"),
    only("top_logprobs", "OpenAI", (), _OF_PARAMS, "use logprobs in SamplingParams"),
    only("stream", "OpenAI", (False,), "answers come whole", "use AsyncEngine"),
    only("echo", "OpenAI", (False,), "answers come without their prompts",
         "put them in front"),
    only("tool_choice", "OpenAI", ("auto",), "the model chooses",
         "run `quire serve`, whose chats take it"),
    no_effect("chat_template_content_format", _V, "both kinds of content are rendered"),
    no_effect("concurrency_limit", _V, "requests beyond max_num_seqs wait for their turn"),
    only("pooling_params", _V, (), "they are params of embeddings", "use embed"),
    only("chat_template", _V, (), "a text is taken as it is",
         "use chat, or render it by the tokenizer first"),
    no_effect("arrival_time", _V, "a request is timed from its call"),
    only("trace_headers", _V, ({},), "requests over HTTP are traced", "use `quire serve`"),
    only("data_parallel_rank", _V, (0,), "a model runs on one device", "leave it out"),
    only("reasoning_ended", _V, (), "the prompt says whether a thought is open", "leave it out"),
)  # fmt: skip

_TO_EMBED = "give it to LLM.embed instead"

POOLING_NAMES: tuple[ForeignName, ...] = (  # params of PoolingParams
    only("task", _V, ("embed",), "a model makes one vector of each text", "use LLM.embed"),
    alias("use_activation", "normalize", _V),
    alias("activation", "normalize", _V),
    alias("softmax", "normalize", _V),
    only("truncate_prompt_tokens", _V, (), "it belongs to the texts", _TO_EMBED),
    only("step_tag_id", _V, (), "there are no reward models", "leave it out"),
    only("returned_token_ids", _V, (), "there are no reward models", "leave it out"),
    only("requires_token_ids", _V, (False,), "there are no plug-ins", "leave it out"),
    only("skip_reading_prefix_cache", _V, (False,), "equal prefixes are shared",
         "use enable_prefix_caching=False"),
    only("extra_kwargs", _V, ({},), "there are no plug-ins", "leave it out"),
    no_effect("output_kind", _V, "a vector comes at once"),
)  # fmt: skip

# methods of llama-cpp-python's Llama
_TOKENIZER = "use get_tokenizer()"
_LIMITS = "use llm.info"
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

# methods of `LLM` in vLLM, and of llama-cpp-python, that are not there, and what to use instead
METHODS: Mapping[str, str] = {
    **_LLAMA_METHODS,
    "stream": "use AsyncEngine",
    "get_metrics": "use llm.stats, and output.metrics of each request",
    "reward": "reward models are not supported; use score, or embed",
    "llm_engine": "use LLM itself; for requests that come one by one use LLMEngine or AsyncEngine",
    "collective_rpc": "the model runs in this process; there are no workers to call",
    "apply_model": "the model runs as compiled calls; there is no module to call",
    "start_profile": "run `quire profile MODEL` instead",
    "stop_profile": "run `quire profile MODEL` instead",
    "enqueue_chat": "pass all conversations to chat, or use AsyncEngine",
    "get_world_size": "a model runs on one device",
    "release_kv_cache_memory": "use sleep",
    "reset_mm_cache": "leave it out: models read text alone",
    "enqueue": "pass all prompts to generate, or use AsyncEngine",
    "wait_for_completion": "generate returns when all answers are there",
    "set_tokenizer": "start with the setting tokenizer",
    "preprocess_chat": "use get_tokenizer().apply_chat_template",
    "init_weight_transfer_engine": "load changed weights as a new LLM",
    "update_weights": "load changed weights as a new LLM",
}

_HUB = "models of the hub are in its cache: use hf cache ls, hf cache rm and hf download"
COMMANDS: Mapping[str, str] = {
    "run": "use `quire chat MODEL`, or `quire generate MODEL TEXT`",
    "complete": "use `quire generate MODEL TEXT`",
    "cli": "use `quire chat MODEL`, or `quire generate MODEL TEXT`",
    "server": "use `quire serve MODEL`",
    "launch": "use `quire serve MODEL`",
    "pull": "a model is downloaded by its first use, or by hf download",
    "download": "a model is downloaded by its first use, or by hf download",
    "list": _HUB,
    "ls": _HUB,
    "rm": _HUB,
    "show": "use `quire serve MODEL --dry-run`",
    "ps": "ask a server for /v1/models",
    "stop": "end a server by Ctrl-C or SIGTERM; its admin endpoints unload models",
    "cp": "use the folder of a model, and --served-model-name for another name",
    "push": "use hf upload",
    "create": "use the folder of a model; options are in a file for --config",
    "bench": "use `quire profile MODEL`",
    "perplexity": "use `quire verify`, or prompt_logprobs",
    "imatrix": "use `quire quantize`, which reads its own calibration texts",
    "gguf-split": "use llama-gguf-split",
    "signin": "use hf auth login",
    "signout": "use hf auth logout",
    "version": "use `quire --version`",
    "collect-env": "use `python -m torch.utils.collect_env`, and `quire --version`",
}
