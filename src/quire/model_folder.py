"""Kind of a file or folder that was named as a model: GGUF, or none, as an adapter or a pointer.

Looks at names and first bytes only. Folders that look like a model's are checked where they are
read. Also reads a folder's texts, and writes its files whole.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError

BUNDLED_FOLDER = Path(__file__).parent / "bundled"  # models that come with this version
GGUF_LINK = "model.gguf"  # in a folder that was made of a GGUF file: a link to it
# the name of one of several files of a model
GGUF_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_FURTHER_LINK = "part-{:05}.gguf"  # to the others where it has several
NO_TOKENIZER = "no_tokenizer.txt"  # there, in place of a tokenizer that is not read: why
POOLING_FILES = "*_Pooling/config.json"  # sentence-transformers', in a folder of its own
# beside config.json where that has no quantization_config: the file, and the method it is of
QUANTIZATION_FILES = {
    "hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq",
}  # fmt: skip
QUANTIZE_RUN = "quire_quantize.json"  # in a folder that `quire quantize` writes: its settings
_ADAPTER = "adapter_config.json"
_IS_THERE = "check that it is there"
_MERGE = "PeftModel.merge_and_unload, then save_pretrained"
_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024  # a pointer is shorter
_LOOKED_AT = 64  # files of a folder
_READ = (".json", ".jinja", ".safetensors", ".gguf")  # what is read of them
_LISTED = 8  # names in a message
_PROJECTOR = "mmproj"  # begins the names of files for images, which are no language models
_LARGEST_FILE = 64 * 1024 * 1024  # bytes of a text; real ones have a few thousand
_SNAPSHOT = re.compile(r".*/models--([^/]+)/snapshots/[^/]+(/.+)?")  # in the hub's cache
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # in JSON, where others may be escaped


def check_model_folder(folder: Path) -> None:
    """Raise CheckpointError for a folder that cannot be a model's; it says what it is."""
    files = sorted(folder.iterdir())[:_LOOKED_AT]
    names = [file.name for file in files]
    if not files:
        raise CheckpointError(f"{folder} is empty; download the model into it, or use a hub name")
    for file in files:
        if file.suffix in _READ and file.exists():
            check_regular(file)
    if (folder / "config.json").exists() or gguf_file(folder) is not None:
        return
    check_kind(folder, names)
    if QUANTIZE_RUN in names:
        raise CheckpointError(
            f"{folder} is a run of `quire quantize` that has not finished; run the same command "
            "again, which continues after the last finished layer"
        )
    if (folder / "tokenizer.json").exists():  # a tokenizer may have a folder of its own
        return
    inner = [file for file in files if (file / "config.json").is_file()]
    hint = f"name {inner[0]}" if inner else "name the folder of a complete checkpoint"
    raise CheckpointError(f"{folder} is not a model: it has no config.json; {hint}")


def check_kind(named: str | Path, names: Collection[str]) -> None:
    """Raise CheckpointError for the files of an adapter, or of a format that is not read.

    named: the folder or the repository with them, which has no config.json.
    """
    if _ADAPTER in names:
        raise CheckpointError(
            f"{named} is a LoRA adapter, without the weights of its model; merge it (peft: "
            f"{_MERGE}), and name the merged folder"
        )
    if "model_index.json" in names:
        raise CheckpointError(f"{named} is an image model (diffusers); name a language model")
    if "params.json" in names:
        raise CheckpointError(
            f"{named} is in its maker's own format (params.json); use the model's folder in "
            "Hugging Face's format, which has a config.json"
        )


def unapplied_adapter(folder: Path) -> str | None:
    """The warning for a folder that has both a model and an adapter; None without an adapter.

    The model may have been merged with it, so this is not an error.
    """
    if not (folder / _ADAPTER).is_file():
        return None
    return (
        f"{folder} has a LoRA adapter ({_ADAPTER}) beside the weights of a model, which are used "
        f"without it; if it is not in them, merge it (peft: {_MERGE})"
    )


def named_file(path: Path) -> Path:
    """The file to name in messages: of one that was made of a GGUF file, that file."""
    return gguf[0] if (gguf := linked_gguf(path.parent)) else named_path(path)


def named_path(path: Path) -> Path:
    """A path for messages: in a snapshot of the hub, OWNER/NAME of the repository and the rest.

    A bundled model has its name; for a folder that was made of a GGUF file, that file.
    """
    if gguf := linked_gguf(path):
        return gguf[0]
    if BUNDLED_FOLDER in path.parents:
        return path.relative_to(BUNDLED_FOLDER)
    found = _SNAPSHOT.fullmatch(str(path))
    return path if found is None else Path(found[1].replace("--", "/") + (found[2] or ""))


