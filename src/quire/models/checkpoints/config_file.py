"""A JSON file of a checkpoint, read key by key with every value checked. No torch.

Owns the words of the errors: the file, the key, what is wrong and what would be right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.errors import CheckpointError
from quire.model_folder import named_file, read_json


class ConfigFile:
    """The top-level object of a JSON file, or an object inside of it (`where` then says which)."""

    def __init__(self, path: Path, values: dict[str, Any], where: str = "") -> None:
        self.path = path
        self.values = values
        self.where = where

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Parse a file. Raises CheckpointError where it is missing or is not a JSON object."""
        values = read_json(path)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} must be a JSON object; download it again")
        return cls(path, values)

    @classmethod
    def read_list(cls, path: Path) -> list[ConfigFile]:
        """The objects of a file that lists them. Raises CheckpointError."""
        values = read_json(path)
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise CheckpointError(f"{path} must be a JSON list of objects; download it again")
        return [cls(path, value, f"[{index}].") for index, value in enumerate(values)]

    def wrong(self, key: str, problem: str) -> CheckpointError:
        """The CheckpointError for a key with a wrong value."""
        return CheckpointError(f"{named_file(self.path)}: {self.where}{key} {problem}")

    @property
    def location(self) -> str:
        """The object in a file, or the file, for messages."""
        name = named_file(self.path).name
        return f"{self.where.rstrip('.')} in {name}" if self.where else name

    def get(self, key: str) -> Any:
        """The raw value, None where it is missing or null."""
        return self.values.get(key)

    def section(self, key: str) -> ConfigFile | None:
        """An object inside this one, None where it is missing, null or empty."""
        value = self.get(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, f"must be an object, not {value!r}")
        return ConfigFile(self.path, value, f"{self.where}{key}.")

    def integer(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1
    ) -> int:
        """A whole number in [low, high]; without a default the key is required."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(key, f"must be an integer between {low} and {high}, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0 that float32 holds; without a default the key is required."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(key, f"must be a number, not {value!r}")
        if not 1e-30 < value < 1e30:  # also refuses NaN
            raise self.wrong(key, f"must be a finite number > 0, not {value!r}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """A value that must be true or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a default the key is required."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"must be a string, not {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where the key is missing."""
        value = self.get(key)
        texts = [] if value is None else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise self.wrong(key, f"is {value!r}; it must be a list of strings")
        return tuple(texts)

    def token_ids(self, key: str) -> list[int]:
        """One token id or a list of them; empty where the key is missing."""
        value = self.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self.wrong(key, f"must be a token id or a list of token ids, not {value!r}")
        return ids

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of `length` finite numbers above 0."""
        value = self.get(key)
        if not isinstance(value, list) or len(value) != length:
            raise self.wrong(key, f"must be a list of {length} numbers")
        for item in value:
            if not isinstance(item, int | float) or isinstance(item, bool) or not 0 < item < 1e30:
                raise self.wrong(key, f"must have numbers > 0, not {item!r}")
        return tuple(float(item) for item in value)

    def _value(self, key: str, default: Any) -> Any:
        """A key's value, or the default; without one the key is required."""
        value = self.get(key)
        if value is None and (value := default) is None:
            raise self.wrong(key, "is missing; use the config file of the original checkpoint")
        return value
