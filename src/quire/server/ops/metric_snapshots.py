"""Metric snapshots: the metrics of several API processes, shared as files in a private folder.

Each process writes its own file periodically and at its end; the process that serves /metrics reads
all of them. A file outlives its process, so counters never decrease. When a process starts, the
files of dead ones are folded into one file, which also has the sums over old epochs of engines.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from quire.core.histogram import STEP_SECONDS_BOUNDS, STEP_TOKEN_BOUNDS, Histogram
from quire.core.messages import EngineStats
from quire.engine.frontend.request_metrics import RequestFigures, RequestMetrics
from quire.processes import is_alive

logger = logging.getLogger(__name__)

# Not prometheus_client's multiprocess mode: an observation there takes 3.6 to 4.1 us (here 0.3 to
# 0.4 us, one per token), and it refuses collectors, which sums that come from an engine need.
SUFFIX = ".metrics"
FOLDED = "folded"  # the name of the sum of dead processes' files
MAX_READS = 8  # of files that another process folds meanwhile
MAX_EPOCHS = 16  # of an engine that are stored one by one; older ones are final

COUNTERS = (  # of EngineStats, that are plain numbers
    "num_steps", "num_graph_steps", "num_preemptions", "num_recomputed_tokens",
    "num_prompt_tokens", "num_generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
    "num_corrupted_requests", "num_bad_frames", "num_dropped_log_lines",
)  # fmt: skip


class EngineFigures(msgspec.Struct, kw_only=True):
    """One engine as one process knows it. stats: the latest statistics of each epoch.

    summed_epoch: the last epoch of those that are stored as one sum, under its number; snapshots
    of these epochs in other files no longer count. -1: none.
    """

    num_blocks: int = 0
    block_size: int = 0
    kv_cache_bytes: int = 0
    max_model_len: int = 0
    requests: RequestFigures
    stats: dict[int, EngineStats] = {}
    summed_epoch: int = -1

    @staticmethod
    def joined(parts: Sequence[EngineFigures]) -> EngineFigures:
        """One engine's sum over processes: all requests, and each epoch's newest statistics."""
        last = max(parts, key=lambda part: part.summed_epoch)
        old = {epoch: last.stats[epoch] for epoch in (last.summed_epoch,) if epoch >= 0}
        total = msgspec.structs.replace(parts[-1], stats=old, summed_epoch=last.summed_epoch)
        requests = RequestMetrics()
        for part in parts:
            requests.add(part.requests)
            for epoch, stats in part.stats.items():
                known = total.stats.get(epoch)
                if epoch > total.summed_epoch and (known is None or known.time < stats.time):
                    total.stats[epoch] = stats
        total.requests = requests.figures()
        return total

    def sum_old_epochs(self) -> None:
        """Replace all but the newest epochs by one sum."""
        if old := sorted(self.stats)[:-MAX_EPOCHS]:
            self.summed_epoch = old[-1]
            self.stats[self.summed_epoch] = summed(self.stats.pop(epoch) for epoch in old)


class Snapshot(msgspec.Struct, kw_only=True):
    """The metrics of one process, or of several.

    started: when the first one was, in monotonic seconds. engines: by model name. http_requests: by
    path, method and status. errors: by the code of the error body. dropped_log_lines: see
    `num_dropped_lines`. folded: names of the files that are included; such a file no longer counts.
    """

    started: float = 0.0
    engines: dict[str, EngineFigures] = {}
    http_requests: dict[tuple[str, str, int], int] = {}
    errors: dict[str, int] = {}
    dropped_log_lines: int = 0
    folded: list[str] = []

    @classmethod
    def joined(cls, parts: Iterable[Snapshot]) -> Snapshot:
        """The sum of one or more snapshots."""
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
            dropped_log_lines=sum(part.dropped_log_lines for part in parts),
        )


class SnapshotFolder:
    """The folder with the snapshot files of all API processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._failing = set[str]()  # files whose last access failed
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Snapshot)

    def write(self, snapshot: Snapshot) -> None:
        """Replace this process's file atomically."""
        self._replace(self._name, snapshot)

    def read_others(self) -> list[Snapshot]:
        """The snapshots of all other processes, also dead ones; unreadable files are skipped."""
        found: list[Snapshot] = []
        for _ in range(MAX_READS):
            before = self._folded_mark()
            found = self._read_all()
            if self._folded_mark() == before:  # else a file may be missing or count twice
                break
        return found

    def fold_dead(self) -> None:
        """Fold the files of dead processes into one; called when a process starts.

        It may be interrupted anywhere: the new sum is written together with the names of its
        files, which no longer count from then on, deleted or not.
        """
        with self._folding() as old:
            if old is not None:
                self._fold(old)

    def sum_epochs(self, own: Snapshot) -> dict[str, int]:
        """Write one sum of each engine's old epochs to the folded file.

        own: the newest snapshot of this process. Returns the last summed epoch by model: snapshots
        need not contain older ones.
        """
        with self._folding() as new:
            if new is None:
                return {}
            new.started = min(new.started, own.started)
            for model, total in Snapshot.joined([*self._read_all(), own]).engines.items():
                total.sum_old_epochs()
                past = new.engines.setdefault(model, EngineFigures(requests=RequestFigures()))
                past.summed_epoch, past.stats = total.summed_epoch, total.stats
            done = self._replace(FOLDED, new)
        return {model: past.summed_epoch for model, past in new.engines.items()} if done else {}

    def _fold(self, old: Snapshot) -> None:
        done = {name for name in old.folded if self._file(name).exists()}
        dead = {name for name in self._names() if _is_dead(name)} - done
        parts = {name: part for name in dead if (part := self._read(name))}
        broken = {name for name in dead - set(parts) if self._is_damaged(name)}
        if parts:
            total = Snapshot.joined([old, *parts.values()])
            total.folded = sorted(done | set(parts))
            if not self._replace(FOLDED, total):
                return
        drafts = [path for path in self._path.glob("*.draft") if _is_dead(path.stem)]
        for path in (*map(self._file, done | set(parts) | broken), *drafts):
            path.unlink(missing_ok=True)

    def _read_all(self) -> list[Snapshot]:
        folded = self._read(FOLDED)
        gone = set(folded.folded) if folded else set()
        others = [self._read(name) for name in sorted(self._names() - gone - {self._name})]
        return [snapshot for snapshot in (folded, *others) if snapshot is not None]

    def _names(self) -> set[str]:
        return {path.stem for path in self._path.glob(f"*{SUFFIX}")} - {FOLDED}

    def _file(self, name: str) -> Path:
        return self._path / (name + SUFFIX)

    def _folded_mark(self) -> tuple[int, int] | None:
        """A mark that changes whenever files of dead processes are summed into one."""
        try:
            found = self._file(FOLDED).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    @contextmanager
    def _folding(self) -> Iterator[Snapshot | None]:
        """The sum in the folded file, which nobody else replaces in this context.

        None while another process folds, and where the file cannot be read: it must stay then.
        """
        with ExitStack() as stack:
            old = None
            with suppress(OSError):
                lock = stack.enter_context((self._path / "folding.lock").open("wb"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until its process dies
                old = self._read(FOLDED)
                if old is None and not self._file(FOLDED).exists():
                    old = Snapshot(started=math.inf)
            yield old

    def _replace(self, name: str, snapshot: Snapshot) -> bool:
        draft = self._path / f"{self._name}.draft"
        try:
            draft.write_bytes(self._encoder.encode(snapshot))
            draft.replace(self._file(name))
        except OSError as error:  # a full disk costs metrics, not requests
            self._note_failure(draft.name, "metrics could not be written", error)
            return False
        self._failing.discard(draft.name)
        return True

    def _note_failure(self, name: str, text: str, error: Exception) -> None:
        """Log the first failure of a row: the next one comes half a second later."""
        if name not in self._failing:
            self._failing.add(name)
            logger.warning("%s: %s", text, getattr(error, "strerror", None) or error)

    def _is_damaged(self, name: str) -> bool:
        """Whether the file can be read but not decoded: it stays so."""
        try:
            self._decoder.decode(self._file(name).read_bytes())
        except OSError:
            return False
        except msgspec.DecodeError:
            return True
        return False

    def _read(self, name: str) -> Snapshot | None:
        try:
            snapshot = self._decoder.decode(self._file(name).read_bytes())
        except FileNotFoundError:  # nothing is folded yet, or this is folded by now
            return None
        except (OSError, msgspec.DecodeError) as error:  # the other snapshots are still valid
            self._note_failure(name, "metrics of another process could not be read", error)
            return None
        self._failing.discard(name)
        return snapshot


def summed(epochs: Iterable[EngineStats]) -> EngineStats:
    """An engine's counters summed over several epochs; other fields have their defaults."""
    total, misses = EngineStats(), Counter[str]()
    tokens, seconds = Histogram(STEP_TOKEN_BOUNDS), Histogram(STEP_SECONDS_BOUNDS)
    for stats in epochs:
        for name in COUNTERS:
            setattr(total, name, getattr(total, name) + getattr(stats, name))
        misses.update(stats.prefix_cache_misses)
        tokens.add(stats.step_tokens)
        seconds.add(stats.step_seconds)
    total.prefix_cache_misses = dict(misses)
    total.step_tokens, total.step_seconds = tokens.data(), seconds.data()
    return total


def _is_dead(name: str) -> bool:
    """Whether the process of this file is certainly dead."""
    pid = name.partition("-")[0]
    return pid.isdigit() and not is_alive(int(pid))
