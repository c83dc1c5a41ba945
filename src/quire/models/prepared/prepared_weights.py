"""Weights as layers store them, packed and quantized, on disk: a second start only maps them.

Owns the making of such a file, and of a model from one; prepared_files.py has their names and
number, prepared_reader.py what is checked. It is a safetensors file like any other. The format of
each linear layer's weight is in its metadata.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from quire.array_types import Array
from quire.config import ModelSettings
from quire.kernels.cpu import native
from quire.kernels.cpu.torch_matmul import is_emulated
from quire.kernels.dispatch import describe
from quire.kernels.torch_dtypes import dtype_name
from quire.last_use import NO_HOME
from quire.layers.embedding import VocabParallelEmbedding
from quire.layers.linear_layers import LinearBase
from quire.layers.rope import RotaryEmbedding
from quire.models.config.model_config import ModelConfig
from quire.models.prepared.prepared_files import (
    FORMATS,
    free_space,
    note_use,
    origin_of,
    prepared_file,
    prepared_folder,
    unfinished_name,
)
from quire.models.prepared.prepared_reader import (
    CHECK,
    Formats,
    StoredArrays,
    bytes_of,
    checks_of,
    discard,
    open_prepared,
)
from quire.models.prepared.safetensors_writer import bring_to_disk, stored_dtype, write_tensors
from quire.models.prepared.unfinished_file import unfinished_file
from quire.processes import interrupted, try_start
from quire.quantization.stored_weight import describe as describe_weight

logger = logging.getLogger(__name__)

WORTH_BYTES = 3 << 20  # less than quire-tiny in 4 bits; what is smaller is prepared in no time
LIMIT_BYTES = 64 << 30  # of all files; the least recently used ones are removed
PATIENCE = 10.0  # seconds that an ending process waits at most; a gigabyte takes 0.15 to 3

Model = TypeVar("Model", bound=nn.Module)


def prepared_weights(
    config: ModelSettings, model_config: ModelConfig, path: Path, dtype: torch.dtype
) -> PreparedWeights | None:
    """The prepared weights of a checkpoint for a CPU; None if the settings turn them off."""
    without_kernels: tuple[object, ...] = ()
    if native.library() is None:
        without_kernels = (
            describe("cpu"),
            torch.backends.cpu.get_cpu_capability(),
            is_emulated(dtype),
        )
    name = dtype_name(dtype)
    file = prepared_file(config, model_config, path, name, without_kernels)
    if config.prepared_weights == "auto" and prepared_folder(config) is None:
        logger.warning("prepared weights are not stored: %s", NO_HOME)
    return None if file is None else PreparedWeights(file, origin_of(config, path, name))


class PreparedWeights:
    """One file of prepared weights, whether it exists or not. origin: see `origin_of`."""

    def __init__(self, file: Path, origin: Mapping[str, str] | None = None) -> None:
        self.file = file
        self._origin = origin or {}

    def restore(self, build: Callable[[], Model]) -> Model | None:
        """A model with the weights of the file; None if there is none that can be used.

        build: makes the model without its weights.
        """
        found = open_prepared(self.file)
        if found is None:
            return None
        try:
            model = build()
            _load_processed(model, found.tensors(), found.formats)
        except LookupError as error:
            discard(self.file, error)
            return None
        logger.info("weights mapped from %s", self.file)
        return model

    def save_beside(self, model: nn.Module) -> threading.Thread | None:
        """Write the prepared file in a thread, if it is worth writing."""
        tensors = stored_tensors(model)
        if sum(tensor.nbytes for tensor in tensors.values()) < WORTH_BYTES:
            return None
        ending = _ProcessEnd()
        work = partial(self._save, tensors, formats_of(model), _tables(model), ending)
        if (thread := try_start(work, "quire-prepared")) is None:
            logger.warning("prepared weights are not stored: no thread could be started")
            return None
        atexit.register(ending.wait_for, thread)
        return thread

    def _save(
        self, tensors: dict[str, Tensor], formats: Formats, tables: set[str], ending: _ProcessEnd
    ) -> None:
        """Write the file under a temporary name first, so that no reader sees half of it.

        A process that ends leaves it to the system to bring the file to its disk.
        """
        folder, num_bytes = self.file.parent, sum(tensor.nbytes for tensor in tensors.values())
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free_space(folder, LIMIT_BYTES - num_bytes)
            if shutil.disk_usage(folder).free < 2 * num_bytes:
                logger.info("prepared weights are not stored: %s is nearly full", folder)
                return
            metadata = {FORMATS: json.dumps(formats), **self._origin}
            parts = {name: bytes_of(array) for name, array in arrays_of(tensors).items()}
            kinds = {name: (stored_dtype(t), t.shape) for name, t in tensors.items()}
            checks = checks_of(parts, kinds, metadata[FORMATS])
            everything = tensors | {CHECK: torch.tensor(checks)}
            with unfinished_file(unfinished_name(self.file)) as path:
                if not write_tensors(path, everything, tables, ending.stops, metadata):
                    return
                bring_to_disk(path, ending.has_started)
                path.replace(self.file)
            note_use(self.file)
            text = "%.2f GiB of prepared weights stored in %s (`quire cache` lists them)"
            logger.info(text, num_bytes / 2**30, self.file)
        except OSError as error:
            logger.warning("prepared weights cannot be stored in %s (%s)", folder, error.strerror)


class _ProcessEnd:
    """Decides, when the process ends, whether a file being written is finished or given up."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._latest = math.inf

    def has_started(self) -> bool:
        """Whether the process is about to end."""
        return self._latest < math.inf

    def stops(self, share: float) -> bool:
        """Whether a file of which that share is written will not be finished in time."""
        now = time.monotonic()
        rest = (now - self._begin) * (1 / share - 1) if share else 0
        return now + rest > self._latest

    def wait_for(self, thread: threading.Thread) -> None:
        """Wait for the writing thread at the interpreter's end, when a running one would crash.

        After Ctrl-C it waits for no more than a piece of the file.
        """
        self._latest = -math.inf if interrupted.is_set() else time.monotonic() + PATIENCE
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                self._latest = -math.inf


