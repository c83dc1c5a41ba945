"""Imports from modules that vLLM has: their names are those of quire itself, or say what to use.

Imported by `import quire`, so it imports nothing that Python has not imported already.
"""

from __future__ import annotations

import sys
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

# modules of vLLM that scripts import names from
MODULES = (
    "assets", "attention", "beam_search", "config", "distributed", "engine.arg_utils",
    "engine.async_llm_engine", "engine.llm_engine", "entrypoints", "envs", "inputs", "logger",
    "lora", "model_executor", "multimodal",
    "outputs", "pooling_params", "platforms", "reasoning", "sampling_params", "tokenizers",
    "transformers_utils", "usage", "utils", "v1", "worker",
)  # fmt: skip

_NO_ADAPTER = "merge the adapter into its model (peft: merge_and_unload), and load that"
_SETTINGS = "leave it out: settings are arguments of LLM, by their names"
_TEXT_ONLY = "leave it out: models read text alone"
_STATS = "use llm.stats, and output.metrics of each request"
_CLOSE = "use LLM.close, or `with LLM() as llm:`"

# names that scripts import from vLLM or llama-cpp-python, and what to use instead
NAMES = {
    "LoRARequest": _NO_ADAPTER,
    "Llama": "use LLM",
    "LlamaGrammar": "use StructuredOutputs(grammar=...) in SamplingParams",
    "GuidedDecodingParams": "use StructuredOutputs in SamplingParams",
    "PoolingOutput": "use EmbeddingOutput",
    "EmbeddingRequestOutput": "use EmbeddingOutput",
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

_UNKNOWN = "quire has no {!r}; dir(quire) lists what it has"


def what_to_use(name: str) -> str:
    """The message for the use of one of NAMES."""
    return f"quire has no {name}; {NAMES[name]}"


def _none_such(name: str) -> str:
    if name.startswith("VLLM_"):
        return f"quire has no {name}; {_SETTINGS}"
    return what_to_use(name) if name in NAMES else _UNKNOWN.format(name)


class ForeignModule(ModuleType):
    """A module by vLLM's name, as quire.sampling_params: its names are those of quire itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(sys.modules["quire"], name)
        except AttributeError:  # `from module import` swallows it, and asks ForeignModules next
            raise AttributeError(_none_such(name)) from None


class ForeignModules:
    """The last finder of modules: makes those of vLLM, and says what to use for a name of it.

    `from quire import X` looks for a module quire.X where quire has no attribute X, and
    `from quire.utils import X` for quire.utils.X: only errors raised here reach who imports X.
    """

    @staticmethod
    def find_spec(
        name: str,
        path: object = None,  # noqa: ARG004
        target: object = None,  # noqa: ARG004
    ) -> ModuleSpec | None:
        """The spec of a module by vLLM's name. Raises ImportError for other names in such."""
        package, _, module = name.partition(".")
        if package != "quire":
            return None
        if module in NAMES:  # no ModuleNotFoundError, which `from quire import` would swallow
            raise ImportError(what_to_use(module), name=name)
        if any(f"{module}.".startswith(f"{each}.") for each in MODULES):
            last = name.rpartition(".")[2]
            if module not in MODULES and (not last.islower() or _is_from_import()):
                raise ImportError(_none_such(last), name=name)
            from importlib.machinery import ModuleSpec  # usually not needed

            return ModuleSpec(name, _Maker(), is_package=True)  # type: ignore[arg-type]
        return None


def _is_from_import() -> bool:
    """Whether the name may be none of a module: `from module import name` tries it at last."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_handle_fromlist":
            return True
        frame = frame.f_back
    return False


class _Maker:
    """Makes the modules that ForeignModules finds."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        """The module, whose names are looked up when they are imported."""
        return ForeignModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Nothing: it has no code."""
