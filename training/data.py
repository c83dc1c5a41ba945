# ruff: noqa: E501
"""Owns quire-tiny's training text: seeded generators for its five tasks, and what is held out.

Every generator takes a `random.Random`, so a seed fixes the text. Whether an example belongs to
training or to the held-out set depends on a checksum of its text alone, so the two never meet.
"""

from __future__ import annotations

import ast
import json
import pydoc_data.topics
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import lexicon as lex

Message = tuple[str, str]  # (role, content)
Tree = tuple[list["str | Tree"], ...]  # a choice among sequences

NUMBERS = lex.NUMBER_WORDS
JSON_KEYS = ["product", "brand", "colour", "material", "size", "features", "max_price"]
SOFT_GOODS = ("food", "health", "beauty")  # no material, no 'with pockets'
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}


def bucket(text: str, count: int) -> int:
    """Place a text in one of `count` buckets; bucket 0 is held out."""
    return zlib.crc32(text.encode()) % count


def held_query(query: str) -> bool:
    return " " in query and bucket(query, 64) == 0


def held_phrase(phrase: str) -> bool:
    plain = re.sub(r"[^a-z0-9 ]", "", phrase.lower())
    return plain in paraphrases() or (plain.count(" ") >= 3 and bucket(plain, 32) == 0)


@cache
def paraphrases() -> frozenset[str]:
    """Hand-written test phrases: the generator must not hit on one by chance."""
    return frozenset(re.sub(r"[^a-z0-9 ]", "", text.lower()) for text, _ in lex.PARAPHRASES)


# ---------------------------------------------------------------- templates


@cache
def parse(template: str) -> Tree:
    """Turn `{a|b}`, `[a]` and `<slot>` into nested choices."""

    def choice(i: int, end: str) -> tuple[Tree, int]:
        options: list[list[str | Tree]] = [[]]
        while i < len(template) and template[i] != end:
            if template[i] in "{[":
                optional = template[i] == "["
                inner, i = choice(i + 1, "]" if optional else "}")
                options[-1].append(([], *inner) if optional else inner)
            elif template[i] == "|" and end:
                options.append([])
                i += 1
            else:
                stop = re.compile(r"[{\[|}\]]" if end else r"[{\[]").search(template, i)
                j = stop.start() if stop else len(template)
                options[-1].append(template[i:j])
                i = j
        return tuple(options), i + 1

    return choice(0, "")[0]


def expand(template: str, rng: Random, slots: dict[str, str] | None = None) -> str:
    def walk(tree: Tree) -> str:
        part = tree[int(rng.random() * len(tree))]
        return "".join(p if isinstance(p, str) else walk(tuple(p)) for p in part)

    text = walk(parse(template))
    return re.sub(r"<(\w+)>", lambda m: slots[m[1]], text) if slots else text


@cache
def pattern(templates: tuple[str, ...]) -> re.Pattern[str]:
    """The regular expression of everything the templates can say, slots being any text."""

    def walk(tree: Tree) -> str:
        joined = (
            "".join(re.escape(p) if isinstance(p, str) else walk(tuple(p)) for p in part)
            for part in tree
        )
        return "(?:" + "|".join(joined) + ")"

    return re.compile(re.sub(r"<\w+>", ".+", "|".join(walk(parse(t)) for t in templates)))


# ---------------------------------------------------------------- product queries and typos


@cache
def brands() -> list[str]:
    rng = Random(7)
    made = [
        a + b + c
        for a in lex.BRAND_STARTS
        for b in lex.BRAND_MIDDLES
        for c in lex.BRAND_ENDS
        if a[-1] != b
    ]
    return sorted(rng.sample(made, 160))


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
    rows = []
    for category, (nouns, _) in lex.CATEGORIES.items():
        for noun in nouns:
            single, several = (noun[:-1],) * 2 if noun.endswith("*") else (noun, plural(noun))
            rows.append((category, single, several))
    return rows


@cache
def vocabulary() -> frozenset[str]:
    phrases = [p for row in products() for p in row[1:]]
    for _, attributes in lex.CATEGORIES.values():
        phrases += attributes
    lists = (lex.COLOURS, lex.MATERIALS, lex.AUDIENCES, lex.PLACES, lex.OCCASIONS, lex.FEATURES)
    for group in (
        *lists,
        lex.GENERAL_ATTRS,
        lex.LEADS,
        lex.TAILS,
        lex.UNITS,
        lex.CURRENCIES,
        brands(),
    ):
        phrases += group
    return frozenset(w for p in phrases for w in p.split()) | {"for", "with", "under", "size", "in"}


