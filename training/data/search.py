"""Owns two of the tasks: rewriting misspelt queries, and turning queries into JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from data.chat import PHRASES, Message, Turn, system_prompt
from data.queries import clean_query
from data.typos import misspell

JSON_KEYS = ["product", "brand", "colour", "material", "size", "features", "max_price"]


def rewrite_chat(rng: Random, held: bool = False) -> Iterator[Turn]:
    messages = system_prompt("rewrite", rng, missing=0.28)
    if messages and rng.random() < 0.05:
        messages = [("system", f"{messages[0][1]} Examples:\n{worked_examples(rng)}")]
    for _ in range(rng.choices((1, 2, 3, 6), (70, 18, 9, 3))[0]):
        query = clean_query(rng, held).text
        typed, rare = misspell(query, rng, held)
        if rng.random() < 0.12:
            typed = f"{rng.choice(PHRASES['rewrite_prefixes'])} {typed}"
        messages = [*messages, ("user", typed), ("assistant", query)]
        yield Turn(messages, query, rare=rare)


def worked_examples(rng: Random) -> str:
    queries = [clean_query(rng, False).text for _ in range(rng.randint(1, 20))]
    return "\n".join(f"{misspell(query, rng, False)[0]} -> {query}" for query in queries)


def json_chat(rng: Random, held: bool = False) -> Iterator[Turn]:
    keys, messages = json_prompt(rng)
    bare = not messages
    for _ in range(rng.choices((1, 2), (85, 15))[0]):
        query = clean_query(rng, held, rich=0.2)
        typed = misspell(query.text, rng, held)[0] if rng.random() < 0.3 else query.text
        if bare or rng.random() < 0.3:
            typed = f"{rng.choice(PHRASES['json_prefixes'])} {typed}"
        answer = json.dumps({key: query.fields.get(key) for key in keys})
        messages = [*messages, ("user", typed), ("assistant", answer)]
        yield Turn(messages, answer)


def json_prompt(rng: Random) -> tuple[list[str], list[Message]]:
    """The keys of the object, and the system prompt: it names them if they are not all."""
    if rng.random() >= 0.4:
        return JSON_KEYS, system_prompt("json", rng, missing=0.25)
    keys = rng.sample(JSON_KEYS, rng.randint(1, 6))
    ask = rng.choice(["Keys", "Fields", "Use the keys", "Only give"])
    return keys, system_prompt("json", rng, missing=0.0, extra=f" {ask}: {', '.join(keys)}.")
