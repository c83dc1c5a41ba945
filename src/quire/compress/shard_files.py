"""The files of a checkpoint that is being made: one for each decoder layer, and one for the rest.

A layer's file appears under its name only once it is whole, so that a stopped run is taken up
after the last of them.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from quire.compress.recipe import Recipe
from quire.errors import CheckpointError, ConfigError
from quire.model_folder import (
    POOLING_FILES,
    QUANTIZE_RUN,
    parse_json,
    read_json,
    unfinished,
    write_whole,
)
from quire.models.checkpoints.checkpoint import INDEX, Checkpoint
from quire.models.checkpoints.safetensors_header import read_header
from quire.models.config.quality_report import QUALITY_FILE
from quire.models.config.weight_files import json_digest, weight_files
from quire.version import __version__

_OWN = ("config.json", QUANTIZE_RUN, QUALITY_FILE)  # which are written anew
_VERSION = "version"  # of Quire, in the record of a run
_OTHER = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5")


class ShardFiles:
    """The output folder of a run. layers: of the model."""

    def __init__(self, folder: Path, layers: int) -> None:
        self.folder, self._layers = folder, layers

    @contextmanager
    def opened(self, record: dict[str, Any]) -> Iterator[None]:
        """The folder of a new run, or of one with the same record, for this process alone.

        Raises ConfigError.
        """
        self._make(record)
        with (self.folder / QUANTIZE_RUN).open("rb") as run:
            try:
                fcntl.flock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"out: another quire quantize writes to {self.folder}; wait until it ends, or "
                    "name another folder"
                ) from error
            except OSError:  # a file system without locks
                pass
            yield

    def _make(self, record: dict[str, Any]) -> None:
        if (found := self._run_found(record)) is not None:
            # which may round and pack in another way
            if found.get(_VERSION) != record[_VERSION] and not self.has_weights:
                raise ConfigError(
                    f"out: {self.folder} has an unfinished run of another version of Quire; name "
                    "another folder, or remove this one"
                )
            return
        run = self.folder / QUANTIZE_RUN
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            is_empty = all(path == unfinished(run) for path in self.folder.iterdir())
        except OSError as error:
            raise _not_written(self.folder, error) from error
        if not is_empty:
            raise ConfigError(f"out: {self.folder} is not empty; name another folder")
        _write_json(run, record)

    def is_finished(self, record: dict[str, Any], base: Path) -> bool:
        """Whether the folder has all files of a run with this record. Raises ConfigError."""
        found = self._run_found(record)
        return found is not None and self.has_weights and not list(self._lost(base))

    @property
    def has_weights(self) -> bool:
        """Whether all that a run makes is there: only copies of the base model's files may lack."""
        has_files = all((self.folder / name).is_file() for name in ("config.json", INDEX))
        return has_files and all(map(self.is_written, self._indices))

    def _lost(self, base: Path) -> Iterator[Path]:
        """The base model's other files that the folder has not."""
        for path in other_files(base):
            if not (self.folder / path.relative_to(base)).is_file():
                yield path

    @property
    def _indices(self) -> range:
        """Indices of all files: one for each layer, and that of the rest."""
        return range(self._layers + 1)

    def _run_found(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The record of the folder's run, by whichever version; None if there is none."""
        path = self.folder / QUANTIZE_RUN
        try:
            found = parse_json(path.read_bytes()) if path.is_file() else {}
        except OSError as error:
            raise _not_written(self.folder, error) from error
        except ValueError:
            found = None
        if found == {}:
            return None
        if not isinstance(found, dict) or found | {_VERSION: record[_VERSION]} != record:
            raise ConfigError(
                f"out: {self.folder} has a run with another model, text or settings; name "
                "another folder, or remove this one"
            )
        return found

    def path(self, index: int) -> Path:
        """The file of a layer; that of the rest comes after the last layer's."""
        return self.folder / f"model-{index + 1:05d}-of-{self._layers + 1:05d}.safetensors"

    def is_written(self, index: int) -> bool:
        """Whether a layer's file is there and whole: it may not be after a system went down."""
        try:
            return bool(read_header(self.path(index)))
        except CheckpointError:
            return False

    def write(self, index: int, tensors: dict[str, Tensor]) -> None:
        """Write a layer's tensors, or those of the rest."""
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {"format": "pt"}
        _write_whole(self.path(index), lambda part: save_file(stored, part, metadata))

    def checkpoint(self, index: int) -> Checkpoint:
        """The tensors of one file."""
        entries = {entry.name: entry for entry in read_header(self.path(index))}
        return Checkpoint(self.folder, entries)

    def copy_lost(self, base: Path) -> None:
        """Copy again those of the base model's other files that the folder has lost."""
        self._copy(self._lost(base), base)

    def _copy(self, files: Iterable[Path], base: Path) -> None:
        for path in files:
            _write_whole(self.folder / path.relative_to(base), partial(shutil.copyfile, path))

    def finish(self, base: Path, changes: dict[str, Any]) -> None:
        """Copy the base model's other files, change its config.json, and write the index."""
        self._copy(other_files(base), base)
        config = read_json(base / "config.json") | changes
        entries = [entry for index in self._indices for entry in read_header(self.path(index))]
        index = {
            "metadata": {"total_size": sum(entry.num_bytes for entry in entries)},
            "weight_map": {entry.name: entry.file.name for entry in entries},
        }
        for name, values in (("config.json", config), (INDEX, index)):
            _write_json(self.folder / name, values)


def other_files(folder: Path) -> Iterable[Path]:
    """Files beside the weights: tokenizer, templates, generation settings, licence.

    Of folders inside those that are read; others may hold other models, or a run's output.
    """
    yield from sorted(folder.glob(POOLING_FILES))
    for path in sorted(folder.iterdir()):
        is_weight = path.suffix in _OTHER or path.name.endswith(".index.json")
        if path.is_file() and not is_weight and path.name not in _OWN:
            yield path


def recipe_record(recipe: Recipe, base: Path, digest: str | None) -> dict[str, Any]:
    """The identity of a run: Quire's version, settings, the model's weights and config, the text.

    digest: of the text for calibration; None for methods that need none.
    """
    return {
        _VERSION: __version__,
        "recipe": recipe.record(),
        "base": base.name,
        "files": weight_files(base),
        "config": json_digest(read_json(base / "config.json")),
        "calibration": digest,
    }


def _write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file, or nothing. Raises ConfigError."""
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, write)
    except (OSError, SafetensorError) as error:
        raise _not_written(path.parent, error) from error


def _not_written(folder: Path, error: Exception) -> ConfigError:
    why = getattr(error, "strerror", None) or error
    return ConfigError(
        f"out: {folder} cannot be written ({why}); free some space, or name another folder"
    )


def _write_json(path: Path, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=2) + "\n"
    _write_whole(path, lambda part: part.write_text(text))
