"""What to say to an import of a name or a module that another engine's package has, and Quire not.

Imported by `import quire`, so it imports nothing.
"""

from __future__ import annotations

# modules of vLLM whose names are in Quire's own
MODULES = (
    "attention", "beam_search", "config", "distributed", "engine.arg_utils",
    "engine.async_llm_engine",
    "engine.llm_engine", "entrypoints", "inputs", "logger", "lora", "model_executor", "multimodal",
    "outputs", "pooling_params", "platforms", "reasoning", "sampling_params", "tokenizers",
    "transformers_utils", "usage", "utils", "v1", "worker",
)  # fmt: skip

_NO_ADAPTER = "merge the adapter into its model (peft: merge_and_unload), and load that"
_ENGINE = "use LLM; for requests that come one by one use AsyncEngine"
_SETTINGS = "leave it out: settings are arguments of LLM, by their names"
_TEXT_ONLY = "leave it out: models read text alone"
_STATS = "use llm.stats, and output.metrics of each request"
_CLOSE = "use LLM.close, or `with LLM() as llm:`"

# names that scripts import from vLLM or llama-cpp-python, and what to use instead
NAMES = {
    "LoRARequest": _NO_ADAPTER,
    "LLMEngine": _ENGINE,
    "AsyncLLM": _ENGINE,
    "AsyncLLMEngine": _ENGINE,
    "AsyncEngineArgs": "use EngineArgs, or the arguments of AsyncEngine.start",
    "Llama": "use LLM",
    "LlamaGrammar": "use StructuredOutputs(grammar=...) in SamplingParams",
    "GuidedDecodingParams": "use StructuredOutputs in SamplingParams",
    "RequestOutputKind": "leave it out: LLM returns whole answers, AsyncEngine streams new parts",
    "PoolingOutput": "use EmbeddingOutput",
    "EmbeddingRequestOutput": "use EmbeddingOutput",
    "cleanup_dist_env_and_memory": _CLOSE,
    "destroy_model_parallel": _CLOSE,
    "PoolingRequestOutput": "use EmbeddingOutput",
    "ScoringRequestOutput": "use ScoreOutput",
    "ClassificationRequestOutput": "classify by generate, with structured_outputs.choice",
    "PromptType": "leave it out: a prompt is text, token ids, TextPrompt or TokensPrompt",
    "CompilationConfig": _SETTINGS,
    "KVTransferConfig": _SETTINGS,
    "PoolerConfig": _SETTINGS,
    "SpeculativeConfig": _SETTINGS,
    "StructuredOutputsConfig": _SETTINGS,
    "VllmConfig": _SETTINGS,
    "AttentionConfig": _SETTINGS,
    "ProfilerConfig": "run `quire profile MODEL` instead",
    "ImageAsset": _TEXT_ONLY,
    "AudioAsset": _TEXT_ONLY,
    "VideoAsset": _TEXT_ONLY,
    "fetch_image": _TEXT_ONLY,
    "Counter": _STATS,
    "Gauge": _STATS,
    "Histogram": _STATS,
    "Vector": _STATS,
    "Metric": _STATS,
    "set_random_seed": "use the setting seed, or seed in SamplingParams",
    "current_platform": "use the setting device",
    "ModelRegistry": "families are added in models/families, see ARCHITECTURE.md",
    "LogitsProcessor": "use logit_bias, bad_words or structured_outputs in SamplingParams",
}


def what_to_use(name: str) -> str:
    """The message for the use of one of NAMES."""
    return f"quire has no {name}; {NAMES[name]}"


class ForeignModules:
    """The last finder of modules: an import of another engine's module or name says what to use.

    `from quire import X` looks for a module quire.X where quire has no attribute X.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """Raises ImportError for `quire.` and such a module or name; else does nothing."""
        package, _, module = name.partition(".")
        if package != "quire":
            return
        if module in NAMES:  # no ModuleNotFoundError, which `from quire import` would swallow
            raise ImportError(what_to_use(module), name=name)
        if any(f"{module}.".startswith(f"{each}.") for each in MODULES):
            text = f"no module {name!r}: its names are in quire itself; write from quire import"
            raise ModuleNotFoundError(text, name=name)
