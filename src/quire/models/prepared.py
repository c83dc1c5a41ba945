"""Weights in the form that layers keep, on disk: a second start maps them and does no work again.

Owns the making of such a file, and what speaks against using one; prepared_files.py has their names
and number. The file is a safetensors file like any other, read by the same checks.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from quire.config import ModelConfig
from quire.errors import CheckpointError
from quire.kernels.cpu.matmul import is_emulated
from quire.kernels.dispatch import describe
from quire.layers.embedding import VocabParallelEmbedding
from quire.layers.parameter import LoadedModule
from quire.models.checkpoint import read_header
from quire.models.mapped import MappedFile
from quire.models.prepared_files import (
    checkpoint_key,
    digest_of,
    file_name,
    make_room,
    prepared_folder,
    product_bytes,
    unfinished_name,
)
from quire.models.writing import bring_to_disk, write_tensors
from quire.processes import interrupted

logger = logging.getLogger(__name__)

LAYOUT = 4  # to be raised when the packed form of any layer changes, or its rounding
WORTH_BYTES = 64 << 20  # what is smaller is prepared in no time
LIMIT_BYTES = 64 << 30  # of all files; the ones not used for longest leave
PATIENCE = 10.0  # seconds that an ending process takes at most; a gigabyte takes 0.15 to 3
_CHECK = "check"  # a tensor of its own
_CHECKED = 256  # bytes at each place

Model = TypeVar("Model", bound=nn.Module)


def prepared_weights(config: ModelConfig, path: Path, dtype: torch.dtype) -> PreparedWeights | None:
    """Where the weights of a checkpoint's folder are kept for a CPU; None by the settings."""
    folder = prepared_folder(config)
    if folder is None or config.load_format != "auto":
        return None
    form = (
        LAYOUT, str(dtype), describe("cpu"), torch.backends.cpu.get_cpu_capability(),
        is_emulated(dtype),
    )  # fmt: skip
    return PreparedWeights(folder / file_name(checkpoint_key(config, path), digest_of(form)))


class PreparedWeights:
    """One file, there or not."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def restore(self, build: Callable[[], Model]) -> Model | None:
        """A model with the weights of the file; None if there is none that can be used.

        build: makes the model without its weights.
        """
        if not self.file.exists():
            return None
        try:
            entries = read_header(self.file)
            mapped = MappedFile(self.file, product_bytes(self.file))
            tensors = {entry.name: mapped.tensor(entry) for entry in entries}
            if tensors.pop(_CHECK).item() != check_of(tensors):
                raise LookupError("its numbers are not those that were written")
            model = build()
            _adopt(model, tensors)
            os.utime(self.file)
        except (CheckpointError, OSError, LookupError) as error:
            logger.warning("%s is of no use (%s); it will be made again", self.file, error)
            return None
        logger.info("weights mapped from %s", self.file)
        return model

    def save_beside(self, model: nn.Module) -> threading.Thread | None:
        """Write the file in a thread, if that is worth it."""
        tensors = _kept(model)
        num_bytes = sum(tensor.nbytes for tensor in tensors.values() if not tensor.is_mkldnn)
        if num_bytes < WORTH_BYTES or any(tensor.is_mkldnn for tensor in tensors.values()):
            return None  # oneDNN's form cannot be written
        ending = _Ending()
        thread = threading.Thread(
            target=self._save, args=(tensors, _tables(model), ending), name="quire-prepared"
        )
        thread.daemon = True
        thread.start()
        atexit.register(ending.wait_for, thread)
        return thread

    def _save(self, tensors: dict[str, Tensor], tables: set[str], ending: _Ending) -> None:
        """Under a name of its own first, so that nobody ever sees half a file.

        A process that ends leaves it to the system to bring the file to its disk.
        """
        folder, num_bytes = self.file.parent, sum(tensor.nbytes for tensor in tensors.values())
        unfinished = unfinished_name(self.file)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_room(folder, LIMIT_BYTES - num_bytes)
            if shutil.disk_usage(folder).free < 2 * num_bytes:
                logger.info("prepared weights are not kept: %s is nearly full", folder)
                return
            whole = tensors | {_CHECK: torch.tensor([check_of(tensors)])}
            if write_tensors(unfinished, whole, tables, ending.stops):
                bring_to_disk(unfinished, ending.has_begun)
                unfinished.replace(self.file)
            else:
                unfinished.unlink()
        except OSError as error:
            logger.warning("prepared weights cannot be kept in %s (%s)", folder, error.strerror)
            with contextlib.suppress(OSError):
                unfinished.unlink()


class _Ending:
    """Of the process: a file that is being written is then made whole, or given up at once."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._latest = math.inf

    def has_begun(self) -> bool:
        """Whether nothing is to be waited for but the writing itself."""
        return self._latest < math.inf

    def stops(self, share: float) -> bool:
        """Whether a file of which that share is written will not be whole in time, at its pace."""
        now = time.monotonic()
        rest = (now - self._begin) * (1 / share - 1) if share else 0
        return now + rest > self._latest

    def wait_for(self, thread: threading.Thread) -> None:
        """At the interpreter's end, which a thread at work would make a crash.

        Who has pressed Ctrl-C waits for no more than a piece of the file.
        """
        self._latest = -math.inf if interrupted.is_set() else time.monotonic() + PATIENCE
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                self._latest = -math.inf


def check_of(tensors: dict[str, Tensor]) -> int:
    """A checksum of some bytes of each tensor, of its beginning, middle and end.

    Blocks of a file that a disk lost are found with it; reading all would double a start.
    """
    check = 0
    for name in sorted(tensors):
        data = tensors[name].detach().contiguous().view(-1).view(torch.uint8).numpy()
        for begin in (0, len(data) // 2, max(0, len(data) - _CHECKED)):
            check = zlib.crc32(data[begin : begin + _CHECKED].tobytes(), check)
    return check


def _kept(model: nn.Module) -> dict[str, Tensor]:
    """What a loaded model keeps of its checkpoint, by name."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, LoadedModule):
            found |= {f"{name}.{own}": buffer for own, buffer in module.named_buffers()}
    return found


def _tables(model: nn.Module) -> set[str]:
    """Which of them serve look-ups."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, VocabParallelEmbedding)
    }


def _adopt(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give each module its own. Raises LookupError where one is missing, left over or different."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if isinstance(module, LoadedModule):
            own = [key for key in tensors if key.rpartition(".")[0] == name]
            module.adopt({key.rpartition(".")[2]: tensors.pop(key) for key in own})
    for name, module in modules.items():  # an embedding may have got a weight from its head
        if isinstance(module, LoadedModule):
            continue
        for own_name, param in module.named_parameters(recurse=False):
            tensor = tensors.pop(f"{name}.{own_name}")
            if (tensor.shape, tensor.dtype) != (param.shape, param.dtype):
                raise LookupError(f"{name}.{own_name} has another shape or data type")
            param.data = tensor
    if tensors:
        raise LookupError(f"nothing takes {next(iter(tensors))}")
