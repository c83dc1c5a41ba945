"""Writes the text on which `quire quantize` calibrates where no other is named.

python training/calibration_text.py

It is this project's own: pages of its documentation, pieces of its source, and chats as
`quire-tiny` was trained on (none of those that are held out).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from data import plain_chat

ROOT = Path(__file__).parents[1]
OUT = ROOT / "src" / "quire" / "bundled" / "calibration.jsonl"
SHARES = {"docs": 190_000, "source": 70_000, "chats": 140_000}  # characters
PIECE = 3000  # characters of a page in one line
TASKS = ("rewrite", "talk", "facts", "json")


def main() -> None:
    rng = Random(21)
    lines = [
        *limited(pieces(sorted((ROOT / "docs").glob("*.md")), rng), SHARES["docs"]),
        *limited(pieces(sorted((ROOT / "src").rglob("*.py")), rng), SHARES["source"]),
        *limited(chats(rng), SHARES["chats"]),
    ]
    rng.shuffle(lines)
    OUT.write_text("".join(f"{line}\n" for line in lines))
    print(f"{OUT}: {OUT.stat().st_size:,} bytes in {len(lines)} lines")


def pieces(paths: list[Path], rng: Random) -> Iterator[dict[str, Any]]:
    """Pieces of files, each from a line's beginning, in any order."""
    found = []
    for path in paths:
        text = path.read_text()
        starts = [text.rfind("\n", 0, at) + 1 for at in range(0, len(text), PIECE)]
        ends = [*starts[1:], len(text)]
        found += [text[begin:end] for begin, end in zip(starts, ends, strict=True)]
    rng.shuffle(found)
    for piece in found:
        yield {"text": piece}


def chats(rng: Random) -> Iterator[dict[str, Any]]:
    """Training chats of all tasks in turn, without end."""
    while True:
        for task in TASKS:
            messages = plain_chat(task, rng)
            yield {"messages": [{"role": role, "content": content} for role, content in messages]}


def limited(items: Iterator[dict[str, Any]], characters: int) -> Iterator[str]:
    """Lines of JSON until there are so many characters."""
    for item in items:
        line = json.dumps(item, ensure_ascii=False)
        characters -= len(line)
        if characters < 0:
            return
        yield line


if __name__ == "__main__":
    main()
