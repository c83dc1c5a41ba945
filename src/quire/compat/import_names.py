"""Modules and names that scripts import from other engines, and what to use instead."""

from __future__ import annotations

from quire.compat import phrases as say

_SETTINGS = "leave it out: settings are arguments of LLM, by their names"
_CLOSE = "use LLM.close, or `with LLM() as llm:`"
_CACHED = "leave it out: equal prefixes are always shared"
_OLLAMA = "run `quire serve`, which Ollama's and OpenAI's own clients can ask"
_FUNCTIONS = "use LLM, whose methods are generate, chat and embed"
_OUTPUTS = "use RequestOutput of LLM; over HTTP, Ollama's and OpenAI's own clients"
_PROGRAMS = "use LLM, or AsyncEngine; SGLang's language is a client's"
_ENGINES = "use LLM, LLMEngine or AsyncEngine"
_ONE_PROCESS = "leave it out: a model runs on one device, in one process"
_ONE_SERVER = "leave it out: each server has its own KV cache"
_INSIDE = "quire's own code is another: see ARCHITECTURE.md"
_PARSING = "run `quire serve`: --tool-call-parser and --reasoning-parser name the parser"
_PYTHON = "use Python's own modules"
_THEIR_OWN = "dir(quire) lists what it has"

# modules of vLLM that scripts import names from, and what to use for those that are not here
MODULES = {
    "assets": say.LEAVE_TEXT_ONLY,
    "attention": _INSIDE,
    "beam_search": "use LLM.beam_search",
    "benchmarks": "measure a server with any client of OpenAI's API, or run `quire demo`",
    "compilation": _INSIDE,
    "config": _SETTINGS,
    "connections": _PYTHON,
    "device_allocator": _INSIDE,
    "distributed": _ONE_PROCESS,
    "distributed.kv_events": _ONE_SERVER,
    "distributed.kv_transfer": _ONE_SERVER,
    "engine.arg_utils": _SETTINGS,
    "engine.async_llm_engine": _ENGINES,
    "engine.llm_engine": _ENGINES,
    "engine.metrics": say.STATS,
    "engine.protocol": _ENGINES,
    "entrypoints": "run `quire serve`",
    "entrypoints.chat_utils": "use get_tokenizer().apply_chat_template, or LLM.chat",
    "envs": _SETTINGS,
    "exceptions": "use the errors of quire.errors",
    "forward_context": _INSIDE,
    "inputs": "a prompt is text, token ids, TextPrompt or TokensPrompt",
    "ir": _INSIDE,
    "launch_server": "run `quire serve`",
    "llama": "use LLM",
    "llama_cache": _CACHED,
    "llama_chat_format": say.TEMPLATE,
    "llama_grammar": "use StructuredOutputs(grammar=...) in SamplingParams",
    "llama_speculative": "leave it out: a step samples one token of each request",
    "llama_tokenizer": "use llm.get_tokenizer(), or transformers itself",
    "llama_types": "outputs are RequestOutput; over HTTP they are OpenAI's",
    "logger": "use Python's logging",
    "logits_process": say.CONSTRAIN,
    "logprobs": _THEIR_OWN,
    "lora": say.MERGE_THAT,
    "model_executor": _INSIDE,
    "multimodal": say.LEAVE_TEXT_ONLY,
    "outputs": _THEIR_OWN,
    "parser": _PARSING,
    "platforms": "use the setting device",
    "plugins": "leave it out: there are no plug-ins",
    "pooling_params": _THEIR_OWN,
    "profiler": say.PROFILE,
    "ray": _ONE_PROCESS,
    "reasoning": _PARSING,
    "sampling_params": _THEIR_OWN,
    "scalar_type": _INSIDE,
    "sequence": _ENGINES,
    "srt": _INSIDE,
    "tasks": _SETTINGS,
    "third_party": _PYTHON,
    "tokenizers": "use llm.get_tokenizer()",
    "tool_parsers": _PARSING,
    "tracing": "use the server's option --otlp-traces-endpoint",
    "transformers_utils": "use llm.get_tokenizer(), or transformers itself",
    "triton_utils": _INSIDE,
    "usage": "leave it out: nothing is reported to anybody",
    "utils": _PYTHON,
    "v1": _ENGINES,
    "v1.metrics": say.STATS,
    "v1.sample": say.CONSTRAIN,
    "worker": _INSIDE,
}

