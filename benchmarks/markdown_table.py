"""Tables in Markdown. Not a program: what makes the tables of the documents shares it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(
    head: Sequence[object], rows: Iterable[Iterable[object]], caption: str = ""
) -> str:
    """A table, below its caption if there is one."""
    lines = [_line(head), "|---" * len(head) + "|", *map(_line, rows)]
    return "\n".join([caption, "", *lines] if caption else lines)


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
