"""Files of prepared weights: their folder, their names, and which are removed at the size limit.

No torch: a start asks the system for its file before anything else (engine/startup/prefetch.py). A
name begins with a hash of the checkpoint and its quantization, and ends with one of the layout that
this processor's kernels read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import threading
from pathlib import Path
from typing import Any

from quire.config import ModelSettings
from quire.errors import CheckpointError, UserError
from quire.kernels.cpu import native
from quire.last_use import last_use, mark_used, user_cache
from quire.model_folder import GGUF_LINK, check_regular, parse_json
from quire.models.checkpoints.safetensors_header import STEP_BYTES
from quire.models.config.model_config import ModelConfig
from quire.models.config.quality_report import QUALITY_FILE
from quire.version import __version__

LAYOUT = 10  # to be raised when a packed layout or its metadata changes, or how weights are rounded
# entries of a file's metadata
FORMATS = "formats"  # JSON: module name → its weight's format, see quantization/stored_weight.py
SOURCE = "source"  # the checkpoint's folder, or GGUF file
_KEY = "key"  # JSON: what `checkpoint_key` had: the folder, quantization and its overrides
_DTYPE = "dtype"  # name of the data type that the model runs in
_PROCESSOR = "processor"  # the instruction set of the kernels that read it; "": of PyTorch's
_SUFFIX = ".safetensors"
UNFINISHED = ".tmp"  # the end of a file's name while it is written
_LARGEST_HEADER = 1 << 24  # bytes
_DIGITS = 24  # of each half of a name


def prepared_folder(config: ModelSettings) -> Path | None:
    """The folder of prepared weights; None if the settings turn them off, or there is no home."""
    if config.prepared_weights == "none":
        return None
    if config.prepared_weights != "auto":
        return Path(os.path.expanduser(config.prepared_weights))
    return user_cache("prepared")


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
        dtype, native.instruction_set(), without_kernels,
        model_config.rope.takes_long_factors(max_model_len), model_config.spec,
    )  # fmt: skip
    return folder / file_name(checkpoint_key(config, path), digest_of(layout))


def checkpoint_key(config: ModelSettings, path: Path) -> str:
    """The first half of the names for a checkpoint's folder. Raises OSError if there is none.

    A quality report changes no weight, and `quire quantize` writes it after a first start.
    """
    files = [
        (file.name, *_size_and_time(file))
        for file in sorted(path.iterdir())
        if file.suffix in (_SUFFIX, ".json", ".gguf") and file.name != QUALITY_FILE
    ]
    formats = config.quantization, config.quantization_overrides
    return digest_of((__version__, LAYOUT, str(path.resolve()), files, formats))


def origin_of(config: ModelSettings, path: Path, dtype: str) -> dict[str, str]:
    """Entries of the metadata of a file for a checkpoint's folder: what it is made of."""
    source = (path / GGUF_LINK).resolve() if (path / GGUF_LINK).is_symlink() else path
    key = str(path.resolve()), config.quantization, config.quantization_overrides
    processor = native.instruction_set()
    return {
        SOURCE: str(source.resolve()),
        _KEY: json.dumps(key),
        _DTYPE: dtype,
        _PROCESSOR: processor,
    }


def is_outdated(file: Path) -> bool:
    """Whether no start uses a file: its checkpoint has changed since, or Quire's version has.

    False where it does not say what it was made of, or that is not there.
    """
    try:
        folder, quantization, overrides = json.loads(_entry(file, _KEY) or "")
        config = ModelSettings(quantization=quantization, quantization_overrides=overrides)
        return not file.name.startswith(checkpoint_key(config, Path(folder)))
    except (OSError, ValueError, TypeError, UserError):
        return False


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
    name = f".{platform.node()}.{threading.get_ident()}.{os.getpid()}{UNFINISHED}"
    return file.with_suffix(name)


def newest_file(config: ModelSettings, path: Path) -> Path | None:
    """The most recently used file of a checkpoint, most likely the next one, too."""
    folder = prepared_folder(config)
    if folder is None:
        return None
    try:
        files = folder.glob(file_name(checkpoint_key(config, path), "*"))
        return max(files, key=last_use, default=None)
    except OSError:
        return None  # the checkpoint cannot be read


def step_bytes(file: Path) -> int:
    """The bytes of a file, from its start, that each step reads; 0 if its header lacks it."""
    try:
        length, metadata = read_metadata(file)
        return 8 + length + int(metadata[STEP_BYTES])
    except (OSError, ValueError, LookupError, CheckpointError):
        return 0  # who maps it will say what is wrong


def read_metadata(file: Path) -> tuple[int, dict[str, Any]]:
    """The length of a file's header, and its metadata.

    Raises OSError, ValueError, LookupError or CheckpointError.
    """
    check_regular(file)
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = parse_json(opened.read(min(length, _LARGEST_HEADER)))
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
        raise LookupError("it has no metadata")
    return length, header["__metadata__"]


def note_use(file: Path) -> None:
    """Make a file the last of its folder that is removed at the size limit."""
    with contextlib.suppress(OSError):  # of another user's, or on a disk that is read only
        mark_used(file, file.parent.glob(f"*{_SUFFIX}"))


def free_space(folder: Path, limit: int) -> None:
    """Remove what others left unfinished, and the files not used for longest beyond the limit."""
    from quire.models.prepared.unfinished_file import is_left  # a warm start writes nothing

    for file in folder.glob(f"*{UNFINISHED}"):
        if is_left(file):
            file.unlink(missing_ok=True)
    files = sorted(folder.glob(f"*{_SUFFIX}"), key=last_use)
    total = sum(file.lstat().st_size for file in files)
    for file in files:
        if total <= limit:
            break
        total -= file.lstat().st_size
        file.unlink(missing_ok=True)


def stored_files(folder: Path) -> list[Path]:
    """All files of the folder that Quire has written, the most recently used first."""
    patterns = (
        f"{'?' * _DIGITS}-{'?' * _DIGITS}{ending}" for ending in (_SUFFIX, f".*{UNFINISHED}")
    )
    found = [file for pattern in patterns for file in folder.glob(pattern) if not file.is_dir()]
    return sorted(found, key=last_use, reverse=True)


def source_of(file: Path) -> str:
    """The checkpoint's folder that a file was made of; empty where it does not say."""
    return _entry(file, SOURCE) or ""


def quantization_of(file: Path) -> str:
    """The `quantization` that a file was stored with, and its overrides; empty: not known."""
    try:
        _, quantization, overrides = json.loads(_entry(file, _KEY) or "")
    except (ValueError, TypeError):
        return ""
    text = " ".join(map(str, filter(None, (quantization, overrides))))
    return text if text.isprintable() else ""


def dtype_of(file: Path) -> str:
    """The data type of the model that a file was stored for; empty where it does not say."""
    return _entry(file, _DTYPE) or ""


def other_processor(file: Path) -> str:
    """The instruction set that a file is for, as another machine's may be; empty: this one's.

    Also empty where it does not say.
    """
    found = _entry(file, _PROCESSOR)
    return "" if found in (None, native.instruction_set()) else found or "PyTorch's kernels"


def _entry(file: Path, name: str) -> str | None:
    """A text of a file's metadata; None where there is none that can be shown."""
    try:
        text = str(read_metadata(file)[1][name])
    except (OSError, ValueError, LookupError, CheckpointError):
        return None
    return text if text.isprintable() else None
