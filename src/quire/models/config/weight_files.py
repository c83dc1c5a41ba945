"""Identity of a model's weight files, without reading them whole, and of settings. No torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import BinaryIO

from quire.model_folder import check_regular
from quire.models.checkpoints.safetensors_header import LARGEST_HEADER

_SAMPLES, _SAMPLE_BYTES = 16, 4096  # of each file, at even distances


def weight_files(folder: Path) -> dict[str, str]:
    """Size and fingerprint of each safetensors file, by name. Raises CheckpointError."""
    return {path.name: _fingerprint(path) for path in sorted(folder.glob("*.safetensors"))}


def json_digest(values: object) -> str:
    """A SHA-256 of a JSON value, the same in whatever order it has its keys."""
    return f"sha256 {hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}"


def _fingerprint(path: Path) -> str:
    """The size in bytes, and a SHA-256 of the header and of samples from start to end."""
    size, digest = check_regular(path), hashlib.sha256()
    with path.open("rb") as file:
        length = min(int.from_bytes(file.read(8), "little"), LARGEST_HEADER)
        digest.update(_part(file, 8, length))
        last = max(0, size - _SAMPLE_BYTES)
        for index in range(_SAMPLES):
            digest.update(_part(file, last * index // (_SAMPLES - 1), _SAMPLE_BYTES))
    return f"{size} bytes, sha256 {digest.hexdigest()}"


def _part(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)
