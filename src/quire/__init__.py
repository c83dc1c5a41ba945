"""Quire: a small, fast LLM inference and serving engine.

Importing this package is cheap: the front doors load on first use, and torch with them.
"""

from typing import TYPE_CHECKING, Any

from quire.version import __version__

if TYPE_CHECKING:
    from quire.core.request_output import CompletionOutput, EmbeddingOutput, RequestOutput
    from quire.core.sampling_params import SamplingParams, StructuredOutputs
    from quire.llm import LLM

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]

_LAZY = {
    "LLM": "quire.llm",
    "CompletionOutput": "quire.core.request_output",
    "EmbeddingOutput": "quire.core.request_output",
    "RequestOutput": "quire.core.request_output",
    "SamplingParams": "quire.core.sampling_params",
    "StructuredOutputs": "quire.core.structured_outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
