"""The tables of endpoint_suites.py's result: tests by file, and those that want something else."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from markdown_table import markdown_table

Result = dict[str, Any]
KINDS = ("passed", "missing", "differs", "standard", "choice", "model", "internals")
HEAD = (
    "passed",
    "missing",
    "differs",
    "as OpenAI or a standard",
    "refused",
    "another model",
    "its own insides",
)


def endpoint_suites(result: Result) -> str:
    """Endpoint tests by file, and of how many that apply to this server how many pass."""
    files = result["files"]
    total = [sum(row[kind] for row in files) for kind in KINDS]
    rows = [[row["file"], *(row[kind] for kind in KINDS)] for row in files]
    applicable = sum(total[:3])
    share, all_share = (total[0] / max(1, n) for n in (applicable, applicable + total[3]))
    text = (
        f"{total[0]} of the {applicable} that apply here pass ({share:.1%}); {all_share:.1%} where "
        "those that want other than OpenAI's behaviour count as failing."
    )
    return f"{markdown_table(('file', *HEAD), [*rows, ['**all**', *total]])}\n\n{text}"


def endpoint_suites_others(result: Result) -> str:
    """The tests that are missing, differ, or want other than OpenAI's behaviour, with why."""
    kinds = ("missing", "differs", "standard")
    counts: defaultdict[tuple[int, str, str], int] = defaultdict(int)
    for row in result["failed"]:
        if row["kind"] in kinds:
            name = row["test"].removeprefix("llama.cpp/unit/").rpartition("/")[2]
            counts[kinds.index(row["kind"]), row["why"], name] += row["count"]
    names = dict(zip(KINDS, HEAD, strict=True))
    rows = [
        [f"`{test}`", count, names[kinds[kind]], why.replace("|", "\\|")]
        for (kind, why, test), count in sorted(counts.items())
    ]
    return markdown_table(("test", "count", "kind", "what Quire does"), rows)
