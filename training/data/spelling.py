"""Owns how close words are: which vocabulary words a typed one could stand for."""

from __future__ import annotations

from functools import cache

from data.products import vocabulary


@cache
def resolvable(word: str, typed: str) -> bool:
    """Is `word` the one vocabulary word closest to what was typed, within two edits?"""
    edits = distance(word, typed)
    if not 1 <= edits <= 2:
        return False
    near = {w for key in deletions(typed, edits) for w in deletion_index().get(key, ())} - {word}
    return all(distance(w, typed) > edits for w in near)


def near_vocabulary(word: str) -> bool:
    """Could `word` be a vocabulary word with up to two typos?"""
    return any(key in deletion_index() for key in deletions(word, 2))


@cache
def deletion_index() -> dict[str, list[str]]:
    """Each vocabulary word by its spellings with up to two letters gone: finds close words fast."""
    index: dict[str, list[str]] = {}
    for word in vocabulary():
        for key in deletions(word, 2):
            index.setdefault(key, []).append(word)
    return index


def deletions(word: str, depth: int) -> set[str]:
    found = layer = {word}
    for _ in range(depth):
        layer = {w[:i] + w[i + 1 :] for w in layer for i in range(len(w))}
        found = found | layer
    return found


def distance(a: str, b: str) -> int:
    """Edits between two words; swapping adjacent letters is one edit."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                best = min(best, older[j - 2] + 1)
            row.append(best)
    return row[-1]
