"""A GGUF file's metadata, key by key with every value checked."""

from __future__ import annotations

from collections.abc import Sequence

from quire.config_file import ConfigFile
from quire.errors import CheckpointError

_ALIGNMENT = "general.alignment"


class Metadata(ConfigFile):
    """The values of a header by key; lists of numbers are tuples."""

    instead = "convert the model again, or take another file of it"

    def wrong(self, key: str, problem: str) -> CheckpointError:
        """The CheckpointError for a key with a wrong value."""
        return CheckpointError(f"{self.path}: {key} {problem}")

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on that may be listed for each layer, where all are the same."""
        value = self._value(key, default)
        if not isinstance(value, Sequence) or isinstance(value, str):
            return self.integer(key, default)
        if len(value) == 0 or any(item != value[0] for item in value):
            raise self.wrong(
                key, "differs between layers, which is not supported; take another model"
            )
        return Metadata(self.path, {key: value[0]}).integer(key)

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of this many finite numbers."""
        value = self._value(key, None)
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        found = [item for item in value if _is_finite(item)] if is_list else []
        if not is_list or len(found) != len(value) or len(found) != length:
            raise self._wrong_value(key, value, f"a list of {length} finite numbers")
        return tuple(map(float, found))

    def alignment(self, most: int) -> int:
        """The alignment of tensors' offsets, in bytes."""
        found = self.integer(_ALIGNMENT, 32, high=most)
        if found % 8 or found & (found - 1):
            raise self.wrong(
                _ALIGNMENT, f"is {found}, no power of two from 8 on; download the file again"
            )
        return found

    def _wrong_value(self, key: str, value: object, right: str) -> CheckpointError:
        text = repr(value)
        shown = text if len(text) <= 64 else f"{text[:64]}..."
        return self.wrong(key, f"is {shown}, not {right}; {self.instead}")


def _is_finite(item: object) -> bool:
    return isinstance(item, int | float) and abs(item) < 1e30
