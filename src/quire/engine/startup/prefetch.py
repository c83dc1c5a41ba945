"""What the start of an engine can do while Python imports torch; itself it needs none.

The GPU's driver and Triton are woken, and the system is asked to read the weights' files ahead. All
of that would happen anyway, later and one after the other.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from quire.config import EngineConfig
from quire.engine.startup.footprint import is_on_gpu
from quire.engine.startup.torch_library import is_for_gpus, torch_folder
from quire.hub import BUNDLED, resolve_model
from quire.models.checkpoints.large_pages import read_in_large_pages
from quire.models.prepared.prepared_files import newest_file, product_bytes

_TRITON = "quire-triton"  # the thread's name


def give_head_start(config: EngineConfig) -> None:
    """Begin it in threads; whatever fails there is told by those who need it."""
    for_gpus = config.device.device != "cpu" and is_for_gpus(torch_folder())
    if for_gpus and (driver := _driver()) is not None:
        threading.Thread(
            target=_wake_driver, args=(driver,), name="quire-driver", daemon=True
        ).start()
        threading.Thread(target=_wake_triton, name=_TRITON, daemon=True).start()
    folder = Path(config.model.model)
    if config.model.load_format == "auto" and folder.is_dir():
        threading.Thread(
            target=read_ahead, args=(config,), name="quire-read-ahead", daemon=True
        ).start()


def _driver() -> ctypes.CDLL | None:
    """The library of the GPU's driver, where there is one."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _wake_driver(driver: ctypes.CDLL) -> None:
    """Make the first GPU's primary context, which torch will use: a few tenths of a second."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _wake_triton() -> None:
    """Have Triton do what else the first launch would wait for.

    It compiles a module in C that talks to the driver, once on a machine, and hashes its own
    0.4 GB for the names of compiled kernels on disk.
    """
    with suppress(Exception):  # there is none, or one that does it in another way
        from triton.backends.nvidia.driver import CudaUtils
        from triton.runtime.cache import triton_key

        CudaUtils()
        triton_key()


def wait_for_triton() -> None:
    """Until it is awake, as nobody else may make that module meanwhile: its types would be two."""
    for thread in threading.enumerate():
        if thread.name == _TRITON:
            thread.join()


def read_ahead(config: EngineConfig) -> list[Path]:
    """Ask the system for the weights' files; returns those that could be opened."""
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
            read_in_large_pages(file, product_bytes(path))
        finally:
            os.close(file)
    return found


def files_to_read(config: EngineConfig) -> list[Path]:
    """The prepared weights that a start on a CPU will map, else those of the checkpoint."""
    folder = Path(config.model.model)
    prepared = None if is_on_gpu(config) else newest_file(config.model, folder)
    return sorted(folder.glob("*.safetensors")) if prepared is None else [prepared]


def expects_torch(config: EngineConfig) -> bool:
    """Whether a start most likely needs PyTorch, as far as can be told at once."""
    if is_on_gpu(config) or config.model.quantization == "fp8" or config.model.dtype == "float16":
        return True  # of which there are no compiled products
    name = config.model.model
    folder = resolve_model(name) if name in BUNDLED else Path(name)
    return folder.is_dir() and newest_file(config.model, folder) is None
