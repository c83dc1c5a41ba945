"""What is taken where the settings leave it open: the device, data types, operations.

The same for an engine (start_engine.py) and for a profile of its step (step_profile.py).
"""

from __future__ import annotations

import torch

from quire.config import EngineConfig
from quire.engine.startup.footprint import SMALL_MODEL_BYTES
from quire.errors import ConfigError
from quire.kernels.cpu.torch_matmul import is_emulated
from quire.kernels.dispatch import Kernels, has_triton, kernels_for
from quire.kvcache.kv_storage import kv_dtype
from quire.models.config.model_config import ModelConfig
from quire.models.loading.loader import resolve_dtype


def choose_device(config: EngineConfig) -> torch.device:
    """As asked; "auto" takes a GPU if there is one. Raises ConfigError."""
    wanted = config.device.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', but torch sees no GPU; give device='cpu'")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def choose_dtype(
    config: EngineConfig, model_config: ModelConfig, device: torch.device
) -> torch.dtype:
    """As asked; "auto" avoids emulated 16-bit products where the memory is of no concern."""
    dtype = resolve_dtype(config.model.dtype, model_config)
    emulated = device.type == "cpu" and is_emulated(dtype)
    is_small = model_config.num_parameters * torch.float32.itemsize <= SMALL_MODEL_BYTES
    if config.model.dtype == "auto" and emulated and is_small:
        return torch.float32
    return dtype


def choose_kv_type(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """As asked. Raises ConfigError where the device cannot convert it."""
    found = kv_dtype(config.cache.kv_cache_dtype, dtype)
    if found == torch.float8_e4m3fn and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < (8, 9):
            raise ConfigError(
                f"kv_cache_dtype is {config.cache.kv_cache_dtype!r}, which takes a GPU of compute "
                f"capability 8.9 or later, but this one has {major}.{minor}; leave it out"
            )
    return found


def asked_kernels(config: EngineConfig, device: torch.device) -> Kernels | None:
    """The operations that the settings ask for, or None for the device's usual ones."""
    if not config.device.batch_invariant:
        return None
    if not has_triton():
        raise ConfigError("batch_invariant needs Triton; pip install triton, or leave it out")
    return kernels_for(device.type, batch_invariant=True)
