"""Figures of several server processes, joined through files in a private folder.

Each process writes its own file, now and then and at its end; whoever is asked for metrics reads
all of them. A file outlives its process, so counters never go back; those of dead ones are folded
into one file when a process starts, so their number stays small. What an engine counted in its
old epochs becomes one sum in that file, too.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from quire.core.histogram import STEP_SECONDS_BOUNDS, STEP_TOKEN_BOUNDS, Histogram
from quire.core.messages import EngineStats
from quire.engine.frontend.request_metrics import RequestFigures, RequestMetrics
from quire.processes import is_alive

logger = logging.getLogger(__name__)

SUFFIX = ".metrics"
FOLDED = "folded" + SUFFIX
MAX_LOOKS = 8  # at files that somebody folds meanwhile
KEPT_EPOCHS = 16  # of an engine; whatever process knows older ones has told its last of them

COUNTERS = (
    *("num_steps", "num_graph_steps", "num_preemptions", "num_recomputed_tokens"),
    *("num_prompt_tokens", "num_generation_tokens", "prefix_cache_queries", "prefix_cache_hits"),
    *("num_corrupted_requests", "num_bad_frames"),
)  # of EngineStats, that are plain numbers


class EngineFigures(msgspec.Struct, kw_only=True):
    """One engine as one process knows it. stats: the latest ones of each epoch.

    settled: the last of the epochs that are one sum by now, in its place; of the older ones, other
    processes' figures count no more. -1: none.
    """

    num_blocks: int = 0
    block_size: int = 0
    kv_cache_bytes: int = 0
    requests: RequestFigures
    stats: dict[int, EngineStats] = {}
    settled: int = -1

    @classmethod
    def joined(cls, parts: Sequence[EngineFigures]) -> EngineFigures:
        """One engine as several processes know it: their requests, and its newest figures."""
        whole, requests = cls(requests=RequestFigures()), RequestMetrics()
        last = max(parts, key=lambda part: part.settled)
        whole.settled = last.settled
        whole.stats = {epoch: last.stats[epoch] for epoch in (last.settled,) if epoch >= 0}
        for part in parts:
            whole.num_blocks, whole.block_size = part.num_blocks, part.block_size
            whole.kv_cache_bytes = part.kv_cache_bytes
            requests.add(part.requests)
            for epoch, stats in part.stats.items():
                known = whole.stats.get(epoch)
                if epoch > whole.settled and (known is None or known.time < stats.time):
                    whole.stats[epoch] = stats
        whole.requests = requests.figures()
        return whole

    def settle(self) -> None:
        """Make one sum of all epochs but the newest."""
        if old := sorted(self.stats)[:-KEPT_EPOCHS]:
            self.settled = old[-1]
            self.stats[self.settled] = summed(self.stats.pop(epoch) for epoch in old)


class Snapshot(msgspec.Struct, kw_only=True):
    """One process, or several. started: Unix seconds, of the first. engines: by model name.

    http_requests: by path, method and status. errors: by the code of the error body. folded: whose
    files these figures were in; where such a file is still there, it counts no more.
    """

    started: float = 0.0
    engines: dict[str, EngineFigures] = {}
    http_requests: dict[tuple[str, str, int], int] = {}
    errors: dict[str, int] = {}
    folded: list[str] = []

    @classmethod
    def joined(cls, parts: Iterable[Snapshot]) -> Snapshot:
        """Add up one or more."""
        parts = list(parts)
        http_requests: Counter[tuple[str, str, int]] = Counter()
        errors: Counter[str] = Counter()
        engines: dict[str, list[EngineFigures]] = {}
        for part in parts:
            http_requests.update(part.http_requests)
            errors.update(part.errors)
            for model, figures in part.engines.items():
                engines.setdefault(model, []).append(figures)
        return cls(
            started=min(part.started for part in parts),
            engines={model: EngineFigures.joined(found) for model, found in engines.items()},
            http_requests=dict(http_requests),
            errors=dict(errors),
        )


class SnapshotFolder:
    """The files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Snapshot)

    def write(self, snapshot: Snapshot) -> None:
        """Replace this process's file; readers see the old one or the new one."""
        self._replace(self._name + SUFFIX, snapshot)

    def read_others(self) -> list[Snapshot]:
        """The other processes' figures, of dead ones too; what cannot be read is left out."""
        found: list[Snapshot] = []
        for _ in range(MAX_LOOKS):
            before = self._folded_mark()
            found = self._read_all()
            if self._folded_mark() == before:  # else a file may be missing, or count twice
                break
        return found

    def fold_dead(self) -> None:
        """Fold the files of processes that are no more into one; for the start of a process.

        It may be interrupted anywhere: the new sum names the files that are in it in the same
        write, and from then on these count no more, deleted or not.
        """
        lock = self._lock()
        if lock is not None:  # else another process folds
            with lock:
                self._fold()

    def settle(self, own: Snapshot) -> dict[str, int]:
        """Make one sum of what engines counted in old epochs, with this process's newest figures.

        Returns each engine's last epoch of such a sum: of the older ones, nobody need tell more.
        """
        lock = self._lock()
        if lock is None:  # another process folds
            return {}
        with lock:
            old = self._read(FOLDED)
            if old is None and (self._path / FOLDED).exists():
                return {}  # it cannot be read now, so it must not be replaced
            new = old or Snapshot(started=own.started)
            for model, whole in Snapshot.joined([*self._read_all(), own]).engines.items():
                whole.settle()
                past = new.engines.setdefault(model, EngineFigures(requests=RequestFigures()))
                past.settled, past.stats = whole.settled, whole.stats
            done = self._replace(FOLDED, new)
        return {model: past.settled for model, past in new.engines.items()} if done else {}

    def _fold(self) -> None:
        old = self._read(FOLDED)
        if old is None and (self._path / FOLDED).exists():
            return  # it cannot be read now, so it must not be replaced
        done = {name for name in old.folded if self._file(name).exists()} if old else set()
        dead = {path.stem for path in self._files() if _is_dead(path.stem)} - done
        parts = {name: part for name in dead if (part := self._read(name + SUFFIX))}
        broken = {name for name in dead - set(parts) if self._is_damaged(name)}
        if parts:
            whole = Snapshot.joined([*([old] if old else []), *parts.values()])
            whole.folded = sorted(done | set(parts))
            if not self._replace(FOLDED, whole):
                return
        drafts = [path for path in self._path.glob("*.draft") if _is_dead(path.stem)]
        for path in (*map(self._file, done | set(parts) | broken), *drafts):
            path.unlink(missing_ok=True)

    def _read_all(self) -> list[Snapshot]:
        folded = self._read(FOLDED)
        gone = set(folded.folded) if folded else set()
        names = sorted(path.name for path in self._files() if path.stem not in gone)
        others = [self._read(name) for name in names if name != self._name + SUFFIX]
        return [snapshot for snapshot in (folded, *others) if snapshot is not None]

    def _files(self) -> list[Path]:
        return [path for path in self._path.glob(f"*{SUFFIX}") if path.name != FOLDED]

    def _file(self, name: str) -> Path:
        return self._path / (name + SUFFIX)

    def _folded_mark(self) -> tuple[int, int] | None:
        """Changes with each fold."""
        try:
            found = (self._path / FOLDED).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _lock(self) -> IO[bytes] | None:
        """The right to fold, until it is closed or its process is dead; None if it is taken."""
        try:
            lock = (self._path / "folding.lock").open("wb")
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        return lock

    def _replace(self, name: str, snapshot: Snapshot) -> bool:
        draft = self._path / f"{self._name}.draft"
        try:
            draft.write_bytes(self._encoder.encode(snapshot))
            draft.replace(self._path / name)
        except OSError as error:  # a full disk costs figures, not requests
            logger.warning("metrics could not be written: %s", error.strerror)
            return False
        return True

    def _is_damaged(self, name: str) -> bool:
        """Whether the file is there, can be read, and says nothing: nobody will mend it."""
        try:
            self._decoder.decode(self._file(name).read_bytes())
        except OSError:
            return False
        except msgspec.DecodeError:
            return True
        return False

    def _read(self, name: str) -> Snapshot | None:
        try:
            return self._decoder.decode((self._path / name).read_bytes())
        except FileNotFoundError:  # nothing is folded yet, or this is folded by now
            return None
        except (OSError, msgspec.DecodeError) as error:  # the other figures are still good
            logger.warning("figures of another process could not be read: %s", error)
            return None


def summed(epochs: Iterable[EngineStats]) -> EngineStats:
    """An engine's counters over several epochs; what is no counter is as by default."""
    whole, misses = EngineStats(), Counter[str]()
    tokens, seconds = Histogram(STEP_TOKEN_BOUNDS), Histogram(STEP_SECONDS_BOUNDS)
    for stats in epochs:
        for name in COUNTERS:
            setattr(whole, name, getattr(whole, name) + getattr(stats, name))
        misses.update(stats.prefix_cache_misses)
        tokens.add(stats.step_tokens)
        seconds.add(stats.step_seconds)
    whole.prefix_cache_misses = dict(misses)
    whole.step_tokens, whole.step_seconds = tokens.data(), seconds.data()
    return whole


def _is_dead(name: str) -> bool:
    """Whether the process of this file is certainly no more."""
    pid = name.partition("-")[0]
    return pid.isdigit() and not is_alive(int(pid))
