"""Owns the making of typos: slips of the finger and of the ear that still have one right answer."""

from __future__ import annotations

import re
from random import Random

from data.products import vocabulary
from data.spelling import resolvable
from data.split import held_misspelling
from data.templates import read_words

WORDS = read_words("typos")
SOUNDS = [pair.split() for pair in WORDS["sounds"]]
KEY_ROWS = WORDS["key_rows"]
ADJACENT_KEYS = {
    key: [
        KEY_ROWS[r][c]
        for r in (row - 1, row, row + 1)
        for c in (col - 1, col, col + 1)
        if 0 <= r < 3 and 0 <= c < len(KEY_ROWS[r]) and (r, c) != (row, col)
    ]
    for row, keys in enumerate(KEY_ROWS)
    for col, key in enumerate(keys)
}


def misspell(query: str, rng: Random, held: bool) -> tuple[str, bool]:
    """Add 0-3 typos. Returns the text and whether it holds a misspelling kept from training."""
    typing = Typing(query, rng, held)
    for _ in range(rng.choices((0, 1, 2, 3), (15, 45, 27, 13))[0]):
        any(typing.slip() for _ in range(8))  # up to eight tries at one mistake
    return restyle(" ".join(typing.words), rng), typing.rare


class Typing:
    """A query being typed with mistakes, none of which makes another vocabulary word."""

    def __init__(self, query: str, rng: Random, held: bool) -> None:
        self.words, self.rng, self.held = query.split(), rng, held
        self.touched: set[int] = set()  # words that hold a mistake already
        self.rare = False

    def slip(self) -> bool:
        """Try one mistake in a random word; False if it cannot be made there."""
        rng = self.rng
        i = rng.randrange(len(self.words))
        word = self.words[i]
        if i in self.touched or not word.isalpha() or word not in vocabulary():
            return False
        kind = rng.random()
        if kind < 0.06 and self.may_join(i):
            return self.join(i)
        if kind < 0.11 and len(word) >= 6:
            return self.cut(i, rng.randint(2, len(word) - 2))
        if len(word) < 4 and rng.random() < 0.8:
            return False
        return self.mistype(i)

    def may_join(self, i: int) -> bool:
        after = i + 1
        return after < len(self.words) and self.words[after].isalpha() and after not in self.touched

    def join(self, i: int) -> bool:
        """Forget the space after word `i`."""
        word, after = self.words[i : i + 2]
        if word + after in vocabulary() or len(word) < 3 or len(after) < 3:
            return False
        self.words[i : i + 2] = [word + after]
        self.touched = {t - (t > i) for t in self.touched} | {i}
        return True

    def cut(self, i: int, at: int) -> bool:
        """Type a space inside word `i`."""
        left, right = self.words[i][:at], self.words[i][at:]
        if left in vocabulary() and right in vocabulary():
            return False
        self.words[i : i + 1] = [left, right]
        self.touched = {t + (t > i) for t in self.touched} | {i, i + 1}
        return True

    def mistype(self, i: int) -> bool:
        """Put one wrong letter, in long words at times two, into word `i`."""
        word, rng = self.words[i], self.rng
        wrong = typo(word, rng)
        if len(word) >= 7 and rng.random() < 0.25:
            wrong = typo(wrong, rng) if wrong else wrong
        unseen = held_misspelling(word, wrong)
        if len(wrong) < 2 or not resolvable(word, wrong) or (unseen and not self.held):
            return False
        self.words[i] = wrong
        self.rare = self.rare or unseen
        self.touched.add(i)
        return True


def restyle(text: str, rng: Random) -> str:
    """At times capitals, at times a mark at the end."""
    style = rng.random()
    if style < 0.06:
        return text.capitalize() if style < 0.03 else text.title()
    if style < 0.08:
        return text.upper()
    return text + rng.choice(["?", ".", "!", " "]) if style < 0.11 else text


def typo(word: str, rng: Random) -> str:
    """Make one slip of the finger or of the ear."""
    kind, i = rng.random(), rng.randrange(len(word))
    before, letter, after = word[:i], word[i], word[i + 1 :]
    if kind < 0.2 and after:
        return before + after[0] + letter + after[1:]
    if kind < 0.4:
        return before + after
    if kind < 0.52:
        return before + letter + letter + after
    if kind < 0.62:
        return before + rng.choice("abcdefghijklmnopqrstuvwxyz") + letter + after
    if kind < 0.8 and letter in ADJACENT_KEYS:
        return before + rng.choice(ADJACENT_KEYS[letter]) + after
    return misheard(word, rng)


def misheard(word: str, rng: Random) -> str:
    """Spell one sound of the word in another way."""
    usable = [(sound, other) for sound, other in SOUNDS if sound in word]
    if not usable:
        return word
    sound, other = rng.choice(usable)
    start = rng.choice([m.start() for m in re.finditer(sound, word)])
    return word[:start] + other + word[start + len(sound) :]
