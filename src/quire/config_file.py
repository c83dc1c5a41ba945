"""A config file of a checkpoint, read key by key with every value checked. No torch.

Owns the words of the errors: the file, the key, what is wrong and what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quire.errors import CheckpointError
from quire.model_folder import named_file, read_json

_NONE: Mapping[str, Any] = MappingProxyType({})


class ConfigFile:
    """The top-level object of a JSON file, or an object inside of it (`where` then says which).

    defaults: values of keys that are missing, or null where a null says nothing. instead: the fix
    for a key that is missing.
    """

    instead = "use the config file of the original checkpoint"

    def __init__(
        self,
        path: Path,
        values: dict[str, Any],
        where: str = "",
        defaults: Mapping[str, Any] = _NONE,
    ) -> None:
        self.path = path
        self.values = values
        self.where = where
        self.defaults = defaults

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

    def get_nullable(self, key: str) -> Any:
        """The raw value, the default where it is missing; a null says that there is none."""
        return self.values.get(key, self.defaults.get(key))

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
            raise self._wrong_value(key, value, f"an integer between {low} and {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0 that float32 holds; without a default the key is required."""
        value = self._value(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 1e-30 < value < 1e30:  # also refuses NaN
            raise self._wrong_value(key, value, "a finite number > 0")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """True or false; without a default the key is required."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong_value(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a default the key is required."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong_value(key, value, "a string")
        return value

    def texts(self, key: str, *, required: bool = False) -> tuple[str, ...]:
        """A list of strings; empty where the key is missing, if it is not required."""
        value = self._value(key, None if required else [])
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
            raise self._wrong_value(key, value, "a list of strings")
        return tuple(value)

    def token_ids(self, key: str) -> list[int]:
        """One token id or a list of them; empty where the key is missing."""
        value = self.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self._wrong_value(key, value, "a token id or a list of token ids")
        return ids

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of `length` finite numbers above 0."""
        value = self.get(key)
        if not isinstance(value, list) or len(value) != length:
            found = f"a list of {len(value)}" if isinstance(value, list) else repr(value)
            raise self.wrong(key, f"is {found}; set it to a list of {length} numbers")
        for item in value:
            if not isinstance(item, int | float) or isinstance(item, bool) or not 0 < item < 1e30:
                raise self.wrong(key, f"has {item!r}; set it to a list of numbers > 0")
        return tuple(float(item) for item in value)

    def _value(self, key: str, default: Any) -> Any:
        """A key's value, or the default; without one the key is required."""
        value = self.get(key)
        if value is None:
            value = self.defaults.get(key, default)
        if value is None:
            raise self.wrong(key, f"is missing; {self.instead}")
        return value

    def _wrong_value(self, key: str, value: object, right: str) -> CheckpointError:
        return self.wrong(key, f"is {value!r}; set it to {right}")