# names that scripts import from vLLM, llama-cpp-python and others, and what to use instead
NAMES = {
    "LoRARequest": say.MERGE_THAT,
    "Llama": "use LLM, which takes its arguments, and answers by generate, chat and embed",
    "LlamaCache": _CACHED,
    "LlamaRAMCache": _CACHED,
    "LlamaDiskCache": _CACHED,
    "LogitsProcessorList": say.CONSTRAIN,
    "StoppingCriteriaList": "use stop, or stop_token_ids in SamplingParams",
    **dict.fromkeys(("Client", "AsyncClient"), _OLLAMA),
    **dict.fromkeys(("chat", "generate", "embed", "embeddings", "completion"), _FUNCTIONS),
    **dict.fromkeys(("load", "stream_generate", "batch_generate"), _FUNCTIONS),  # of mlx_lm
    **dict.fromkeys(("pull", "push", "create", "delete", "copy", "list", "show", "ps"), say.HUB),
    **dict.fromkeys(("ChatResponse", "GenerateResponse", "EmbedResponse"), _OUTPUTS),
    **dict.fromkeys(("ResponseError", "RequestError"), "use the errors of quire.errors"),
    **dict.fromkeys(("Message", "Options"), "leave it out: it is a dict, or SamplingParams"),
    **dict.fromkeys(("Runtime", "function", "gen", "set_default_backend"), _PROGRAMS),
    "Engine": "use LLM, or AsyncEngine",
    **dict.fromkeys(("pipeline", "AutoModelForCausalLM", "AutoModel"), "use LLM"),
    "AutoTokenizer": "use llm.get_tokenizer(), or transformers itself",
    "GenerationConfig": "use SamplingParams",
    **dict.fromkeys(("TextStreamer", "TextIteratorStreamer"), "use on_output of LLM.generate"),
    "LlamaGrammar": "use StructuredOutputs(grammar=...) in SamplingParams",
    "PoolingOutput": "use EmbeddingOutput",
    "EmbeddingRequestOutput": "use EmbeddingOutput",
    "destroy_model_parallel": _CLOSE,
    "PoolingRequestOutput": "use EmbeddingOutput",
    "ScoringRequestOutput": "use ScoreOutput",
    **dict.fromkeys(("ScoringOutput", "EmbeddingOutputs"), "use ScoreOutput, or EmbeddingOutput"),
    "ClassificationOutput": "classify by generate, with structured_outputs.choice",
    "initialize_ray_cluster": _ONE_PROCESS,
    "ClassificationRequestOutput": "classify by generate, with structured_outputs.choice",
    "PromptType": "leave it out: a prompt is text, token ids, TextPrompt or TokensPrompt",
    "CompilationConfig": _SETTINGS,
    "KVTransferConfig": _SETTINGS,
    "PoolerConfig": _SETTINGS,
    "SpeculativeConfig": _SETTINGS,
    "StructuredOutputsConfig": _SETTINGS,
    "VllmConfig": _SETTINGS,
    "AttentionConfig": _SETTINGS,
    "ProfilerConfig": say.PROFILE,
    "ImageAsset": say.LEAVE_TEXT_ONLY,
    "AudioAsset": say.LEAVE_TEXT_ONLY,
    "VideoAsset": say.LEAVE_TEXT_ONLY,
    "fetch_image": say.LEAVE_TEXT_ONLY,
    "Counter": say.STATS,
    "Gauge": say.STATS,
    "Histogram": say.STATS,
    "Vector": say.STATS,
    "Metric": say.STATS,
    "set_random_seed": "use the setting seed, or seed in SamplingParams",
    "current_platform": "use the setting device",
    "ModelRegistry": "families are added in models/families, see ARCHITECTURE.md",
    "LogitsProcessor": say.CONSTRAIN,
}


def what_to_use(name: str) -> str:
    """The message for the use of one of NAMES."""
    return f"quire has no {name}; {NAMES[name]}"


def no_such_name(module: str, name: str) -> str:
    """The message for a name that is not in a module. module: of vLLM, without the package."""
    if name.startswith("VLLM_"):
        return f"quire has no {name}; {_SETTINGS}"
    if name in NAMES:
        return what_to_use(name)
    while module not in MODULES:
        module = module.rpartition(".")[0]
    return f"quire has no {name}; {MODULES[module]}"