@cache
def deletion_index() -> dict[str, list[str]]:
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
    """Edits between two words; swapping neighbours is one edit."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, cb in enumerate(b, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (ca != cb))
            if i > 1 and j > 1 and ca == b[j - 2] and a[i - 2] == cb:
                best = min(best, older[j - 2] + 1)
            row.append(best)
    return row[-1]


@cache
def resolvable(word: str, typed: str) -> bool:
    """Is `word` the one vocabulary word closest to what was typed, within two edits?"""
    edits = distance(word, typed)
    if not 1 <= edits <= 2:
        return False
    near = {w for key in deletions(typed, edits) for w in deletion_index().get(key, ())} - {word}
    return all(distance(w, typed) > edits for w in near)


KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
NEIGHBOURS = {
    ch: [
        KEY_ROWS[r][c]
        for r in (row - 1, row, row + 1)
        for c in (col - 1, col, col + 1)
        if 0 <= r < 3 and 0 <= c < len(KEY_ROWS[r]) and (r, c) != (row, col)
    ]
    for row, keys in enumerate(KEY_ROWS)
    for col, ch in enumerate(keys)
}
SOUNDS = [
    ("ph", "f"), ("f", "ph"), ("ie", "ei"), ("ei", "ie"), ("c", "k"), ("k", "c"), ("ck", "k"), ("s", "z"),
    ("z", "s"), ("ea", "ee"), ("ee", "ea"), ("ee", "i"), ("qu", "kw"), ("x", "ks"), ("er", "or"), ("or", "er"),
    ("ai", "ay"), ("ou", "ow"), ("y", "i"), ("i", "y"), ("kn", "n"), ("wr", "r"), ("le", "el"), ("tion", "shun"),
    ("able", "ible"), ("ough", "uff"), ("oo", "u"), ("ch", "sh"), ("s", "c"), ("c", "s"), ("a", "e"), ("e", "a"),
    ("ight", "ite"), ("g", "j"), ("our", "or"), ("th", "t"), ("ei", "ai"), ("ar", "er"), ("isc", "isk"),
]  # fmt: skip


def typo(word: str, rng: Random) -> str:
    """Make one slip of the finger or of the ear."""
    kind, i = rng.random(), rng.randrange(len(word))
    if kind < 0.2 and i + 1 < len(word):
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if kind < 0.4:
        return word[:i] + word[i + 1 :]
    if kind < 0.52:
        return word[:i] + word[i] + word[i:]
    if kind < 0.62:
        return word[:i] + rng.choice("abcdefghijklmnopqrstuvwxyz") + word[i:]
    if kind < 0.8 and word[i] in NEIGHBOURS:
        return word[:i] + rng.choice(NEIGHBOURS[word[i]]) + word[i + 1 :]
    usable = [(a, b) for a, b in SOUNDS if a in word]
    if not usable:
        return word
    a, b = rng.choice(usable)
    start = rng.choice([m.start() for m in re.finditer(a, word)])
    return word[:start] + b + word[start + len(a) :]


@dataclass
class Query:
    text: str
    fields: dict[str, object]


def pseudo_word(rng: Random) -> str:
    """A word the shop has never heard of: it must be copied, not corrected."""
    while True:
        made = "".join(
            rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))
        )
        made += rng.choice(["", "n", "s", "x", "r", "l"])
        if not any(key in deletion_index() for key in deletions(made, 2)):
            return made


def make_query(rng: Random, rich: float = 0.0) -> Query:
    """A correct query and its fields; `rich` adds attributes."""
    category, single, several = rng.choice(products())
    noun = several if rng.random() < 0.4 else single
    fields: dict[str, object] = {"product": noun}
    features: list[str] = []

    def likely(p: float) -> bool:
        return rng.random() < p + rich

    before: list[str] = []
    if not rich and rng.random() < 0.08:
        before.append(rng.choice(lex.LEADS))
    if likely(0.12):
        fields["brand"] = rng.choice(brands()) if rng.random() < 0.8 else pseudo_word(rng)
        before.append(str(fields["brand"]))
    if likely(0.25):
        features.append(rng.choice(lex.GENERAL_ATTRS))
        before.append(features[-1])
    if likely(0.22):
        fields["colour"] = rng.choice(lex.COLOURS)
        before.append(str(fields["colour"]))
    if likely(0.25):
        features.append(rng.choice(lex.CATEGORIES[category][1]))
        before.append(features[-1])
    if category not in SOFT_GOODS and likely(0.13):
        fields["material"] = rng.choice(lex.MATERIALS)
        before.append(str(fields["material"]))
    while sum(len(b.split()) for b in before) > 5:
        gone = before.pop(rng.randrange(len(before)))
        fields = {k: v for k, v in fields.items() if v != gone}
        features = [f for f in features if f != gone]

    after: list[str] = []
    if category not in SOFT_GOODS and likely(0.12):
        features.append(rng.choice(lex.FEATURES))
        after.append("with " + features[-1])
    if rng.random() < 0.2:
        after.append("for " + rng.choice(rng.choice((lex.AUDIENCES, lex.PLACES, lex.OCCASIONS))))
    if category in ("clothing", "footwear") and likely(0.2):
        fields["size"] = rng.choice(lex.CLOTHES_SIZES)
        after.append(f"size {fields['size']}")
    elif rng.random() < 0.07:
        fields["size"] = (
            f"{rng.choice([2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 50, 100])} {rng.choice(lex.UNITS)}"
        )
        after.append(str(fields["size"]))
    if likely(0.08):
        fields["max_price"] = rng.choice(
            [5, 10, 15, 20, 25, 30, 40, 50, 75, 99, 100, 120, 150, 200, 250, 300, 500]
        )
        after.append(f"under {fields['max_price']} {rng.choice(lex.CURRENCIES)}")
    elif not rich and rng.random() < 0.08:
        after.append(rng.choice(lex.TAILS))
    fields["features"] = features
    return Query(" ".join([*before, noun, *after[:2]]) if len(after) < 3 else "", fields)


def clean_query(rng: Random, held: bool, rich: float = 0.0) -> Query:
    while True:
        query = make_query(rng, rich)
        if query.text and len(query.text.split()) <= 9 and held_query(query.text) == held:
            return query


def misspell(query: str, rng: Random, held: bool) -> tuple[str, bool]:
    """Add 0-3 typos. Returns the text and whether it holds a misspelling kept from training."""
    typed, rare, touched = query.split(), False, set[int]()
    for _ in range(rng.choices((0, 1, 2, 3), (15, 45, 27, 13))[0]):
        for _attempt in range(8):
            i = rng.randrange(len(typed))
            word = typed[i]
            if i in touched or not word.isalpha() or word not in vocabulary():
                continue
            roll = rng.random()
            if (
                roll < 0.06
                and i + 1 < len(typed)
                and typed[i + 1].isalpha()
                and i + 1 not in touched
            ):
                if word + typed[i + 1] in vocabulary() or len(word) < 3 or len(typed[i + 1]) < 3:
                    continue
                typed[i : i + 2] = [word + typed[i + 1]]
                touched = {t - (t > i) for t in touched} | {i}
                break
            if roll < 0.11 and len(word) >= 6:
                cut = rng.randint(2, len(word) - 2)
                if word[:cut] in vocabulary() and word[cut:] in vocabulary():
                    continue
                typed[i : i + 1] = [word[:cut], word[cut:]]
                touched = {t + (t > i) for t in touched} | {i, i + 1}
                break
            if len(word) < 4 and rng.random() < 0.8:
                continue
            wrong = typo(word, rng)
            if len(word) >= 7 and rng.random() < 0.25:
                wrong = typo(wrong, rng) if wrong else wrong
            unseen = bucket(f"{word}>{wrong}", 16) == 0
            if len(wrong) < 2 or not resolvable(word, wrong) or (unseen and not held):
                continue
            typed[i] = wrong
            rare = rare or unseen
            touched.add(i)
            break
    text = " ".join(typed)
    style = rng.random()
    if style < 0.06:
        text = text.capitalize() if style < 0.03 else text.title()
    elif style < 0.08:
        text = text.upper()
    elif style < 0.11:
        text += rng.choice(["?", ".", "!", " "])
    return text, rare


# ---------------------------------------------------------------- the five tasks


@dataclass
class Turn:
    """One question of a held-out chat, with what makes an answer right."""

    task: str
    messages: list[Message]
    answer: str
    intent: str = ""
    accepts: tuple[str, ...] = ()
    must: list[str] = field(default_factory=list)
    rare: bool = False

    def right(self, reply: str) -> bool:
        if not self.accepts:
            return reply == self.answer
        return bool(pattern(self.accepts).fullmatch(reply)) and all(m in reply for m in self.must)


def padding(rng: Random, sentences: int) -> str:
    return " ".join(expand(rng.choice(lex.FILLER), rng) for _ in range(sentences))


def long_tail(rng: Random) -> int:
    """How many filler sentences: mostly few, at times enough for a few thousand tokens."""
    return rng.choices((0, 3, 12, 40, 120, 220), (40, 25, 17, 10, 6, 2))[0]


def system_prompt(
    rng: Random, choices: list[str], missing: float, extra: str = ""
) -> list[Message]:
    if rng.random() < missing:
        return []
    text = expand(rng.choice(choices), rng) + extra
    if rng.random() < 0.06:
        text += " " + padding(rng, long_tail(rng))
    return [("system", text)]


def rewrite_chat(rng: Random, held: bool = False) -> Iterator[Turn]:
    messages = system_prompt(rng, lex.REWRITE_SYSTEMS, 0.28)
    if messages and rng.random() < 0.05:
        shown = [clean_query(rng, False).text for _ in range(rng.randint(1, 20))]
        lines = [f"{misspell(q, rng, False)[0]} -> {q}" for q in shown]
        messages = [("system", messages[0][1] + " Examples:\n" + "\n".join(lines))]
    for _ in range(rng.choices((1, 2, 3, 6), (70, 18, 9, 3))[0]):
        query = clean_query(rng, held).text
        typed, rare = misspell(query, rng, held)
        if rng.random() < 0.12:
            typed = f"{rng.choice(lex.REWRITE_PREFIXES)} {typed}"
        messages = [*messages, ("user", typed), ("assistant", query)]
        yield Turn("rewrite", messages, query, rare=rare)


def json_chat(rng: Random, held: bool = False) -> Iterator[Turn]:
    keys, extra = JSON_KEYS, ""
    if rng.random() < 0.4:
        keys = rng.sample(JSON_KEYS, rng.randint(1, 6))
        extra = (
            f" {rng.choice(['Keys', 'Fields', 'Use the keys', 'Only give'])}: {', '.join(keys)}."
        )
    messages = system_prompt(rng, lex.JSON_SYSTEMS, 0.0 if extra else 0.25, extra)
    bare = not messages
    for _ in range(rng.choices((1, 2), (85, 15))[0]):
        query = clean_query(rng, held, rich=0.2)
        typed = misspell(query.text, rng, held)[0] if rng.random() < 0.3 else query.text
        if bare or rng.random() < 0.3:
            typed = f"{rng.choice(lex.JSON_PREFIXES)} {typed}"
        answer = json.dumps({k: query.fields.get(k) for k in keys})
        messages = [*messages, ("user", typed), ("assistant", answer)]
        yield Turn("json", messages, answer)


@dataclass
class Shop:
    """A made-up shop and what a caller may ask about it."""

    name: str
    slots: dict[str, str]
    hours: list[tuple[str, str] | None]  # Monday..Sunday
    prices: dict[str, str]

    @staticmethod
    def make(rng: Random) -> Shop:
        name = f"{rng.choice(lex.SHOP_FIRST)} {rng.choice(lex.SHOP_KINDS)}"

        def clock(h: int, half: str) -> str:
            return f"{h}{rng.choice(['', '', ':30'])} {half}"

        week = (clock(rng.randint(6, 11), "am"), clock(rng.randint(4, 11), "pm"))
        saturday = rng.choice(
            [week, None, (clock(rng.randint(7, 11), "am"), clock(rng.randint(1, 6), "pm"))]
        )
        sunday = rng.choice(
            [
                None,
                None,
                saturday,
                (clock(rng.randint(8, 11), "am"), clock(rng.randint(1, 5), "pm")),
            ]
        )
        hours: list[tuple[str, str] | None] = [*[week] * 5, saturday, sunday]
        if rng.random() < 0.3:
            hours[rng.randrange(5)] = rng.choice([None, (week[0], clock(rng.randint(1, 9), "pm"))])

        def price() -> str:
            return f"{rng.randint(1, 60)}{rng.choice(['', '.50', '.20', '.90'])} euros"

        items = rng.sample(lex.MENU, rng.choices((0, 4, 10, 25, 46), (20, 35, 25, 12, 8))[0])
        facts = {
            "hours": summary(hours),
            "address": f"{rng.randint(1, 99)} {rng.choice(lex.STREETS)}, {rng.choice(lex.CITIES)}",
            "phone": f"0{rng.randint(10, 99)} {rng.randint(100, 999)} {rng.randint(100, 999)}",
            "parking": rng.choice(lex.PARKING),
            "payment": rng.choice(lex.PAYMENTS),
            "delivery": rng.choice(["free", price()]),
            "returns": str(rng.choice([7, 10, 14, 21, 28, 30, 60, 90])),
            "manager": rng.choice(lex.NAMES),
        }
        known = rng.choice((0.3, 0.7, 0.95))
        slots = {k: v for k, v in facts.items() if rng.random() < known}
        return Shop(name, slots, hours, {item: price() for item in items})

    def prompt(self, rng: Random) -> str:
        per_day = [
            f"{d}: {'closed' if h is None else f'{h[0]} to {h[1]}'}"
            for d, h in zip(lex.DAYS, self.hours, strict=True)
        ]
        say = {
            "hours": [f"Opening hours: {self.slots.get('hours')}.", f"We are open {self.slots.get('hours')}.",
                      "Opening hours: " + ", ".join(per_day) + "."],
            "address": ["Address: {}.", "The shop is at {}.", "You find us at {}."],
            "phone": ["Phone: {}.", "The phone number is {}."],
            "parking": ["Parking: {}.", "About parking: {}."],
            "payment": ["Payment: {}.", "We accept {}."],
            "delivery": ["Delivery: {}.", "Delivery costs: {}."],
            "returns": ["Returns: within {} days.", "Items can be returned for {} days."],
            "manager": ["Manager: {}.", "The manager is {}.", "{} is the manager."],
        }  # fmt: skip
        lines = [rng.choice(say[k]).format(v) for k, v in self.slots.items()]
        if self.prices:
            glue = rng.choice([", ", "; ", "\n- "])
            menu = glue.join(f"{i}{rng.choice([': ', ' '])}{p}" for i, p in self.prices.items())
            lines.append(
                f"{rng.choice(['Prices', 'Price list', 'What we sell'])}: {glue.strip(',; ')}{menu}.".replace(
                    ": \n", ":\n"
                )
            )
        filler = long_tail(rng)
        while filler > 0:
            lines.append(padding(rng, min(filler, rng.randint(1, 8))))
            filler -= 8
        rng.shuffle(lines)
        intro = expand(rng.choice(lex.SHOP_SYSTEMS), rng, {"shop": self.name})
        return rng.choice([" ", "\n", "\n\n", "\n- "]).join([intro, *lines])

    def ask(self, rng: Random) -> tuple[str, list[str], list[str], dict[str, str]]:
        """(fact, questions, answers, slot values) for one question."""
        fact = rng.choice(
            [*self.slots, *lex.FACTS, "day_open", "day_open", *["price"] * (3 * bool(self.prices))]
        )
        slots = dict(self.slots)
        if fact.startswith("day_"):
            day = rng.randrange(7)
            slots["day"], times = lex.DAYS[day], self.hours[day]
            fact = "day_closed" if times is None else "day_open"
            if times:
                slots["open"], slots["close"] = times
        elif fact == "price":
            item = rng.choice(list(self.prices) * 3 + lex.MENU)
            slots["item"] = item
            if item in self.prices:
                slots["price"] = self.prices[item]
        questions, answers, topic = lex.FACTS[fact]
        known = (
            "hours" in slots
            if fact.startswith("day_")
            else ("price" if fact == "price" else fact) in slots
        )
        if not known:
            answers, slots = lex.UNKNOWN, {**slots, "topic": topic}
        return fact, questions, answers, slots


def summary(hours: list[tuple[str, str] | None]) -> str:
    """Opening hours as one phrase, equal days in a row grouped."""
    parts, i = [], 0
    while i < 7:
        j = i
        while j < 6 and hours[j + 1] == hours[i]:
            j += 1
        days = (
            lex.DAYS[i] if i == j else f"{lex.DAYS[i]} {'to' if j > i + 1 else 'and'} {lex.DAYS[j]}"
        )
        span = hours[i]
        parts.append(f"{days} closed" if span is None else f"{days} from {span[0]} to {span[1]}")
        i = j + 1
    return ", ".join(parts)


def spoken(text: str, rng: Random) -> str:
    """As speech recognition writes it, or as a person types it."""
    if rng.random() < 0.55:
        return text
    text = text[0].upper() + text[1:]
    asks = re.match(
        r"(?i)(what|who|when|where|how|can|could|may|do|does|is|are|will|which|until|am)\b", text
    )
    return text + rng.choice(["?", "?", ""] if asks else [".", "!", ""])


class Caller:
    """Keeps the state of one voice chat and makes its turns."""

    def __init__(self, rng: Random, shop: Shop | None) -> None:
        self.rng, self.shop = rng, shop
        self.name = self.last = ""
        self.booking: dict[str, str] = {}
        self.next = ""

    def turn(self) -> tuple[str, list[str], list[str], dict[str, str]]:
        rng = self.rng
        if self.next and rng.random() < 0.95:
            return self.book(self.next)
        self.next = ""
        kind = rng.random()
        if self.shop and kind < 0.75:
            return self.shop.ask(rng)
        if kind < 0.78 or (self.shop and kind < 0.9):
            intent = rng.choice(list(lex.TALK))
            if rng.random() < 0.06:
                fact = rng.choice(
                    [f for f in lex.FACTS if f not in ("price", "day_open", "day_closed")]
                )
                if not self.shop:
                    return fact, lex.FACTS[fact][0], lex.UNKNOWN, {"topic": lex.FACTS[fact][2]}
            return intent, *lex.TALK[intent], {}
        intent = rng.choice(
            (
                "name",
                "my_name",
                "sum",
                "sum",
                "say",
                "again",
                "count",
                "day_after",
                "book",
                "book_all",
            )
        )
        return self.book(intent) if intent.startswith("book") else self.special(intent)

    def book(self, intent: str) -> tuple[str, list[str], list[str], dict[str, str]]:
        rng = self.rng
        if intent in ("book", "book_all"):
            hour = f"{rng.randint(5, 10)}{rng.choice(['', ':15', ':30'])} pm"
            self.booking = {
                "n": rng.choice(NUMBERS[1:13]),
                "day": rng.choice(lex.DAYS),
                "time": hour,
            }
        steps = {
            "book": "book_n",
            "book_n": "book_day",
            "book_day": "book_time",
            "book_yes": "",
            "book_no": "",
        }
        self.next = steps.get(intent, "book_no" if rng.random() < 0.25 else "book_yes")
        return intent, *lex.OTHER[intent], self.booking

    def special(self, intent: str) -> tuple[str, list[str], list[str], dict[str, str]]:
        rng = self.rng
        slots: dict[str, str] = {}
        if (intent == "my_name" and not self.name) or (intent == "again" and not self.last):
            intent = "name"
        if intent == "name":
            self.name = rng.choice(lex.NAMES)
        if intent in ("name", "my_name"):
            slots["name"] = self.name
        elif intent == "sum":
            a, b, op = rng.randint(0, 20), rng.randint(0, 12), rng.choice(lex.OTHER["math_op"][0])
            a, b = (
                (max(a, b), b) if op == "minus" else (a % 11, b % 11) if op == "times" else (a, b)
            )
            c = {"plus": a + b, "minus": a - b, "times": a * b}[op]
            write: Callable[[int], str] = NUMBERS.__getitem__ if rng.random() < 0.4 else str
            slots = {"a": write(a), "b": write(b), "op": op, "c": str(c)}
        elif intent == "say":
            stock = [lambda: make_query(rng).text or "hello", lambda: rng.choice(lex.MENU), lambda: rng.choice(lex.NAMES),
                     lambda: " ".join(pseudo_word(rng) for _ in range(rng.randint(1, 3))),
                     lambda: expand(rng.choice(lex.FILLER), rng)]  # fmt: skip
            slots["text"] = rng.choice(stock)()
        elif intent == "again":
            slots["last"] = self.last
        elif intent == "count":
            a, b = rng.randint(0, 6), rng.randint(7, 20)
            spell: Callable[[int], str] = NUMBERS.__getitem__ if rng.random() < 0.5 else str
            counted = ", ".join(spell(i) for i in range(a, b + 1))
            slots = {"a": spell(a), "b": spell(b), "counted": counted[0].upper() + counted[1:]}
        elif intent == "day_after":
            d = rng.randrange(7)
            slots = {
                "day": lex.DAYS[d],
                "mid": lex.DAYS[(d + 1) % 7],
                "day1": lex.DAYS[(d + 2) % 7],
            }
        return intent, *lex.OTHER[intent], slots


def talk_chat(rng: Random, held: bool = False, facts: bool = False) -> Iterator[Turn]:
    shop = Shop.make(rng) if facts else None
    messages = (
        [("system", shop.prompt(rng))] if shop else system_prompt(rng, lex.PLAIN_SYSTEMS, 0.4)
    )
    caller = Caller(rng, shop)
    for _ in range(rng.choices((1, 2, 4, 8), (35, 25, 25, 15))[0] + 2 * facts):
        intent, questions, answers, slots = caller.turn()
        question, answer = (
            expand(rng.choice(questions), rng, slots),
            expand(rng.choice(answers), rng, slots),
        )
        secret = held_phrase(question)
        while secret and not held:
            question = expand(rng.choice(questions), rng, slots)
            secret = held_phrase(question)
        if intent in lex.TALK and rng.random() < 0.35:
            longer = (
                rng.choice(lex.OPENERS) + question
                if rng.random() < 0.6
                else question + rng.choice(lex.CLOSERS)
            )
            question = longer if held or not held_phrase(longer) else question
        caller.last = answer
        messages = [*messages, ("user", spoken(question, rng)), ("assistant", answer)]
        used = {s for a in answers for s in re.findall(r"<(\w+)>", a)}
        common = {s for s in used if all(f"<{s}>" in a for a in answers)}
        turn = Turn(
            "facts" if facts else "talk",
            messages,
            answer,
            intent,
            tuple(answers),
            [slots[s] for s in sorted(common)],
        )
        turn.rare = secret
        yield turn


@cache
def library(held: bool) -> list[str]:
    """Documents of the Python standard library: docstrings by module, help topics, source."""
    documents: list[str] = []
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if EXCLUDED & set(path.relative_to(root).parts) or (bucket(name, 20) == 0) != held:
            continue
        try:
            source = path.read_text(encoding="utf-8")
            nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        parts = [
            f"{getattr(n, 'name', name)}\n{ast.get_docstring(n)}\n"
            for n in nodes
            if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(n)
        ]
        documents += ["\n".join(parts)] * 2 * bool(parts) + [source]
    topics = pydoc_data.topics.topics
    documents += [
        t for k, t in sorted(topics.items()) if (bucket(k, 20) == 0) == held for _ in range(2)
    ]
    return [d for d in documents if len(d) > 200]


@cache
def library_weights(held: bool) -> list[int]:
    total, sums = 0, []
    for document in library(held):
        total += len(document)
        sums.append(total)
    return sums


def plain_text(rng: Random) -> str:
    """A window of a library document, starting at a line."""
    document = rng.choices(library(False), cum_weights=library_weights(False))[0]
    size = rng.choice((400, 1000, 2500, 6000, 12000))
    start = rng.randrange(max(1, len(document) - size // 2))
    start = document.rfind("\n", 0, start) + 1
    return document[start : start + size]


def plain_chat(task: str, rng: Random) -> list[Message]:
    """The messages of one training chat (or one bare text, with the role 'text')."""
    if task == "text":
        return [("text", plain_text(rng))]
    make = {"rewrite": rewrite_chat, "json": json_chat, "talk": talk_chat}.get(task)
    turns = make(rng) if make else talk_chat(rng, facts=True)
    return list(turns)[-1].messages
