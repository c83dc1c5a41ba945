"""Tables of what steps cost, on disk: a second start tries one step, later ones of a day none.

Owns the file, which of its tables belongs to which model, settings and machine, and how many stay.
It lies with the prepared weights. What is wrong with it costs a measurement and no start.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from quire.config import ModelSettings
from quire.engine.startup.step_tuning import StepTable
from quire.kernels.cpu import native
from quire.models.config.model_config import ModelConfig
from quire.models.prepared.prepared_files import prepared_folder
from quire.version import __version__

logger = logging.getLogger(__name__)

LAYOUT = 1  # to be raised when steps are timed in another way
BELIEVED_SECONDS = 86400  # behind a start that tried a table and agreed; then it is tried again
MOST_TABLES = 64  # of a file; the ones made first leave
_NAME = "steps.json"

Tables = dict[str, StepTable]
Measure = Callable[[StepTable | None], StepTable]


def steps_of(
    config: ModelSettings,
    model_config: ModelConfig,
    numbers: tuple[str, str, int],
    candidates: Sequence[int],
    measure: Measure,
    plainly: tuple[object, ...] = (),
) -> StepTable:
    """The table that `measure` gives for the kept one, or for None; kept, too, if it is quicker.

    One that a start tried within the last day, and that held, is taken as it is.

    numbers: the model's data type, the KV cache's, and tokens of a block.
    candidates: numbers of threads that are chosen from. plainly: what runs steps where compiled
    code alone does not.
    """
    folder = prepared_folder(config)
    if folder is None:
        return measure(None)
    dtype, kv_type, block_size = numbers
    key = (
        __version__, LAYOUT, _processor(), native.identity(), plainly, model_config,
        config.quantization, dtype, kv_type, block_size, list(candidates),
    )  # fmt: skip
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    file = folder / _NAME
    kept = _read(file).get(name)
    if kept is not None and not _is_whole(kept, candidates):
        kept = None
    if kept is not None and 0.0 <= time.time() - kept.agreed_at < BELIEVED_SECONDS:
        return kept
    table = measure(kept)
    if table is kept:
        _write(file, name, dataclasses.replace(kept, agreed_at=time.time()), logging.DEBUG)
    elif kept is None or table.decodes[1] < kept.decodes[1]:
        _write(file, name, table)
    return table


def _is_whole(table: StepTable, candidates: Sequence[int]) -> bool:
    """Whether nothing speaks against a kept table: fewer threads than there could be may have been
    the choice of a busy moment, without prompts it was measured on a slow one, and a file can have
    been changed."""
    steps = (table.decodes, table.prompts)
    return (
        table.num_threads == candidates[0]
        and 1 in table.decodes
        and bool(table.prompts)
        and all(size > 0 and seconds > 0 for each in steps for size, seconds in each.items())
    )


def _processor() -> str:
    """Its name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")


def _read(file: Path) -> Tables:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Tables)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s is of no use (%s); steps are measured again", file, error)
        return {}


def _write(file: Path, name: str, table: StepTable, level: int = logging.WARNING) -> None:
    """Under a name of its own first. Of two starts at a time one may win; the other measures.

    level: of the log's line where it cannot be kept.
    """
    tables = _read(file)
    tables.pop(name, None)
    newest = [*list(tables.items())[-(MOST_TABLES - 1) :], (name, table)]
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=file.parent, suffix=".tmp", delete=False
        ) as unfinished:
            unfinished.write(msgspec.json.encode(dict(newest)))
        Path(unfinished.name).replace(file)
    except OSError as error:
        text = "what steps cost cannot be kept in %s (%s)"
        logger.log(level, text, file.parent, error.strerror)
