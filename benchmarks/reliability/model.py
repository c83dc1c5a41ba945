"""The bundled model with one token whose embedding is NaN: whoever sends it gets NaN logits.

So a fault can be planted in one row of a batch from outside, and the product needs no hook for it.
The token's output row stays as it was, so nobody else meets it. The chat template gets a place for
tools, so that the whole way of tool calls can be run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from quire.hub import resolve_model

POISON = 191  # the byte 0xFE, which no text has, in a row that a start does not look at
EMBEDDING = "model.embed_tokens.weight"
# A bomb that a message sets off: a text of 2^40 parts, and a slow filter on a long text
BOMB = (
    "{% if messages[0].content == 'bomb' %}{% set n = namespace(a=[1]) %}"
    "{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ {'a': n.a}.values() }}"
    "{% elif messages[0].content == 'slow' %}{{ ('ab ' * 3000000) | title | length }}{% endif %}"
)
TOOLS = "{% if tools %}<|system|>{{ tools | tojson }} <tool_call><|end|>{% endif %}"


def write_poisoned_model(folder: Path) -> Path:
    """Copy the bundled model, with its embedding untied from its output and then poisoned."""
    shutil.copytree(resolve_model("quire-tiny"), folder)
    _change(folder / "config.json", lambda _: {"tie_word_embeddings": False})
    _change(
        folder / "tokenizer_config.json",
        lambda found: {"chat_template": BOMB + TOOLS + found["chat_template"]},
    )
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors[EMBEDDING].clone()
    tensors[EMBEDDING][POISON] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _change(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | change(found)))
