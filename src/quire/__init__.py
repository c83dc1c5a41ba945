"""Quire: a small, fast LLM inference and serving engine.

Importing this package is cheap: the front doors load on first use, and torch with them.
"""

import sys

if sys.orig_argv[1:3] == ["-m", "quire"] or "".join(sys.orig_argv[1:2]).endswith("/bin/quire"):
    import _signal  # type: ignore[import-not-found]  # which is there; signal itself takes longer

    # Ctrl-C ends the command without a traceback, until exit_on_interrupt takes over
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        try:  # noqa: SIM105 - contextlib takes longer
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        except ValueError:  # in a thread: it is another program of that name
            pass

from typing import TYPE_CHECKING, Any

from quire.compat.missing_names import ForeignModules
from quire.version import __version__

if TYPE_CHECKING:
    from quire import errors
    from quire.cli.vllm_scripts import (
        EngineArgs,
        FlexibleArgumentParser,
        cleanup_dist_env_and_memory,
        print_embeddings,
    )
    from quire.cli.vllm_scripts import EngineArgs as AsyncEngineArgs
    from quire.config import EngineConfig
    from quire.core.pooling_params import PoolingParams
    from quire.core.request_output import (
        CompletionOutput,
        EmbeddingOutput,
        Logprob,
        RequestOutput,
        ScoreOutput,
    )
    from quire.core.sampling_params import RequestOutputKind, SamplingParams
    from quire.core.structured_outputs import StructuredOutputs
    from quire.core.structured_outputs import StructuredOutputs as GuidedDecodingParams
    from quire.core.structured_outputs import StructuredOutputs as StructuredOutputsParams
    from quire.engine.frontend.async_engine import AsyncEngine
    from quire.engine.frontend.async_llm import AsyncLLM
    from quire.engine.frontend.async_llm import AsyncLLM as AsyncLLMEngine
    from quire.engine.frontend.beam_search import BeamSearchParams
    from quire.engine.frontend.llm_engine import LLMEngine
    from quire.engine.frontend.prompt_inputs import TextPrompt, TokensPrompt
    from quire.llm import LLM

__all__ = [
    "LLM",
    "AsyncEngine",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "CompletionOutput",
    "EmbeddingOutput",
    "EngineArgs",
    "EngineConfig",
    "FlexibleArgumentParser",
    "GuidedDecodingParams",
    "LLMEngine",
    "Logprob",
    "PoolingParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoreOutput",
    "StructuredOutputs",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "cleanup_dist_env_and_memory",
    "errors",
    "print_embeddings",
]

# name: its module, and its name there
_LAZY = {
    "LLM": ("quire.llm", "LLM"),
    "AsyncEngine": ("quire.engine.frontend.async_engine", "AsyncEngine"),
    "AsyncEngineArgs": ("quire.cli.vllm_scripts", "EngineArgs"),
    "AsyncLLM": ("quire.engine.frontend.async_llm", "AsyncLLM"),
    "AsyncLLMEngine": ("quire.engine.frontend.async_llm", "AsyncLLM"),
    "BeamSearchParams": ("quire.engine.frontend.beam_search", "BeamSearchParams"),
    "CompletionOutput": ("quire.core.request_output", "CompletionOutput"),
    "EmbeddingOutput": ("quire.core.request_output", "EmbeddingOutput"),
    "EngineArgs": ("quire.cli.vllm_scripts", "EngineArgs"),
    "EngineConfig": ("quire.config", "EngineConfig"),
    "FlexibleArgumentParser": ("quire.cli.vllm_scripts", "FlexibleArgumentParser"),
    "GuidedDecodingParams": ("quire.core.structured_outputs", "StructuredOutputs"),
    "LLMEngine": ("quire.engine.frontend.llm_engine", "LLMEngine"),
    "Logprob": ("quire.core.request_output", "Logprob"),
    "PoolingParams": ("quire.core.pooling_params", "PoolingParams"),
    "RequestOutput": ("quire.core.request_output", "RequestOutput"),
    "RequestOutputKind": ("quire.core.sampling_params", "RequestOutputKind"),
    "SamplingParams": ("quire.core.sampling_params", "SamplingParams"),
    "ScoreOutput": ("quire.core.request_output", "ScoreOutput"),
    "StructuredOutputs": ("quire.core.structured_outputs", "StructuredOutputs"),
    "StructuredOutputsParams": ("quire.core.structured_outputs", "StructuredOutputs"),
    "TextPrompt": ("quire.engine.frontend.prompt_inputs", "TextPrompt"),
    "TokensPrompt": ("quire.engine.frontend.prompt_inputs", "TokensPrompt"),
    "cleanup_dist_env_and_memory": ("quire.cli.vllm_scripts", "cleanup_dist_env_and_memory"),
    "errors": ("quire.errors", ""),
    "print_embeddings": ("quire.cli.vllm_scripts", "print_embeddings"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        from quire.compat.import_names import NAMES, what_to_use  # most programs misspell nothing

        if name in NAMES:  # `from quire import` swallows it, and asks ForeignModules next
            raise AttributeError(what_to_use(name))
        text = f"module 'quire' has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=sys.modules[__name__])  # Python may suggest one
    import importlib

    module, inner = _LAZY[name]
    found = importlib.import_module(module)
    return getattr(found, inner) if inner else found


if ForeignModules not in sys.meta_path:
    sys.meta_path.append(ForeignModules)


def __dir__() -> list[str]:
    return sorted(__all__)
