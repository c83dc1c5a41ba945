"""Work in threads while Python imports modules: an engine's start needs its results later.

The GPU's driver and Triton are initialised, and the system is asked to read the weights' files
ahead. No torch.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

from quire.config import EngineConfig
from quire.engine.startup.device_policy import may_use_gpu, torch_reason
from quire.engine.startup.gpu_driver import gpu_driver, retain_primary_context
from quire.errors import CheckpointError
from quire.hub import BUNDLED, resolve_model
from quire.models.checkpoints.large_pages import read_in_large_pages
from quire.models.prepared.prepared_files import newest_file, step_bytes
from quire.processes import try_start

_TRITON = "quire-triton"  # the thread's name


def start_prefetch(config: EngineConfig) -> None:
    """Start the threads. What fails in one is reported by the code that needs it later."""
    if may_use_gpu(config) and gpu_driver() is not None:
        try_start(retain_primary_context, "quire-driver")
        try_start(_initialise_triton, _TRITON)
    if config.model.load_format == "auto" and _local_folder(config) is not None:
        try_start(partial(read_ahead, config), "quire-read-ahead")


def _initialise_triton() -> None:
    """Do what the first launch of a Triton kernel would otherwise wait for.

    Triton compiles a module in C that talks to the driver, once on a machine, and hashes its own
    0.4 GB for the names of compiled kernels on disk.
    """
    with suppress(Exception):  # there is none, or one that does it in another way
        from triton.backends.nvidia.driver import CudaUtils
        from triton.runtime.cache import triton_key

        CudaUtils()
        triton_key()


def wait_for_triton() -> None:
    """Wait for its thread: if anyone else loaded that module meanwhile, its types would be two."""
    for thread in threading.enumerate():
        if thread.name == _TRITON:
            thread.join()


def read_ahead(config: EngineConfig) -> list[Path]:
    """Ask the system to read the weights' files; returns those that could be opened."""
    found = []
    for path in files_to_read(config):
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # the loader will say so
        found.append(path)
        try:
            if sys.platform != "darwin":  # which has no such call
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
            read_in_large_pages(file, step_bytes(path))
        finally:
            os.close(file)
    return found


def files_to_read(config: EngineConfig) -> list[Path]:
    """The prepared weights that a start on a CPU will map, or the checkpoint's files."""
    folder = _local_folder(config)
    if folder is None:
        return []
    prepared = None if may_use_gpu(config) else newest_file(config.model, folder)
    if prepared is not None:
        return [prepared]
    return sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".gguf"))


def expects_torch(config: EngineConfig) -> bool:
    """Whether a start most likely needs PyTorch; only load_prepared (compiled_start.py) knows."""
    if may_use_gpu(config) or torch_reason(config) is not None:
        return True
    folder = _local_folder(config)
    return folder is not None and newest_file(config.model, folder) is None


def _local_folder(config: EngineConfig) -> Path | None:
    """The model's folder, if it can be known without asking the hub."""
    name = config.model.model
    if name not in BUNDLED and not Path(name).exists():
        return None
    try:
        return resolve_model(name)
    except CheckpointError:
        return None  # who loads it will say so
