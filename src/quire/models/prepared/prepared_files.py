"""Files of prepared weights: their folder, their names, and which are removed at the size limit.

No torch: a start asks the system for its file before anything else (engine/startup/prefetch.py). A
name begins with a hash of the checkpoint and its quantization, and ends with one of the layout that
this processor's kernels read.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

from quire.config import ModelSettings
from quire.kernels.cpu import native
from quire.models.checkpoints.safetensors_header import STEP_BYTES
from quire.models.config.model_config import ModelConfig
from quire.processes import is_alive
from quire.version import __version__

LAYOUT = 7  # to be raised when a packed layout or its metadata changes, or how weights are rounded
# an entry of a file's metadata
FORMATS = "formats"  # JSON: module name → its weight's format, see quantization/stored_weight.py
SOURCE = "source"  # the checkpoint's folder, or GGUF file
_SUFFIX = ".safetensors"
_LARGEST_HEADER = 1 << 24  # bytes
_DIGITS = 24  # of each half of a name
_ABANDONED_SECONDS = 3600  # after which a file that was not finished is removed
_QUIET_SECONDS = 60  # the same, if no process here has the id in its name


def prepared_folder(config: ModelSettings) -> Path | None:
    """The folder of prepared weights; None if the settings turn them off."""
    if config.prepared_weights == "none":
        return None
    if config.prepared_weights != "auto":
        return Path(config.prepared_weights).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "quire" / "prepared"


def prepared_file(
    config: ModelSettings,
    model_config: ModelConfig,
    path: Path,
    dtype: str,
    without_kernels: tuple[object, ...] = (),
) -> Path | None:
    """The file for a checkpoint's folder, whether it exists or not; None if the settings say so.

    without_kernels: what else its layout depends on where there are no compiled kernels.
    """
    folder = prepared_folder(config)
    if folder is None or config.load_format != "auto":
        return None
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    layout = (
        LAYOUT, dtype, native.instruction_set(), without_kernels,
        model_config.rope.takes_long_factors(max_model_len), model_config.spec,
    )  # fmt: skip
    return folder / file_name(checkpoint_key(config, path), digest_of(layout))


def checkpoint_key(config: ModelSettings, path: Path) -> str:
    """The first half of the names for a checkpoint's folder. Raises OSError if there is none."""
    files = [
        (file.name, *_size_and_time(file))
        for file in sorted(path.iterdir())
        if file.suffix in (_SUFFIX, ".json", ".gguf")
    ]
    formats = config.quantization, config.quantization_overrides
    return digest_of((__version__, str(path.resolve()), files, formats))


def _size_and_time(file: Path) -> tuple[int, int]:
    """Size in bytes and time in ns; of a link that leads nowhere -1: who reads it reports it."""
    try:
        status = file.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def digest_of(key: tuple[object, ...]) -> str:
    """A hash of a key, used as one half of a prepared file's name."""
    return hashlib.sha256(repr(key).encode()).hexdigest()[:_DIGITS]


def file_name(checkpoint: str, layout: str) -> str:
    """The name of a prepared file: the checkpoint's digest and the layout's."""
    return f"{checkpoint}-{layout}{_SUFFIX}"


def unfinished_name(file: Path) -> Path:
    """Its name while this thread writes it: two engines of a process may do so at once."""
    return file.with_suffix(f".{platform.node()}.{threading.get_ident()}.{os.getpid()}.tmp")


def newest_file(config: ModelSettings, path: Path) -> Path | None:
    """The most recently used file of a checkpoint, most likely the next one, too."""
    folder = prepared_folder(config)
    if folder is None:
        return None
    try:
        files = folder.glob(file_name(checkpoint_key(config, path), "*"))
        return max(files, key=lambda file: file.stat().st_mtime, default=None)
    except OSError:
        return None  # one went meanwhile


def step_bytes(file: Path) -> int:
    """The bytes of a file, from its start, that each step reads; 0 if its header lacks it."""
    try:
        length, metadata = read_metadata(file)
        return 8 + length + int(metadata[STEP_BYTES])
    except (OSError, ValueError, LookupError):
        return 0  # who maps it will say what is wrong


def read_metadata(file: Path) -> tuple[int, dict[str, Any]]:
    """The length of a file's header, and its metadata.

    Raises OSError, ValueError or LookupError.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(min(length, _LARGEST_HEADER)))
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
        raise LookupError("it has no metadata")
    return length, header["__metadata__"]


def free_space(folder: Path, limit: int) -> None:
    """Remove what others left unfinished, and the files not used for longest beyond the limit."""
    now = time.time()
    for file in folder.glob("*.tmp"):
        if now - file.stat().st_mtime > _patience_with(file):
            file.unlink(missing_ok=True)
    files = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime)
    total = sum(file.stat().st_size for file in files)
    for file in files:
        if total <= limit:
            break
        total -= file.stat().st_size
        file.unlink(missing_ok=True)


def stored_files(folder: Path) -> list[Path]:
    """All files of the folder that Quire has written, the most recently used first."""
    patterns = (f"{'?' * _DIGITS}-{'?' * _DIGITS}{ending}" for ending in (_SUFFIX, ".*.tmp"))
    found = [file for pattern in patterns for file in folder.glob(pattern)]
    return sorted(found, key=lambda file: file.stat().st_mtime, reverse=True)


def source_of(file: Path) -> str:
    """The checkpoint's folder that a file was made of; empty where it does not say."""
    try:
        return str(read_metadata(file)[1].get(SOURCE, ""))
    except (OSError, ValueError, LookupError):
        return ""


def _patience_with(unfinished: Path) -> float:
    """Seconds without a change behind which a file counts as given up."""
    *name, _, process_id = unfinished.stem.split(".")
    if process_id.isdigit() and is_alive(int(process_id)):
        return _ABANDONED_SECONDS
    # one in another container may write here, too, under an id that no process has here
    return 0.0 if ".".join(name[1:]) == platform.node() else _QUIET_SECONDS
