"""Rules by which byte-level BPE tokenizers cut a text before they merge, by llama.cpp's names.

The patterns are those of the models' own tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"


def _words(digits: str) -> str:
    marks = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|{digits}|{marks}|{_SPACES}"


def _cased_words(digits: str, ending: str = "") -> str:
    marks = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    lower = rf"{_BEFORE}[{_UPPER}]*[{_LOWER}]+{ending}"
    upper = rf"{_BEFORE}[{_UPPER}]+[{_LOWER}]*{ending}"
    return rf"{lower}|{upper}|{digits}|{marks}|{_SPACES}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A way to cut a text. pattern: of the pieces; None for GPT-2's.

    ignores_merges: a piece that is a token is not merged. adds_bos: where no key says so.
    splits_digits: each digit is a piece before all else.
    """

    pattern: str | None = None
    ignores_merges: bool = False
    adds_bos: bool = False
    normalizes: bool = False
    splits_digits: bool = False

    def steps(self) -> list[dict[str, Any]]:
        """The steps of a pre_tokenizer in tokenizer.json."""
        found = list[dict[str, Any]]()
        if self.splits_digits:
            found.append({"type": "Digits", "individual_digits": True})
        if self.pattern is not None:
            cut = {"pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": False}
            found.append({"type": "Split", **cut})
        use_regex = self.pattern is None
        flags = {"add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}
        return [*found, {"type": "ByteLevel", **flags}]


_LLAMA3 = PreTokenizer(_words(r"\p{N}{1,3}"), ignores_merges=True, adds_bos=True)
_QWEN2 = PreTokenizer(_words(r"\p{N}"), normalizes=True)
_TEKKEN = PreTokenizer(_cased_words(r"\p{N}"), ignores_merges=True, adds_bos=True)
_GPT4O = PreTokenizer(_cased_words(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer(_words(r"\p{N}{1,3}"))),
    "gpt-2": PreTokenizer(),
    **dict.fromkeys(("smollm", "starcoder"), PreTokenizer(splits_digits=True)),
}
