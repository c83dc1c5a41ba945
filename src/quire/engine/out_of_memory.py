"""Where memory may run out: what is said then is which setting to change, never a bare traceback.

Importing this module does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from quire.errors import ConfigError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on the host."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


@contextmanager
def fitting(what: str, fix: str) -> Iterator[None]:
    """Turn a failed allocation at the start into a ConfigError: `what` does not fit; `fix`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(f"{what} does not fit in memory{_free_memory()}; {fix}") from None


def told_of_step(error: Exception) -> str | None:
    """What to say of a step that failed because memory ran out; None if that was not why."""
    if not is_out_of_memory(error):
        return None
    return (
        "the step that ran this request did not fit in memory; send it again, or start the engine "
        "with a lower max_num_batched_tokens, max_num_seqs or gpu_memory_utilization"
    )


def _free_memory() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    free, total = torch.cuda.mem_get_info()
    return f" ({free:,} of the GPU's {total:,} bytes are free)"
