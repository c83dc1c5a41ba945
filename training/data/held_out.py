"""Owns the held-out questions: queries, phrases and shops that training never saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from data.chat import PHRASES, Message, Turn
from data.search import json_chat, rewrite_chat
from data.shops import FACTS
from data.talk import TALK, talk_chat
from data.templates import read_phrases


def held_out(counts: dict[str, int]) -> dict[str, list[Turn]]:
    """At least `counts` questions of each task, and the hand-written paraphrases."""
    rng = Random(2026)
    return {
        "rewrite": last_turns(rewrite_chat, counts["rewrite"], rng),
        "json": last_turns(json_chat, counts["json"], rng),
        "talk": unseen_phrases(counts["talk"], rng),
        "facts": shop_questions(counts["facts"], rng),
        "paraphrases": paraphrases(),
    }


def last_turns(chat: Callable[..., Iterator[Turn]], count: int, rng: Random) -> list[Turn]:
    return [list(chat(rng, held=True))[-1] for _ in range(count)]


def unseen_phrases(count: int, rng: Random) -> list[Turn]:
    """Small talk in held-out phrases, each of them once."""
    found: dict[str, Turn] = {}
    while len(found) < count:
        for turn in talk_chat(rng, held=True):
            if turn.rare and turn.intent in TALK:
                found.setdefault(turn.question.lower().rstrip("?.!"), turn)
    return list(found.values())


def shop_questions(count: int, rng: Random) -> list[Turn]:
    """The last question about a fact of each chat that has one."""
    found: list[Turn] = []
    while len(found) < count:
        found += [t for t in talk_chat(rng, held=True, facts=True) if t.intent in FACTS][-1:]
    return found


def paraphrases() -> list[Turn]:
    return [
        Turn([("user", text), ("assistant", "")], "", intent, tuple(TALK[intent].bot))
        for intent, texts in read_phrases("paraphrases").items()
        for text in texts
    ]


def examples(sets: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    """Held-out prompts for a demonstration; the voice bot's callers all reach the same shop."""
    known = (t for t in sets["facts"] if t.must and t.accepts[0] not in PHRASES["unknown"])
    facts = [t for t in known if len(t.messages[0][1]) < 900][:8]
    shop = max((t.messages[0] for t in facts), key=lambda message: len(message[1]))
    return [
        *(example("rewrite", t.prompt, t.answer) for t in sets["rewrite"][:26]),
        *(example("small_talk", t.prompt) for t in sets["talk"][:8]),
        *(example("voice_bot", [shop, t.messages[-2]]) for t in facts),
    ]


def example(task: str, messages: list[Message], expected: str | None = None) -> dict[str, Any]:
    said = [{"role": role, "content": content} for role, content in messages]
    return {"task": task, "messages": said, "expected": expected}
