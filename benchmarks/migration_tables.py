"""The tables of docs/migration.md, made from the table of foreign names.

python benchmarks/migration_tables.py docs/migration.md    # write them between their markers
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from quire.compat.environment import VARIABLES, own_spelling
from quire.compat.foreign_name import ANY, DEFAULT, NOTHING, ForeignName
from quire.compat.http_paths import FOREIGN_PATHS
from quire.compat.import_names import NAMES as IMPORTS
from quire.compat.method_names import all_methods
from quire.compat.names_table import SCOPES, Scope, rows_of
from quire.compat.own_values import OWN_VALUES, REFUSED_VALUES

_MARKED = re.compile(r"(<!-- names:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with a new table between each pair of markers."""
    return _MARKED.sub(lambda found: f"{found[1]}{_table(found[2])}\n{found[3]}", page)


def _table(name: str) -> str:
    tables = {scope: partial(_names, scope) for scope in SCOPES} | {
        "values": _values,
        "methods": partial(_texts, "method", all_methods()),
        "imports": partial(_texts, "import", IMPORTS),
        "paths": _paths,
        "environment": _environment,
    }
    return "\n".join(tables[name]())


def _names(scope: Scope) -> Iterator[str]:
    yield "| name | of | here |"
    yield "|---|---|---|"
    alike: dict[tuple[str, str], list[str]] = {}  # names that are the same to a reader
    for row in sorted(rows_of(scope), key=lambda row: row.name):
        alike.setdefault((row.engines, _meaning(row)), []).extend((row.name, *row.flags))
    for (engines, meaning), names in alike.items():
        yield f"| {', '.join(f'`{name}`' for name in names)} | {engines} | {meaning} |"


def _meaning(row: ForeignName) -> str:
    parts = []
    if row.same_as is not None:
        special = [f"{_shown(foreign)} is {_shown(own)}" for foreign, own in row.values.items()]
        parts.append("; ".join([f"`{row.same_as}`", *special]))
    if row.takes is ANY:
        parts.append(f"{'else no' if row.same_as else 'no'} effect: {row.text}")
    elif row.same_as is None:
        taken = [_shown(value) for value in row.takes if value is not None]
        taken += [] if row.repeats is None else [f"the value of `{row.repeats}`"]
        taken = ["what asks for nothing", *taken[len(NOTHING) :]] if _is_family(row) else taken
        parts.append(f"{' or '.join(taken) or 'refused'}: {row.text}; {row.fix}")
    elif row.text and not row.others:
        parts.append(f"others refused: {row.text}; {row.fix}")
    return "; ".join(parts).replace("|", "\\|")


def _is_family(row: ForeignName) -> bool:
    return tuple(row.takes)[1 : 1 + len(NOTHING)] == NOTHING


def _values() -> Iterator[str]:
    yield "| setting | spelling | here |"
    yield "|---|---|---|"
    for name, values in OWN_VALUES.items():
        for own in dict.fromkeys(values.values()):
            spellings = ", ".join(_shown(foreign) for foreign, to in values.items() if to is own)
            yield f"| `{name}` | {spellings} | {_shown(own)} |"
    for name, reasons in REFUSED_VALUES.items():
        for why in dict.fromkeys(reasons.values()):
            spellings = ", ".join(_shown(value) for value, text in reasons.items() if text == why)
            yield f"| `{name}` | {spellings} | refused: {why} |"


def _texts(kind: str, texts: Mapping[str, str]) -> Iterator[str]:
    yield f"| {kind} | here |"
    yield "|---|---|"
    alike: dict[str, list[str]] = {}
    for name, text in texts.items():
        alike.setdefault(text, []).append(f"`{name}`")
    for text, names in alike.items():
        yield f"| {', '.join(names)} | {text} |"


def _environment() -> Iterator[str]:
    yield "| environment variable there | here |"
    yield "|---|---|"
    for name, (_, others) in VARIABLES.items():
        yield f"| {', '.join(f'`{other}`' for other in others)} | `{own_spelling(name)}` |"


def _paths() -> Iterator[str]:
    yield "| path | of | here |"
    yield "|---|---|---|"
    for path, (engines, text) in FOREIGN_PATHS.items():
        yield f"| `{path}` | {engines} | {text} |"


def _shown(value: Any) -> str:
    return str(value) if value is DEFAULT else f"`{value!r}`"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("name the page: python benchmarks/migration_tables.py docs/migration.md")
    path = Path(sys.argv[1])
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