def stored_arrays(model: nn.Module) -> StoredArrays:
    """A loaded model's weights as a prepared file has them; no copies of contiguous tensors."""
    return StoredArrays(arrays_of(stored_tensors(model)), formats_of(model))


def formats_of(model: nn.Module) -> Formats:
    """The weight format of each linear layer, by module name."""
    return {
        name: describe_weight(module.method.operand)
        for name, module in model.named_modules()
        if isinstance(module, LinearBase)
    }


def arrays_of(tensors: dict[str, Tensor]) -> dict[str, Array]:
    """Tensors as `PreparedFile` has them; views of those that lie as one piece of memory."""
    bits = {1: torch.uint8, 2: torch.uint16, 4: torch.int32, 8: torch.int64}
    known = (torch.uint8, torch.int8, torch.float16, torch.float32, torch.float64)
    found = ((name, tensor.detach().contiguous()) for name, tensor in tensors.items())
    return {
        name: (tensor if tensor.dtype in known else tensor.view(bits[tensor.itemsize])).numpy()
        for name, tensor in found
    }


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a loaded model holds, by name."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            found |= {f"{name}.{own}": buffer for own, buffer in module.named_buffers()}
        elif isinstance(module, RotaryEmbedding):  # what serves without PyTorch reads them
            found[f"{name}.inv_freq"] = module.inv_freq
    return found


def _tables(model: nn.Module) -> set[str]:
    """The tensors that no linear layer reads: they serve look-ups, or are read once."""
    names = {VocabParallelEmbedding: "weight", RotaryEmbedding: "inv_freq"}
    return {
        f"{name}.{names[type(module)]}"
        for name, module in model.named_modules()
        if type(module) in names
    }


def _load_processed(model: nn.Module, tensors: dict[str, Tensor], formats: Formats) -> None:
    """Give each module its own. Raises LookupError where one is missing, left over or different."""
    given = defaultdict[str, dict[str, Tensor]](dict)  # by module: experts have ten thousands
    for name, tensor in tensors.items():
        module_name, _, leaf = name.rpartition(".")
        given[module_name][leaf] = tensor
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if isinstance(module, LinearBase):
            module.load_processed(given.pop(name), formats[name])
    for name, module in modules.items():  # an embedding may have got a weight from its head
        if isinstance(module, LinearBase):
            continue
        if isinstance(module, RotaryEmbedding):
            module.inv_freq = given[name].pop("inv_freq")
        for leaf, param in module.named_parameters(recurse=False):
            tensor = given[name].pop(leaf)
            if (tensor.shape, tensor.dtype) != (param.shape, param.dtype):
                raise LookupError(f"{name}.{leaf} has another shape or data type")
            param.data = tensor
    left_over = [f"{name}.{leaf}" for name, own in given.items() for leaf in own]
    if left_over:
        raise LookupError(f"nothing takes {left_over[0]}")
