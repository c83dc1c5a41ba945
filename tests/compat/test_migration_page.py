"""docs/migration.md: its tables are those of the code."""

from __future__ import annotations

from pathlib import Path

from migration_tables import filled

from quire.compat.names_table import SCOPES, rows_of

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"


def test_the_tables_are_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page) == page, "python benchmarks/migration_tables.py docs/migration.md"


def test_each_name_is_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for scope in SCOPES:
        for row in rows_of(scope):
            assert f"`{row.name}`" in page
    assert "\nold\n" not in filled("<!-- names:request -->\nold\n<!-- end -->")
