"""Stand-in for vllm.tokenizers: the tokenizer of the suite's model, whatever the name."""

from __future__ import annotations

from typing import Any

from vllm import Reply

__path__: list[str] = []  # so that its modules may be imported


def get_tokenizer(*_args: Any, **_options: Any) -> Any:
    """The tokenizer as transformers reads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained("the suite's")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Reply
