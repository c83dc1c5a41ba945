"""Owns the making of correct product queries and of the fields that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from data.products import CATEGORIES, WORDS, brands, products
from data.spelling import near_vocabulary
from data.split import held_query

SOFT_GOODS = ("food", "health", "beauty")  # no material, no 'with pockets'
WORN = ("clothing", "footwear")
AMOUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 50, 100)
PRICES = (5, 10, 15, 20, 25, 30, 40, 50, 75, 99, 100, 120, 150, 200, 250, 300, 500)
MAX_WORDS = 9


@dataclass
class Query:
    text: str  # empty if it came out too long
    fields: dict[str, object]


def clean_query(rng: Random, held: bool, rich: float = 0.0) -> Query:
    """A query of the training set or of the held-out one."""
    while True:
        query = make_query(rng, rich)
        if query.text and len(query.text.split()) <= MAX_WORDS and held_query(query.text) == held:
            return query


def make_query(rng: Random, rich: float = 0.0) -> Query:
    """A correct query and its fields; `rich` adds attributes."""
    making = Making(rng, rich)
    making.describe()
    making.shorten()
    making.specify()
    return making.query()


class Making:
    """A query in the making: the words before and after its noun, and what they mean."""

    def __init__(self, rng: Random, rich: float) -> None:
        self.rng, self.rich = rng, rich
        self.category, single, several = rng.choice(products())
        self.noun = several if rng.random() < 0.4 else single
        self.fields: dict[str, object] = {"product": self.noun}
        self.features: list[str] = []
        self.before: list[str] = []
        self.after: list[str] = []

    def likely(self, share: float) -> bool:
        return self.rng.random() < share + self.rich

    def describe(self) -> None:
        """Say what the product is like, in the order of English adjectives."""
        rng = self.rng
        if not self.rich and rng.random() < 0.08:
            self.before.append(rng.choice(WORDS["leads"]))
        if self.likely(0.12):
            self.name("brand", rng.choice(brands()) if rng.random() < 0.8 else pseudo_word(rng))
        if self.likely(0.25):
            self.praise(rng.choice(WORDS["attributes"]))
        if self.likely(0.22):
            self.name("colour", rng.choice(WORDS["colours"]))
        if self.likely(0.25):
            self.praise(rng.choice(CATEGORIES[self.category]["attributes"]))
        if self.category not in SOFT_GOODS and self.likely(0.13):
            self.name("material", rng.choice(WORDS["materials"]))

    def name(self, field: str, word: str) -> None:
        self.fields[field] = word
        self.before.append(word)

    def praise(self, feature: str) -> None:
        self.features.append(feature)
        self.before.append(feature)

    def shorten(self) -> None:
        """Nobody types six words before the noun."""
        while sum(len(words.split()) for words in self.before) > 5:
            gone = self.before.pop(self.rng.randrange(len(self.before)))
            self.fields = {k: v for k, v in self.fields.items() if v != gone}
            self.features = [f for f in self.features if f != gone]

    def specify(self) -> None:
        """Add what follows the noun: a feature, whom or what it is for, its size, its price."""
        rng = self.rng
        if self.category not in SOFT_GOODS and self.likely(0.12):
            self.features.append(rng.choice(WORDS["features"]))
            self.after.append("with " + self.features[-1])
        if rng.random() < 0.2:
            purpose = rng.choice((WORDS["audiences"], WORDS["places"], WORDS["occasions"]))
            self.after.append("for " + rng.choice(purpose))
        if self.category in WORN and self.likely(0.2):
            self.fields["size"] = rng.choice(WORDS["sizes"])
            self.after.append(f"size {self.fields['size']}")
        elif rng.random() < 0.07:
            self.fields["size"] = f"{rng.choice(AMOUNTS)} {rng.choice(WORDS['units'])}"
            self.after.append(str(self.fields["size"]))
        if self.likely(0.08):
            self.fields["max_price"] = rng.choice(PRICES)
            currency = rng.choice(WORDS["currencies"])
            self.after.append(f"under {self.fields['max_price']} {currency}")
        elif not self.rich and rng.random() < 0.08:
            self.after.append(rng.choice(WORDS["tails"]))

    def query(self) -> Query:
        words = [*self.before, self.noun, *self.after]
        text = " ".join(words) if len(self.after) < 3 else ""
        return Query(text, {**self.fields, "features": self.features})


def pseudo_word(rng: Random) -> str:
    """A word the shop has never heard of: it must be copied, not corrected."""
    while True:
        syllables = (
            rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))
        )
        made = "".join(syllables) + rng.choice(["", "n", "s", "x", "r", "l"])
        if not near_vocabulary(made):
            return made
