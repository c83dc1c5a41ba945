"""Owns what the chats of all tasks are made of: messages, system prompts, turns to be scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from data.templates import expand, pattern, read_phrases

Message = tuple[str, str]  # (role, content)

PHRASES = read_phrases("common")


@dataclass
class Turn:
    """One question of a chat and its answer, with what makes a model's reply right."""

    messages: list[Message]  # up to and with the answer
    answer: str
    intent: str = ""
    accepts: tuple[str, ...] = ()  # templates of right replies; none: the answer and no other
    must: list[str] = field(default_factory=list)  # values that the reply has to hold
    rare: bool = False  # holds a phrase or a misspelling that training never saw

    @property
    def prompt(self) -> list[Message]:
        return self.messages[:-1]

    @property
    def question(self) -> str:
        return self.messages[-2][1]

    def right(self, reply: str) -> bool:
        if not self.accepts:
            return reply == self.answer
        return bool(pattern(self.accepts).fullmatch(reply)) and all(m in reply for m in self.must)


def padding(rng: Random, sentences: int) -> str:
    return " ".join(expand(rng.choice(PHRASES["filler"]), rng) for _ in range(sentences))


def long_tail(rng: Random) -> int:
    """Number of filler sentences: mostly few, at times enough for a few thousand tokens."""
    return rng.choices((0, 3, 12, 40, 120, 220), (40, 25, 17, 10, 6, 2))[0]


def system_prompt(task: str, rng: Random, missing: float, extra: str = "") -> list[Message]:
    """The first message of a chat, or none in a share `missing` of the cases."""
    if rng.random() < missing:
        return []
    text = expand(rng.choice(PHRASES[task]), rng) + extra
    if rng.random() < 0.06:
        text += " " + padding(rng, long_tail(rng))
    return [("system", text)]
