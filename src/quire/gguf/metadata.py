"""A GGUF file's metadata, key by key with every value checked.

Owns the words of the errors: the file, the key, what is wrong and what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.errors import CheckpointError
from quire.gguf.header_reader import Value

_ALIGNMENT = "general.alignment"
_MOST = 2**31 - 1  # of integers
_CONVERT = "convert the model again, or take another file of it"


class Metadata:
    """The values of a header by key."""

    def __init__(self, path: Path, values: Mapping[str, Value]) -> None:
        self.path, self.values = path, values

    def wrong(self, key: str, problem: str) -> CheckpointError:
        """The CheckpointError for a key with a wrong value."""
        return CheckpointError(f"{self.path}: {key} {problem}")

    def get(self, key: str) -> Value | None:
        """The raw value; None where the key is missing."""
        return self.values.get(key)

    def integer(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = _MOST
    ) -> int:
        """A whole number in [low, high]; without a default the key is required."""
        return self._integer(key, self._given(key, default), low, high)

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on that may be listed for each layer, where all are the same."""
        value = self._given(key, default)
        if isinstance(value, Sequence) and not isinstance(value, str):
            if len(value) == 0 or any(item != value[0] for item in value):
                raise self.wrong(
                    key, "differs between layers, which is not supported; take another model"
                )
            value = value[0]
        return self._integer(key, value, 1, _MOST)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; without a default the key is required."""
        value = self._given(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise self.wrong(key, f"is {_shown(value)}, no finite number > 0; {_CONVERT}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; without a default the key is required."""
        value = self._given(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"is {_shown(value)}, no text; {_CONVERT}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """A value that is true or false."""
        value = self._given(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"is {_shown(value)}, neither true nor false; {_CONVERT}")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of texts, which is required."""
        found = [item for item in self._items(key) if isinstance(item, str)]
        if len(found) != len(self._items(key)):
            raise self.wrong(key, f"is not a list of texts; {_CONVERT}")
        return found

    def numbers(self, key: str, length: int) -> list[float]:
        """A list of this many finite numbers, which is required."""
        items = self._items(key)
        found = [
            float(item) for item in items if isinstance(item, int | float) and abs(item) < 1e30
        ]
        if len(found) != len(items) or len(found) != length:
            raise self.wrong(key, f"is not a list of {length} finite numbers; {_CONVERT}")
        return found

    def alignment(self, most: int) -> int:
        """The alignment of tensors' offsets, in bytes."""
        found = self.integer(_ALIGNMENT, 32, high=most)
        if found % 8 or found & (found - 1):
            raise self.wrong(
                _ALIGNMENT, f"is {found}, no power of two from 8 on; download the file again"
            )
        return found

    def _integer(self, key: str, value: object, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            problem = f"is {_shown(value)}, no integer from {low} to {high}; {_CONVERT}"
            raise self.wrong(key, problem)
        return value

    def _items(self, key: str) -> Sequence[object]:
        value = self._given(key, None)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(key, f"is {_shown(value)}, no list; {_CONVERT}")
        return value

    def _given(self, key: str, default: Value | None) -> Value:
        value = self.values.get(key, default)
        if value is None:
            raise self.wrong(key, f"is missing; {_CONVERT}")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 64 else f"{text[:64]}..."
