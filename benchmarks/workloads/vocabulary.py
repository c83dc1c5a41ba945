"""A tokenizer for models that have a shape and no files: byte-level, as large as the vocabulary.

Prompts come as token ids, so only the way back to text costs anything, as with a real one: a
look-up and a few bytes for each token.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))  # GPT-2's own letters for bytes
_LETTERS = "etaoinshrdlucmfw"


def make_folder(shape: Path, folder: Path) -> Path:
    """Give a shape's config.json a tokenizer beside it; returns the folder."""
    shutil.copy(shape / "config.json", folder)
    config = json.loads((shape / "config.json").read_text())
    ends = {"bos_token": config["bos_token_id"], "eos_token": config["eos_token_id"]}
    names = {token_id: f"<|{name}|>" for name, token_id in ends.items()}
    vocabulary = _words(config["vocab_size"])
    vocabulary |= names
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(vocabulary, names)))
    settings = {name: names[token_id] for name, token_id in ends.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _words(size: int) -> dict[int, str]:
    """All bytes, then made-up words, half of them with a leading space."""
    rest = iter(range(256, 512))
    letters = [chr(byte if byte in _PRINTABLE else next(rest)) for byte in range(256)]
    words = dict(enumerate(letters))
    for token_id in range(256, size):
        digits = f"{token_id:05x}"
        word = "".join(_LETTERS[int(digit, 16)] for digit in digits)
        words[token_id] = f"\u0120{word}" if token_id % 2 else word
    return words


def _tokenizer(vocabulary: dict[int, str], special: dict[int, str]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [
        {"id": i, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, text in special.items()
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level | {"use_regex": True},
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {word: token_id for token_id, word in vocabulary.items()},
            "merges": [],
        },
    }
