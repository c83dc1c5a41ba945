"""Owns made-up shops: what is known about one, its system prompt, and what callers ask about it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from data.chat import PHRASES, long_tail, padding
from data.templates import expand, fill, read_dialogs, read_words

FACTS = read_dialogs("facts")
WORDS = read_words("shops")
DAYS = WORDS["days"]

Span = tuple[str, str]  # (opens, closes)


class Say(NamedTuple):
    """One question of a caller in the making: templates for it and its answer, and their values."""

    intent: str
    caller: list[str]
    bot: list[str]
    slots: dict[str, str]


@dataclass
class Shop:
    """A shop and what its system prompt says about it."""

    name: str
    slots: dict[str, str]  # the facts that are known
    hours: list[Span | None]  # Monday..Sunday
    prices: dict[str, str]

    @staticmethod
    def make(rng: Random) -> Shop:
        name = f"{rng.choice(WORDS['first'])} {rng.choice(WORDS['kinds'])}"
        hours = make_hours(rng)
        goods = rng.sample(WORDS["goods"], rng.choices((0, 4, 10, 25, 46), (20, 35, 25, 12, 8))[0])
        facts = make_facts(rng, hours)
        known = rng.choice((0.3, 0.7, 0.95))
        slots = {fact: value for fact, value in facts.items() if rng.random() < known}
        return Shop(name, slots, hours, {item: make_price(rng) for item in goods})

    def prompt(self, rng: Random) -> str:
        """The system prompt: facts, prices and filler, shuffled."""
        slots = {**self.slots, "each_day": day_by_day(self.hours)}
        lines = [fill(rng.choice(FACTS[fact].prompt), slots) for fact in self.slots]
        if self.prices:
            lines.append(self.price_list(rng))
        filler = long_tail(rng)
        while filler > 0:
            lines.append(padding(rng, min(filler, rng.randint(1, 8))))
            filler -= 8
        rng.shuffle(lines)
        intro = expand(rng.choice(PHRASES["shop"]), rng, {"shop": self.name})
        return rng.choice([" ", "\n", "\n\n", "\n- "]).join([intro, *lines])

    def price_list(self, rng: Random) -> str:
        glue = rng.choice([", ", "; ", "\n- "])
        menu = glue.join(f"{i}{rng.choice([': ', ' '])}{p}" for i, p in self.prices.items())
        title = rng.choice(["Prices", "Price list", "What we sell"])
        return f"{title}:\n-{menu}." if glue == "\n- " else f"{title}: {menu}."

    def ask(self, rng: Random) -> Say:
        """A question about a fact, which the prompt may state or not."""
        price = ["price"] * 3 if self.prices else []
        fact = rng.choice([*self.slots, *FACTS, "day_open", "day_open", *price])
        slots, known = dict(self.slots), fact in self.slots
        if fact.startswith("day_"):
            known = "hours" in slots
            day = rng.randrange(7)
            slots["day"], span = DAYS[day], self.hours[day]
            fact = "day_open" if span else "day_closed"
            if span:
                slots["open"], slots["close"] = span
        elif fact == "price":
            slots["item"] = rng.choice(list(self.prices) * 3 + WORDS["goods"])
            known = slots["item"] in self.prices
            if known:
                slots["price"] = self.prices[slots["item"]]
        return (
            Say(fact, FACTS[fact].caller, FACTS[fact].bot, slots) if known else unknown(fact, slots)
        )


def unknown(fact: str, slots: dict[str, str]) -> Say:
    """A question about a fact that no prompt states."""
    topic = FACTS[fact].topic
    return Say(fact, FACTS[fact].caller, PHRASES["unknown"], {**slots, "topic": topic})


def make_facts(rng: Random, hours: list[Span | None]) -> dict[str, str]:
    street, city = WORDS["streets"], WORDS["cities"]
    return {
        "hours": summary(hours),
        "address": f"{rng.randint(1, 99)} {rng.choice(street)}, {rng.choice(city)}",
        "phone": f"0{rng.randint(10, 99)} {rng.randint(100, 999)} {rng.randint(100, 999)}",
        "parking": rng.choice(FACTS["parking"].values),
        "payment": rng.choice(FACTS["payment"].values),
        "delivery": rng.choice(["free", make_price(rng)]),
        "returns": str(rng.choice([7, 10, 14, 21, 28, 30, 60, 90])),
        "manager": rng.choice(WORDS["names"]),
    }


def make_price(rng: Random) -> str:
    return f"{rng.randint(1, 60)}{rng.choice(['', '.50', '.20', '.90'])} euros"


def make_hours(rng: Random) -> list[Span | None]:
    """Weekdays alike, shorter weekends, and at times a weekday of its own."""

    def clock(first: int, last: int, half: str) -> str:
        return f"{rng.randint(first, last)}{rng.choice(['', '', ':30'])} {half}"

    week = clock(6, 11, "am"), clock(4, 11, "pm")
    saturday = rng.choice([week, None, (clock(7, 11, "am"), clock(1, 6, "pm"))])
    sunday = rng.choice([None, None, saturday, (clock(8, 11, "am"), clock(1, 5, "pm"))])
    hours: list[Span | None] = [*[week] * 5, saturday, sunday]
    if rng.random() < 0.3:
        other = rng.choice([None, (week[0], clock(1, 9, "pm"))])
        hours[rng.randrange(5)] = other
    return hours


def day_by_day(hours: list[Span | None]) -> str:
    spans = ("closed" if span is None else f"{span[0]} to {span[1]}" for span in hours)
    return ", ".join(f"{day}: {span}" for day, span in zip(DAYS, spans, strict=True))


def summary(hours: list[Span | None]) -> str:
    """Opening hours as one phrase, equal days in a row grouped."""
    parts, first = [], 0
    while first < 7:
        last = first
        while last < 6 and hours[last + 1] == hours[first]:
            last += 1
        days, span = DAYS[first], hours[first]
        if last > first:
            days += f" {'to' if last > first + 1 else 'and'} {DAYS[last]}"
        parts.append(f"{days} closed" if span is None else f"{days} from {span[0]} to {span[1]}")
        first = last + 1
    return ", ".join(parts)
