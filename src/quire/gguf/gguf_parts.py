"""A model in several GGUF files, as llama-gguf-split makes them: which these are, their tensors.

The first has the metadata of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quire.gguf.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from quire.gguf.metadata import Metadata
from quire.model_folder import GGUF_PART

_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
_MOST = 65535
_ALL = "download all of them into one folder, under their names"


def gguf_parts(file: Path) -> list[Path]:
    """All files of a model, by the name of one of them; whether they are there is not checked."""
    found = GGUF_PART.fullmatch(file.name)
    if found is None or not 1 <= int(found["number"]) <= int(found["count"]) <= _MOST:
        return [file]
    count = int(found["count"])
    names = (f"{found['name']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))
    return [file.with_name(name) for name in names]


def read_gguf_parts(files: Sequence[Path]) -> GgufHeader:
    """The first file's header with the tensors of all. Raises CheckpointError."""
    headers = [read_gguf_header(file) for file in files]
    tensors: dict[str, GgufTensor] = {}
    for number, header in enumerate(headers):
        _check_part(header.metadata, number, len(files))
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise header.metadata.wrong(name, f"is in {tensors[name].file}, too; {_ALL}")
            tensors[name] = tensor
    metadata = headers[0].metadata
    if (promised := metadata.integer(_TENSORS, len(tensors), low=0)) != len(tensors):
        raise metadata.wrong(_TENSORS, f"is {promised}, but there are {len(tensors)}; {_ALL}")
    return replace(headers[0], tensors=tensors)


def _check_part(metadata: Metadata, number: int, count: int) -> None:
    """Raise CheckpointError if a file is not the one that its name says."""
    own = max(1, metadata.integer(_COUNT, 1, low=0, high=_MOST))
    if own != count and count == 1:
        name = f"NAME-00001-of-{own:05}.gguf"
        raise metadata.wrong(_COUNT, f"is {own}: {_ALL} ({name} ...)")
    if own != count:
        raise metadata.wrong(_COUNT, f"is {own}, but {count} by the file's name; {_ALL}")
    if count > 1 and (own := metadata.integer(_NUMBER, low=0, high=_MOST)) != number:
        raise metadata.wrong(_NUMBER, f"is {own}, but {number} by the file's name; {_ALL}")
