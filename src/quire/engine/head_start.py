"""What the start of an engine can do while Python imports torch; itself it needs none.

The GPU's driver is woken, and the system is asked to read the weights' files ahead; nobody waits
for either. Both would happen anyway, later and one after the other.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path

from quire.config import EngineConfig


def give_head_start(config: EngineConfig) -> None:
    """Begin both in threads; whatever fails there is told by those who need it."""
    if config.device.device != "cpu":
        threading.Thread(target=_wake_driver, name="quire-driver", daemon=True).start()
    folder = Path(config.model.model)
    if config.model.load_format == "auto" and folder.is_dir():
        reading = threading.Thread(target=read_ahead, args=(folder,), name="quire-read-ahead")
        reading.daemon = True
        reading.start()


def _wake_driver() -> None:
    """Make the first GPU's primary context, which torch will use: a few tenths of a second."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return  # there is no GPU
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def read_ahead(folder: Path) -> int:
    """Ask the system for the weights' files; returns how many there are."""
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # the loader will say so
        try:
            if sys.platform != "darwin":  # which has no such call
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(file)
    return len(files)
