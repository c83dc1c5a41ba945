"""The tables of endpoint_suites.py's result: tests by folder, and which want something else."""

from __future__ import annotations

from collections import Counter, defaultdict
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
    """Endpoint tests by folder, and of how many that apply to this server how many pass."""
    folders: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in result["files"]:
        folder, _, _ = row["file"].partition("/")
        folders[folder].update({kind: row[kind] for kind in KINDS})
    total = [sum(found[kind] for found in folders.values()) for kind in KINDS]
    rows = [[folder, *(found[kind] for kind in KINDS)] for folder, found in folders.items()]
    applicable = sum(total[:3])
    share, all_share = (total[0] / max(1, n) for n in (applicable, applicable + total[3]))
    text = (
        f"{total[0]} of the {applicable} that apply here pass ({share:.1%}); {all_share:.1%} where "
        "those that want other than OpenAI's behaviour count as failing."
    )
    return f"{markdown_table(('tests', *HEAD), [*rows, ['**all**', *total]])}\n\n{text}"


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