def gguf_link(folder: Path, number: int) -> Path:
    """The link to one of the GGUF files that a folder was made of. number: from 1 on."""
    return folder / (GGUF_LINK if number == 1 else _FURTHER_LINK.format(number))


def linked_gguf(folder: Path) -> list[Path]:
    """The GGUF files that a folder was made of; none of any other, or of one that is not read."""
    links = (gguf_link(folder, number) for number in count(1))
    return [link.resolve() for link in takewhile(os.path.islink, links)]


def gguf_file(folder: Path) -> Path | None:
    """The GGUF file that is a folder's model; None where it has others, or none.

    Raises CheckpointError for several, of which one has to be named.
    """
    names = sorted(file.name for file in folder.iterdir())
    found = gguf_models(names)
    if not found or any(name.endswith(".safetensors") for name in names):
        return None
    if len(found) > 1:
        raise CheckpointError(
            f"{folder} has {len(found)} GGUF files ({shown_names(found)}); name one of them as the "
            f"model, such as {folder / found[0]}"
        )
    return folder / found[0]


def gguf_models(names: Iterable[str]) -> list[str]:
    """The names that are those of GGUF files with a language model; of several the first."""
    return [
        name
        for name in names
        if name.endswith(".gguf") and not name.rpartition("/")[2].startswith(_PROJECTOR)
        if (part := GGUF_PART.fullmatch(name)) is None or int(part["number"]) == 1
    ]


def shown_names(names: Sequence[str]) -> str:
    """Names for a message; the first ones of many."""
    return ", ".join(names[:_LISTED]) + (" ..." if len(names) > _LISTED else "")


def is_gguf(file: Path) -> bool:
    """Whether a file is one of GGUF, by its name or its first bytes."""
    return file.suffix == ".gguf" or _begins_with(file, b"GGUF")


def check_model_file(file: Path) -> None:
    """Raise CheckpointError for a file that was named as a model, and is none."""
    if file.suffix == ".safetensors":
        raise CheckpointError(f"{file} is one file of a model; use its folder, {file.parent}")
    raise CheckpointError(
        f"{file} is a file; use the folder of a model, a GGUF file, or a hub name"
    )


def check_regular(file: Path) -> int:
    """The size of a file in bytes.

    Raises CheckpointError for a pipe, a device or a Git-LFS pointer, and OSError.
    """
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{file} must be a regular file, not a folder, pipe or device")
    if status.st_size < _POINTER_BYTES and _begins_with(file, _POINTER):
        raise CheckpointError(
            f"{file} is a Git-LFS pointer, not the file itself; run `git lfs pull` in {file.parent}"
        )
    return status.st_size


def unreadable(file: Path | str, error: OSError, fix: str = _IS_THERE) -> CheckpointError:
    """The error for a file that the system does not read. fix: for one that may be read."""
    if isinstance(error, PermissionError):
        fix = "check its permissions"
    return CheckpointError(f"{file} cannot be read ({error.strerror}); {fix}")


def read_text(file: Path) -> str:
    """The text of a model's file. Raises CheckpointError."""
    try:
        return _small_content(file).decode()
    except OSError as error:
        raise unreadable(file, error) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} cannot be read ({error}); download it again") from error


def read_json(file: Path) -> Any:
    """The value that a model's JSON file holds. Raises CheckpointError."""
    try:
        return parse_json(_small_content(file))
    except OSError as error:
        raise unreadable(file, error, "name a folder with a complete checkpoint") from error
    except ValueError as error:
        raise CheckpointError(f"{file} must be valid JSON ({error}); download it again") from error


def parse_json(content: bytes) -> Any:
    """The value of JSON that came with a model. Raises ValueError for all that is wrong with it."""
    try:
        found = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if _SURROGATE.search(content):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("a text in it has half of a surrogate pair") from error
    return found


def unfinished(file: Path) -> Path:
    """The file that `write_whole` writes first; it stays where the process is killed meanwhile."""
    return file.with_name(f".{file.name}.tmp")


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, and then put it in its place: whole, or not at all.

    That holds where the system goes down, too: it may keep the new name and lose what was written.
    Its mode is the umask's. Raises what `write` raises, and OSError.
    """
    part = unfinished(file)
    try:
        part.touch()
        mode = part.stat().st_mode  # safetensors leaves files to their owner
        write(part)
        part.chmod(mode)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(part, file)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _small_content(file: Path) -> bytes:
    if check_regular(file) > _LARGEST_FILE:
        raise CheckpointError(
            f"{file} is larger than 64 MiB, too large for a config file; download it again"
        )
    return file.read_bytes()


def _begins_with(file: Path, start: bytes) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(start)) == start
    except OSError:
        return False
