"""Classification of failed steps: a lost device, no memory left, or an error of that step alone.

Imports no torch: its exceptions are recognised by name.
"""

from __future__ import annotations


def is_device_lost(error: Exception) -> bool:
    """Whether every later step of this process would fail as well.

    After an illegal address, a failed assertion in a kernel, or a GPU that fell off the bus, CUDA
    refuses all further work. Running out of memory is not such an error.
    """
    if _is_gpu_out_of_memory(error):
        return False
    is_cuda = type(error).__name__ == "AcceleratorError" or isinstance(error, RuntimeError)
    return is_cuda and "CUDA error" in str(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on the host."""
    if isinstance(error, MemoryError) or _is_gpu_out_of_memory(error):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def out_of_memory_message(error: Exception) -> str | None:
    """The error message for requests whose step ran out of memory; None for any other error."""
    if not is_out_of_memory(error):
        return None
    return (
        "the step that ran this request did not fit in memory; send it again, or restart the "
        f"engine: {smaller_step(on_gpu=_is_gpu_out_of_memory(error))}"
    )


def smaller_step(*, on_gpu: bool) -> str:
    """The fix for a step that is too large: the settings that decide how much memory it needs."""
    cache = "gpu_memory_utilization" if on_gpu else "kv_cache_memory_bytes"
    return f"lower max_num_batched_tokens, max_num_seqs or {cache}"


def _is_gpu_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError"  # torch.OutOfMemoryError, a RuntimeError
