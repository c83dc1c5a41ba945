"""Measured times of steps on disk, so that starts within a day of uptime measure once.

Owns the file, and which table belongs to which model, settings and machine. It lies beside prepared
weights. A file that cannot be read or written costs a measurement, and fails no start.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from quire.config import ModelSettings
from quire.engine.startup.step_tuning import StepTable
from quire.kernels.cpu import native
from quire.models.config.model_config import ModelConfig
from quire.models.prepared.prepared_files import prepared_folder, unfinished_name
from quire.version import __version__

logger = logging.getLogger(__name__)

LAYOUT = 2  # to be raised when steps are timed in another way
VALID_SECONDS = 86400
_NAME = "steps.json"


class _Entry(msgspec.Struct):
    """A table, and when it was measured: in seconds since which start of the machine."""

    measured_at: float
    table: StepTable
    boot: str = ""

    @property
    def is_valid(self) -> bool:
        return self.boot == _boot() and 0.0 <= _uptime() - self.measured_at < VALID_SECONDS


def steps_of(
    config: ModelSettings,
    model_config: ModelConfig,
    numbers: tuple[str, str, int],
    candidates: Sequence[int],
    measure: Callable[[], StepTable],
    runtime: tuple[object, ...] = (),
) -> StepTable:
    """The table that was measured within the last day, or what `measure` returns, which is stored.

    numbers: the model's data type, the KV cache's, and tokens of a block. candidates: numbers of
    threads to choose from. runtime: identifies what runs steps other than the compiled kernels.
    """
    folder = prepared_folder(config)
    if folder is None:
        return measure()
    key = (
        __version__, LAYOUT, _processor(), native.identity(), runtime, model_config,
        config.quantization, config.quantization_overrides, *numbers, list(candidates),
    )  # fmt: skip
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    file = folder / _NAME
    entry = _read(file).get(name)
    if entry is not None and entry.is_valid and _is_plausible(entry.table, candidates):
        return entry.table
    table = measure()
    _write(file, name, table)
    return table


def _is_plausible(table: StepTable, candidates: Sequence[int]) -> bool:
    """Whether a stored table of step times can be used.

    Not one with fewer threads than the default, which may have been the choice of a busy moment;
    not one without prompts, measured in a slow moment; nor one that somebody has edited.
    """
    steps = (table.decodes, table.prompts)
    return (
        table.num_threads == candidates[0]
        and 1 in table.decodes
        and bool(table.prompts)
        and all(size > 0 and seconds > 0 for each in steps for size, seconds in each.items())
    )


def _processor() -> str:
    """The processor's name, where the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")


def _uptime() -> float:
    """Seconds since the machine has started, asleep or not: nobody sets this clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former Linux has
    return time.clock_gettime(clock)


def _boot() -> str:
    """An id of the machine's start, where the system has one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _read(file: Path) -> dict[str, _Entry]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, _Entry])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s cannot be used (%s); steps are measured again", file, error)
        return {}


def _write(file: Path, name: str, table: StepTable) -> None:
    """Replace the file by one with this table and the valid ones.

    Of two starts that write at a time one may lose its table, and measures again next time.
    """
    from quire.models.prepared.unfinished_file import unfinished_file  # a warm start writes nothing

    entries = {key: entry for key, entry in _read(file).items() if entry.is_valid}
    entries[name] = _Entry(_uptime(), table, _boot())
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with unfinished_file(unfinished_name(file)) as draft:
            draft.write_bytes(msgspec.json.encode(entries))
            draft.replace(file)
    except OSError as error:
        text = "measured steps cannot be stored in %s (%s)"
        logger.warning(text, file.parent, error.strerror)
