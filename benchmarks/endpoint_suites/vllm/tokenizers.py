"""Stand-in for vllm.tokenizers: the tokenizer of the bundled model, whatever the name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import quire


def get_tokenizer(*_args: Any, **_options: Any) -> Any:
    """The bundled tokenizer as transformers reads it."""
    from transformers import AutoTokenizer

    folder = next((Path(quire.__file__).parent / "bundled").glob("**/tokenizer.json")).parent
    return AutoTokenizer.from_pretrained(folder)
