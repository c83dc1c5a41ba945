"""Texts of a parquet file, as data sets of the hub have them. Needs pyarrow, which is optional."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from quire.errors import ConfigError

ENDING = ".parquet"
_COLUMNS = ("messages", "text")  # a row's first one that is not null counts


def parquet_lines(path: Path, most: int) -> str:
    """Rows as JSON lines with "messages" or "text", until they have `most` characters.

    Raises ConfigError for a file that cannot be read, or that has neither column.
    """
    lines, size = list[str](), 0
    for line in _lines(path):
        size += len(line) + 1
        if lines and size > most:
            break
        lines.append(line)
    return "\n".join(lines)


def _lines(path: Path) -> Iterator[str]:
    pyarrow = pyarrow_for(path.name)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = _known(path, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=256, columns=columns):
                for row in batch.to_pylist():
                    yield from _line(row)
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(
            f"calibration: {path} cannot be read as parquet ({error}); download it again"
        ) from error


def pyarrow_for(name: str) -> ModuleType:
    """pyarrow, for a file of that name. Raises ConfigError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"calibration: {name} is parquet, which needs pyarrow; pip install pyarrow, or name a "
            "file of JSON lines or text"
        ) from error
    module: ModuleType = pyarrow
    return module


def _known(path: Path, names: list[str]) -> list[str]:
    """The columns that hold texts. Raises ConfigError where there are none."""
    found = [name for name in _COLUMNS if name in names]
    if not found:
        raise ConfigError(
            f"calibration: {path} has the columns {', '.join(names)}, but a column text or "
            "messages is needed; take another data set, or write JSON lines of it"
        )
    return found


def _line(row: dict[str, Any]) -> Iterator[str]:
    """The row's own text in JSON; none where it is null."""
    name = next((name for name in _COLUMNS if row.get(name)), None)
    if name is not None:
        yield json.dumps({name: row[name]}, ensure_ascii=False, default=str)
