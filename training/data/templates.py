"""Owns the templates that phrases are written in, and the reading of the word and phrase files.

In a template `{a|b}` is a choice, `[a]` may be left out, `<slot>` stands for a value. Both folders
hold TOML: `words/` lists separated by commas, `phrases/` lists of one template a line.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

Tree = tuple[list["str | Tree"], ...]  # a choice among sequences

HERE = Path(__file__).parent


def comma_list(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(",") if part.strip()]


def line_list(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def read_words(name: str) -> dict[str, list[str]]:
    """The lists of a file of words without tables."""
    return {key: comma_list(text) for key, text in read(f"words/{name}.toml").items()}


def read_phrases(name: str) -> dict[str, list[str]]:
    """The lists of a file of phrases without tables."""
    return {key: line_list(text) for key, text in read(f"phrases/{name}.toml").items()}


@dataclass(frozen=True)
class Dialog:
    """Templates of a dialog about one thing: the caller's words and the bot's answers."""

    caller: list[str]
    bot: list[str]
    topic: str = ""  # how the bot names a fact that it does not know
    prompt: tuple[str, ...] = ()  # how a system prompt states the fact
    values: tuple[str, ...] = ()  # what the fact may be, where that is a phrase


def read_dialogs(name: str) -> dict[str, Dialog]:
    """The tables of a file of phrases, in its order."""
    return {
        key: Dialog(
            line_list(table["caller"]),
            line_list(table["bot"]),
            table.get("topic", ""),
            tuple(line_list(table.get("prompt", ""))),
            tuple(line_list(table.get("values", ""))),
        )
        for key, table in read(f"phrases/{name}.toml").items()
    }


@cache
def parse(template: str) -> Tree:
    """Turn choices and optional parts into nested choices; slots stay in the text."""
    tokens = iter(re.findall(r"[{}|\[\]]|[^{}|\[\]]+", template))

    def choice(end: str) -> Tree:
        options: list[list[str | Tree]] = [[]]
        for token in tokens:
            if token == end:
                break
            if token == "{":
                options[-1].append(choice("}"))
            elif token == "[":
                options[-1].append(([], *choice("]")))
            elif token == "|" and end:
                options.append([])
            else:
                options[-1].append(token)
        return tuple(options)

    return choice("")


def fill(text: str, slots: dict[str, str]) -> str:
    """Put values in the place of slots."""
    return re.sub(r"<(\w+)>", lambda slot: slots[slot[1]], text)


def expand(template: str, rng: Random, slots: dict[str, str] | None = None) -> str:
    """Say one of the things that the template can say."""

    def walk(tree: Tree) -> str:
        part = tree[int(rng.random() * len(tree))]
        return "".join(p if isinstance(p, str) else walk(p) for p in part)

    text = walk(parse(template))
    return fill(text, slots) if slots else text


@cache
def pattern(templates: tuple[str, ...]) -> re.Pattern[str]:
    """The regular expression of everything the templates can say, slots being any text."""

    def walk(tree: Tree) -> str:
        joined = (
            "".join(re.escape(p) if isinstance(p, str) else walk(p) for p in part) for part in tree
        )
        return "(?:" + "|".join(joined) + ")"

    return re.compile(re.sub(r"<\w+>", ".+", "|".join(walk(parse(t)) for t in templates)))
