"""Figures of several server processes, joined through files in a private folder.

Each process writes its own file, now and then and at its end; whoever is asked for metrics reads
all of them. A file outlives its process, so counters never go back.
"""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path

import msgspec

from quire.core.messages import EngineStats
from quire.engine.request_metrics import RequestFigures

logger = logging.getLogger(__name__)

SUFFIX = ".metrics"


class EngineFigures(msgspec.Struct, kw_only=True):
    """One engine as one process knows it. stats: the latest ones of each epoch."""

    num_blocks: int = 0
    block_size: int = 0
    kv_cache_bytes: int = 0
    requests: RequestFigures
    stats: dict[int, EngineStats] = {}


class Snapshot(msgspec.Struct, kw_only=True):
    """One process. started: Unix seconds. engines: by model name.

    http_requests: by path, method and status. errors: by the code of the error body.
    """

    started: float = 0.0
    engines: dict[str, EngineFigures] = {}
    http_requests: dict[tuple[str, str, int], int] = {}
    errors: dict[str, int] = {}


class SnapshotFolder:
    """The files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Snapshot)

    def write(self, snapshot: Snapshot) -> None:
        """Replace this process's file; readers see the old one or the new one."""
        draft = self._path / f"{self._name}.draft"
        try:
            draft.write_bytes(self._encoder.encode(snapshot))
            draft.replace(self._path / (self._name + SUFFIX))
        except OSError as error:  # a full disk costs figures, not requests
            logger.warning("metrics could not be written: %s", error.strerror)

    def read_others(self) -> list[Snapshot]:
        """The other processes' files, of dead ones too; what cannot be read is left out."""
        paths = [p for p in self._path.glob(f"*{SUFFIX}") if p.stem != self._name]
        found = [self._read(path) for path in sorted(paths)]
        return [snapshot for snapshot in found if snapshot is not None]

    def _read(self, path: Path) -> Snapshot | None:
        try:
            return self._decoder.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:  # the other figures are still good
            logger.warning("figures of another process could not be read: %s", error)
            return None
