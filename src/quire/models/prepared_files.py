"""Files of prepared weights: their folder, their names, and which leave when there are too many.

No torch: a start asks the system for its file before torch is there (engine/head_start.py). So a
name begins with what is known by then, the checkpoint and how it is quantized, and ends with what
torch tells, the form that this processor's kernels read.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from pathlib import Path

from quire.config import ModelConfig
from quire.processes import is_alive
from quire.version import __version__

PRODUCT_BYTES = "product_bytes"  # in a file's header, of the tensors that each step reads
_SUFFIX = ".safetensors"
_LARGEST_HEADER = 1 << 24  # bytes
_DIGITS = 24  # of each half of a name
_ABANDONED_SECONDS = 3600  # after which a file that was not finished is removed
_QUIET_SECONDS = 60  # the same, if nobody here has the process id in its name


def prepared_folder(config: ModelConfig) -> Path | None:
    """Where what a start on a CPU has made is kept for the next; None by the settings."""
    if config.prepared_weights == "none":
        return None
    if config.prepared_weights != "auto":
        return Path(config.prepared_weights).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "quire" / "prepared"


def checkpoint_key(config: ModelConfig, path: Path) -> str:
    """The first half of the names for a checkpoint's folder. Raises OSError."""
    files = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(path.iterdir())
        if file.suffix in (_SUFFIX, ".json")
    ]
    return digest_of((__version__, str(path.resolve()), files, config.quantization))


def digest_of(key: tuple[object, ...]) -> str:
    """Half of a name."""
    return hashlib.sha256(repr(key).encode()).hexdigest()[:_DIGITS]


def file_name(checkpoint: str, form: str) -> str:
    """form: the second half."""
    return f"{checkpoint}-{form}{_SUFFIX}"


def unfinished_name(file: Path) -> Path:
    """What it is called while this thread writes it: two engines of a process may do so at once."""
    return file.with_suffix(f".{threading.get_ident()}.{os.getpid()}.tmp")


def newest_file(config: ModelConfig, path: Path) -> Path | None:
    """The one of a checkpoint's folder that was used last, most likely the next one, too."""
    folder = prepared_folder(config)
    if folder is None:
        return None
    try:
        files = folder.glob(file_name(checkpoint_key(config, path), "*"))
        return max(files, key=lambda file: file.stat().st_mtime, default=None)
    except OSError:
        return None  # one went meanwhile


def product_bytes(file: Path) -> int:
    """How much of a file, from its begin, each step reads; 0 if that cannot be told."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(length, _LARGEST_HEADER)))
        return 8 + length + int(header["__metadata__"][PRODUCT_BYTES])
    except (OSError, ValueError, LookupError, TypeError):
        return 0  # who maps it will say what is wrong


def make_room(folder: Path, limit: int) -> None:
    """Remove what others left unfinished, and the files not used for longest beyond the limit."""
    now = time.time()
    for file in folder.glob("*.tmp"):
        patience = (
            _ABANDONED_SECONDS if _is_running(file.stem.rpartition(".")[2]) else _QUIET_SECONDS
        )
        if now - file.stat().st_mtime > patience:
            file.unlink(missing_ok=True)
    files = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime)
    total = sum(file.stat().st_size for file in files)
    for file in files:
        if total <= limit:
            break
        total -= file.stat().st_size
        file.unlink(missing_ok=True)


def _is_running(process_id: str) -> bool:
    """Whether some process here has that id; one in another container may write here, too."""
    return process_id.isdigit() and is_alive(int(process_id))
