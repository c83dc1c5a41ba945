"""Owns two of the tasks: small talk with a voice bot, and questions about its shop's facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random

from data.chat import PHRASES, Turn, system_prompt
from data.queries import make_query, pseudo_word
from data.shops import DAYS, FACTS, WORDS, Say, Shop, unknown
from data.split import held_phrase
from data.templates import expand, read_dialogs

TALK = read_dialogs("talk")
REQUESTS = read_dialogs("requests")
NUMBERS = WORDS["numbers"]
SPECIAL = (
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
ABOUT_SHOPS = [fact for fact in FACTS if fact not in ("price", "day_open", "day_closed")]
ASKS = re.compile(
    r"(?i)(what|who|when|where|how|can|could|may|do|does|is|are|will|which|until|am)\b"
)


def talk_chat(rng: Random, held: bool = False, facts: bool = False) -> Iterator[Turn]:
    """A chat of several turns; with `facts` its system prompt is a shop's."""
    shop = Shop.make(rng) if facts else None
    messages = [("system", shop.prompt(rng))] if shop else system_prompt("talk", rng, missing=0.4)
    caller = Caller(rng, shop)
    for _ in range(rng.choices((1, 2, 4, 8), (35, 25, 25, 15))[0] + 2 * facts):
        say = caller.turn()
        question = expand(rng.choice(say.caller), rng, say.slots)
        caller.last = answer = expand(rng.choice(say.bot), rng, say.slots)
        secret = held_phrase(question)
        while secret and not held:
            question = expand(rng.choice(say.caller), rng, say.slots)
            secret = held_phrase(question)
        if say.intent in TALK:
            question = chatty(question, rng, held)
        messages = [*messages, ("user", spoken(question, rng)), ("assistant", answer)]
        yield Turn(messages, answer, say.intent, tuple(say.bot), stated(say), secret)


def stated(say: Say) -> list[str]:
    """The values that every form of the answer holds."""
    used = [set(re.findall(r"<(\w+)>", answer)) for answer in say.bot]
    return [say.slots[slot] for slot in sorted(set.intersection(*used))]


def chatty(question: str, rng: Random, held: bool) -> str:
    """At times with a word before or after it."""
    if rng.random() >= 0.35:
        return question
    if rng.random() < 0.6:
        longer = f"{rng.choice(PHRASES['openers'])} {question}"
    else:
        longer = f"{question} {rng.choice(PHRASES['closers'])}"
    return longer if held or not held_phrase(longer) else question


def spoken(text: str, rng: Random) -> str:
    """As speech recognition writes it, or as a person types it."""
    if rng.random() < 0.55:
        return text
    marks = ["?", "?", ""] if ASKS.match(text) else [".", "!", ""]
    return text[0].upper() + text[1:] + rng.choice(marks)


class Caller:
    """Keeps the state of one voice chat and makes its turns."""

    def __init__(self, rng: Random, shop: Shop | None) -> None:
        self.rng, self.shop = rng, shop
        self.name = self.last = ""  # the caller's name; the bot's last answer
        self.booking: dict[str, str] = {}
        self.next = ""  # the step of a booking that the bot has asked for

    def turn(self) -> Say:
        rng = self.rng
        if self.next and rng.random() < 0.95:
            return self.book(self.next)
        self.next = ""
        kind = rng.random()
        if self.shop and kind < 0.75:
            return self.shop.ask(rng)
        if kind < (0.9 if self.shop else 0.78):
            return self.chat()
        intent = rng.choice(SPECIAL)
        return self.book(intent) if intent.startswith("book") else self.special(intent)

    def chat(self) -> Say:
        """Small talk, and without a shop at times a question that only a shop can answer."""
        intent = self.rng.choice(list(TALK))
        if self.rng.random() < 0.06:
            fact = self.rng.choice(ABOUT_SHOPS)
            if not self.shop:
                return unknown(fact, {})
        return Say(intent, TALK[intent].caller, TALK[intent].bot, {})

    def book(self, intent: str) -> Say:
        """One step of a booking; the bot's answer asks for the next one."""
        rng = self.rng
        if intent in ("book", "book_all"):
            time = f"{rng.randint(5, 10)}{rng.choice(['', ':15', ':30'])} pm"
            self.booking = {"n": rng.choice(NUMBERS[1:13]), "day": rng.choice(DAYS), "time": time}
        confirm = "book_no" if rng.random() < 0.25 else "book_yes"
        steps = {"book": "book_n", "book_n": "book_day", "book_day": "book_time"}
        self.next = "" if intent in ("book_yes", "book_no") else steps.get(intent, confirm)
        return self.request(intent, self.booking)

    def special(self, intent: str) -> Say:
        """A request whose answer has to be worked out or remembered."""
        if (intent == "my_name" and not self.name) or (intent == "again" and not self.last):
            intent = "name"
        if intent == "name":
            self.name = self.rng.choice(WORDS["names"])
        slots: dict[str, Callable[[], dict[str, str]]] = {
            "name": lambda: {"name": self.name},
            "my_name": lambda: {"name": self.name},
            "again": lambda: {"last": self.last},
            "say": lambda: {"text": something(self.rng)},
            "sum": lambda: a_sum(self.rng),
            "count": lambda: a_count(self.rng),
            "day_after": lambda: days_in_a_row(self.rng),
        }
        return self.request(intent, slots[intent]())

    def request(self, intent: str, slots: dict[str, str]) -> Say:
        return Say(intent, REQUESTS[intent].caller, REQUESTS[intent].bot, slots)


def something(rng: Random) -> str:
    """Words for the bot to repeat."""
    kinds: list[Callable[[], str]] = [
        lambda: make_query(rng).text or "hello",
        lambda: rng.choice(WORDS["goods"]),
        lambda: rng.choice(WORDS["names"]),
        lambda: " ".join(pseudo_word(rng) for _ in range(rng.randint(1, 3))),
        lambda: expand(rng.choice(PHRASES["filler"]), rng),
    ]
    return rng.choice(kinds)()


def a_sum(rng: Random) -> dict[str, str]:
    a, b, op = rng.randint(0, 20), rng.randint(0, 12), rng.choice(["plus", "minus", "times"])
    if op == "minus":
        a = max(a, b)
    elif op == "times":
        a, b = a % 11, b % 11
    write = number_style(rng, 0.4)
    result = {"plus": a + b, "minus": a - b, "times": a * b}[op]
    return {"a": write(a), "b": write(b), "op": op, "c": str(result)}


def a_count(rng: Random) -> dict[str, str]:
    a, b = rng.randint(0, 6), rng.randint(7, 20)
    write = number_style(rng, 0.5)
    counted = ", ".join(write(i) for i in range(a, b + 1))
    return {"a": write(a), "b": write(b), "counted": counted[0].upper() + counted[1:]}


def number_style(rng: Random, words: float) -> Callable[[int], str]:
    """Numbers in words, in a share `words` of the cases, or in digits."""
    return NUMBERS.__getitem__ if rng.random() < words else str


def days_in_a_row(rng: Random) -> dict[str, str]:
    first = rng.randrange(7)
    day, mid, day1 = (DAYS[(first + i) % 7] for i in range(3))
    return {"day": day, "mid": mid, "day1": day1}
