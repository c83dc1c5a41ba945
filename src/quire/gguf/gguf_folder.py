"""A GGUF file as the folder of a model: config files made of its metadata, and a link to the file.

Made once for a file and kept in the cache, so that all that reads a model's folder reads this one.
The weights stay in the file. A file that has changed gets another folder. A model in several files
has a link to each.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError
from quire.gguf.gguf_config import model_settings
from quire.gguf.gguf_parts import gguf_parts, read_gguf_parts
from quire.gguf.gguf_tokenizer import UnreadTokenizerError, tokenizer_files
from quire.gguf.vocabulary_list import VocabularyList
from quire.last_use import NO_HOME, last_use, mark_used, user_cache
from quire.locked_folder import make_locked_folder, remove_left_folders
from quire.model_folder import (
    GGUF_LINK,
    NO_TOKENIZER,
    check_regular,
    gguf_link,
    unreadable,
    write_whole,
)
from quire.version import __version__

logger = logging.getLogger(__name__)

_LAYOUT = 4  # to be raised when other files are made of the same metadata
_PREFIX = "quire-gguf-"  # of temporary folders
_MOST_FOLDERS = 32  # that are kept, of those that were used last
# those of this process, by the folder of the cache that could not be written
_temporary: dict[Path, Path] = {}


def gguf_folder(file: Path) -> Path:
    """The folder of a GGUF file, made if need be. Raises CheckpointError."""
    files = gguf_parts(file)
    folder = _cache(file) / _name(files)
    if os.path.exists(folder / GGUF_LINK):  # False also in a cache that another user owns
        with suppress(OSError):  # of another user, or on a disk that is read only
            mark_used(folder, folder.parent.iterdir())
        return folder
    if folder in _temporary:
        return _temporary[folder]
    content = folder_content(files)
    files = [each.resolve() for each in files]
    try:
        _write(folder, files, content)
    except OSError as error:
        return _write_temporary(folder, files, content, error)
    return folder


def folder_content(files: Sequence[Path]) -> dict[str, str]:
    """The texts of the folder's files by name. Raises CheckpointError."""
    header = read_gguf_parts(files)
    words = VocabularyList.read(header.metadata)
    found: dict[str, Any] = {"config.json": model_settings(header, words.end_ids())}
    try:
        found |= tokenizer_files(header.metadata, words)
    except UnreadTokenizerError as error:
        return _texts(found) | {NO_TOKENIZER: str(error)}
    return _texts(found)


def _texts(objects: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(each, ensure_ascii=False) for name, each in objects.items()}


def _cache(file: Path) -> Path:
    cache = user_cache("gguf")
    if cache is None:
        raise CheckpointError(f"config files made of {file} cannot be stored: {NO_HOME}")
    return cache


def _name(files: Sequence[Path]) -> str:
    """The folder's name, by which files they are and when they were written."""
    key: tuple[str | int, ...] = (__version__, _LAYOUT)
    for file in files:
        try:
            check_regular(file)
            status = file.stat()
        except OSError as error:
            raise unreadable(file, error) from error
        key += (str(file.resolve()), status.st_size, status.st_mtime_ns)
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _write(folder: Path, files: Sequence[Path], content: Mapping[str, str]) -> None:
    """Make the folder in one step, as others may do so at the same time. Raises OSError."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".tmp"))
    try:
        _fill(draft, files, content)
        if not folder.exists():
            draft.rename(folder)
            mark_used(folder, folder.parent.iterdir())
    except OSError:
        if not folder.exists():  # else another was quicker
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    _remove_oldest(folder.parent)


def _write_temporary(
    folder: Path, files: Sequence[Path], content: Mapping[str, str], error: OSError
) -> Path:
    """A folder that is removed with this process, where the cache cannot be written.

    Or by a later one that needs such a folder, if this one is killed.
    """
    try:
        parent = Path(tempfile.gettempdir())
        remove_left_folders(_PREFIX, parent)
        made, _ = make_locked_folder(_PREFIX, parent)  # locked as long as this process lives
        atexit.register(_remove, made, os.getpid())
        _fill(made, files, content)
    except OSError:
        raise CheckpointError(
            f"{folder} cannot be written ({error.strerror}), where config files made of {files[0]} "
            "are stored, and neither can a temporary folder; set XDG_CACHE_HOME to one that can"
        ) from error
    _temporary[folder] = made
    text = "%s cannot be written (%s); config files made of %s are in a temporary folder, %s"
    logger.warning(text, folder, error.strerror, files[0], made)
    return made


def _remove(folder: Path, process: int) -> None:
    """Remove a folder where the process that made it ends, not in a fork of it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, files: Sequence[Path], content: Mapping[str, str]) -> None:
    for name, text in content.items():
        write_whole(folder / name, partial(Path.write_text, data=text, encoding="utf-8"))
    for number, file in enumerate(files, 1):
        gguf_link(folder, number).symlink_to(file)


def _remove_oldest(cache: Path) -> None:
    with suppress(OSError):  # another may remove one, too
        folders = sorted(cache.iterdir(), key=last_use, reverse=True)
        for folder in folders[_MOST_FOLDERS:]:
            # at once, so that one that is killed meanwhile leaves no folder with half of its files
            shutil.rmtree(folder.rename(folder.with_suffix(".tmp")), ignore_errors=True)
