"""Which failures leave the device of no use to this process. Imports no torch."""

from __future__ import annotations


def is_device_lost(error: Exception) -> bool:
    """Whether each later step will fail, too: after such an error CUDA refuses all work.

    An illegal address, a failed assertion in a kernel, or a GPU that fell off the bus. Memory that
    ran out is none of them.
    """
    if type(error).__name__ == "OutOfMemoryError":  # torch's, a RuntimeError
        return False
    is_cuda = type(error).__name__ == "AcceleratorError" or isinstance(error, RuntimeError)
    return is_cuda and "CUDA error" in str(error)
