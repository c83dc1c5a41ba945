"""Owns the line between training and held-out text: a checksum of the text alone draws it.

So the two never meet, whatever the seed and in whichever order texts are made.
"""

from __future__ import annotations

import re
import zlib
from functools import cache

from data.templates import read_phrases


def bucket(text: str, count: int) -> int:
    """Place a text in one of `count` buckets; bucket 0 is held out."""
    return zlib.crc32(text.encode()) % count


def held_query(query: str) -> bool:
    return " " in query and bucket(query, 64) == 0


def held_misspelling(word: str, wrong: str) -> bool:
    return bucket(f"{word}>{wrong}", 16) == 0


def held_phrase(phrase: str) -> bool:
    """Longer phrases by checksum, and the hand-written ones, which a template might hit on."""
    text = plain(phrase)
    return text in paraphrases() or (text.count(" ") >= 3 and bucket(text, 32) == 0)


def held_document(name: str) -> bool:
    return bucket(name, 20) == 0


@cache
def paraphrases() -> frozenset[str]:
    phrases = read_phrases("paraphrases").values()
    return frozenset(plain(text) for texts in phrases for text in texts)


def plain(phrase: str) -> str:
    return re.sub(r"[^a-z0-9 ]", "", phrase.lower())
