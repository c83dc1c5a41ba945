"""Owns quire-tiny's training text: seeded generators for its five tasks, and what is held out.

Every generator takes a `random.Random`, so a seed fixes the text. The words and phrases are in
`words/` and `phrases/`, written for this project; brand and shop names are invented.
"""

from __future__ import annotations

from random import Random

from data.chat import Message
from data.library import plain_text
from data.search import json_chat, rewrite_chat
from data.talk import talk_chat

# the five tasks and their shares of the tokens
MIX = {"rewrite": 0.38, "talk": 0.15, "facts": 0.22, "json": 0.13, "text": 0.12}


def plain_chat(task: str, rng: Random) -> list[Message]:
    """The messages of one training chat (or one bare text, with the role 'text')."""
    if task == "text":
        return [("text", plain_text(rng))]
    make = {"rewrite": rewrite_chat, "json": json_chat, "talk": talk_chat}.get(task)
    turns = make(rng) if make else talk_chat(rng, facts=True)
    return list(turns)[-1].messages
