"""A JSON file of a checkpoint, read key by key with every value checked. No torch.

Owns the words of the errors: the file, the key, what is wrong and what would be right.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError

_LARGEST_FILE = 64 * 1024 * 1024  # bytes; real ones have a few thousand


class ConfigFile:
    """The top-level object of a JSON file, or an object inside of it (`where` then says which)."""

    def __init__(self, path: Path, values: dict[str, Any], where: str = "") -> None:
        self.path = path
        self.values = values
        self.where = where

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Parse a file. Raises CheckpointError where it is missing or is not a JSON object."""
        values = _parse(path)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} does not hold a JSON object; download it again")
        return cls(path, values)

    @classmethod
    def read_list(cls, path: Path) -> list[ConfigFile]:
        """The objects of a file that lists them. Raises CheckpointError."""
        values = _parse(path)
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise CheckpointError(f"{path} does not hold a list of objects; download it again")
        return [cls(path, value, f"[{index}].") for index, value in enumerate(values)]

    def wrong(self, key: str, problem: str) -> CheckpointError:
        """The CheckpointError for a key with a wrong value."""
        return CheckpointError(f"{self.path}: {self.where}{key} {problem}")

    def get(self, key: str) -> Any:
        """The raw value, None where it is missing or null."""
        return self.values.get(key)

    def section(self, key: str) -> ConfigFile | None:
        """An object inside this one, None where it is missing, null or empty."""
        value = self.get(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, f"is {value!r}; it must be an object")
        return ConfigFile(self.path, value, f"{self.where}{key}.")

    def integer(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1
    ) -> int:
        """A whole number in [low, high]; without a default the key is required."""
        value = self.get(key)
        if value is None:
            value = self._required(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(key, f"is {value!r}; it must be a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; without a default the key is required."""
        value = self.get(key)
        if value is None:
            value = self._required(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(key, f"is {value!r}; it must be a number")
        if not 0 < value < 1e30:  # also refuses NaN
            raise self.wrong(key, f"is {value!r}; it must be a finite number above 0")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """A value that must be true or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, f"is {value!r}; it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a default the key is required."""
        value = self.get(key)
        if value is None:
            value = self._required(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"is {value!r}; it must be a string")
        return value

    def token_ids(self, key: str) -> list[int]:
        """One token id or a list of them; empty where the key is missing."""
        value = self.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self.wrong(key, f"is {value!r}; it must be a token id or a list of them")
        return ids

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of `length` finite numbers above 0."""
        value = self.get(key)
        if not isinstance(value, list) or len(value) != length:
            raise self.wrong(key, f"is not a list of {length} numbers; correct it")
        for item in value:
            if not isinstance(item, int | float) or isinstance(item, bool) or not 0 < item < 1e30:
                raise self.wrong(key, f"holds {item!r}; it must hold numbers above 0")
        return tuple(float(item) for item in value)

    def _required(self, key: str, default: Any) -> Any:
        if default is None:
            raise self.wrong(key, "is missing; take the config file of the original checkpoint")
        return default


def _parse(path: Path) -> Any:
    """The value that a JSON file holds. Raises CheckpointError."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise CheckpointError(f"{path} is larger than 64 MiB; this is no config file")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); give a folder with a whole checkpoint"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download it again") from error
