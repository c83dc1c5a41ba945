"""Calls of the NVIDIA driver that a start makes without PyTorch. No torch."""

from __future__ import annotations

import ctypes
import functools

_CAPABILITY_ATTRIBUTES = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@functools.cache
def gpu_driver() -> ctypes.CDLL | None:
    """The driver's library, not initialised; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def driver_capability() -> tuple[int, int] | None:
    """Compute capability of the first visible GPU by its driver alone; None if that cannot tell."""
    driver, device = gpu_driver(), _first_device()
    if driver is None or device is None:
        return None
    values = (ctypes.c_int(), ctypes.c_int())
    for value, attribute in zip(values, _CAPABILITY_ATTRIBUTES, strict=True):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
            return None
    return values[0].value, values[1].value


def retain_primary_context() -> None:
    """Make the first GPU's primary context, which torch will use: a few tenths of a second."""
    driver, device = gpu_driver(), _first_device()
    if driver is not None and device is not None:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), device)


def _first_device() -> ctypes.c_int | None:
    """The first visible GPU; initialises the driver."""
    driver, device = gpu_driver(), ctypes.c_int()
    if driver is None or driver.cuInit(0) != 0:
        return None
    return device if driver.cuDeviceGet(ctypes.byref(device), 0) == 0 else None
