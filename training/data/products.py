"""Owns the vocabulary of queries: products by category, invented brands, and all their words."""

from __future__ import annotations

import re
from functools import cache
from random import Random

from data.templates import comma_list, read, read_words

WORDS = read_words("queries")
CATEGORIES = {
    name: {key: comma_list(text) for key, text in table.items()}
    for name, table in read("words/products.toml").items()
}


@cache
def brands() -> list[str]:
    parts = read_words("brands")
    made = [
        start + middle + end
        for start in parts["starts"]
        for middle in parts["middles"]
        for end in parts["ends"]
        if start[-1] != middle
    ]
    return sorted(Random(7).sample(made, 160))


def plural(noun: str) -> str:
    for ending, replacement in (("fe", "ves"), ("shelf", "shelves"), ("man", "men")):
        if noun.endswith(ending):
            return noun[: -len(ending)] + replacement
    if re.search(r"(s|sh|ch|x)$", noun):
        return noun + "es"
    return noun[:-1] + "ies" if re.search(r"[^aeiou]y$", noun) else noun + "s"


@cache
def products() -> list[tuple[str, str, str]]:
    """(category, singular, plural) of every noun; both alike where there is one form."""
    return [
        (category, *((noun[:-1],) * 2 if noun.endswith("*") else (noun, plural(noun))))
        for category, lists in CATEGORIES.items()
        for noun in lists["nouns"]
    ]


@cache
def vocabulary() -> frozenset[str]:
    """Every word that a correct query may hold, numbers and unknown brands aside."""
    phrases = [form for row in products() for form in row[1:]] + brands()
    for lists in CATEGORIES.values():
        phrases += lists["attributes"]
    for key, words in WORDS.items():
        phrases += words if key != "sizes" else []
    return frozenset(w for p in phrases for w in p.split()) | {"for", "with", "under", "size", "in"}
