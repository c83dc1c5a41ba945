"""The device and the data type of a model, and whether a start needs PyTorch.

Decided from the settings, the model's config, and what files, the processor and the GPU's driver
show, so that the memory plan, starts with and without PyTorch, and the profile agree. A start with
PyTorch may overrule the device alone (torch_start.py). No torch.
"""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from quire.config import EngineConfig
from quire.dtypes import DTYPES, FP8_CAPABILITY
from quire.engine.startup.gpu_driver import driver_capability
from quire.kernels.cpu import native
from quire.kernels.cpu.native_structs import ROW_DTYPES
from quire.kvcache.kv_sizes import kv_name
from quire.models.config.model_config import ModelConfig
from quire.options import require
from quire.quantization.scheme import scheme_of

DeviceType = Literal["cpu", "cuda"]

# Models of at most this size in float32 run in float32 on CPUs without 16-bit matrix products.
SMALL_MODEL_BYTES = 1 << 30

FP8 = "float8_e4m3fn"
_GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # of NVIDIA's driver; of Windows' (WSL)


def device_type(config: EngineConfig) -> DeviceType:
    """The device asked for; for "auto" a GPU if its driver has one, and PyTorch could use it."""
    wanted = config.device.device
    if wanted != "auto":
        return wanted
    return "cuda" if may_use_gpu(config) and driver_capability() is not None else "cpu"


def may_use_gpu(config: EngineConfig) -> bool:
    """Whether `device_type` may be a GPU, by files alone: the driver takes tenths of a second."""
    if (wanted := config.device.device) != "auto":
        return wanted == "cuda"
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    has_driver = not is_hidden and any(file.exists() for file in _GPU_FILES)
    return has_driver and not is_cpu_build(torch_library())


def choose_dtype(config: EngineConfig, model_config: ModelConfig) -> str:
    """Data type of activations and of unquantized weights, by PyTorch's name.

    "auto" is the checkpoint's own, bfloat16 where a quantized one has another; float32 instead for
    a small model on a CPU that would have to emulate it. Raises CheckpointError for one that no
    model runs in.
    """
    wanted = config.model.dtype
    found = model_config.own_dtype if wanted == "auto" else wanted
    is_quantized = model_config.checkpoint_format is not None
    if wanted == "auto" and is_quantized and found in ("float16", "float32"):
        found = "bfloat16"  # what their libraries compute in is one of these, what is fast is this
    is_small = model_config.num_parameters * DTYPES["float32"].num_bytes <= SMALL_MODEL_BYTES
    if wanted == "auto" and is_small and device_type(config) == "cpu" and _is_emulated(found):
        return "float32"
    return found


def choose_kv_dtype(
    config: EngineConfig, model_config: ModelConfig, capability: tuple[int, int] | None = None
) -> str:
    """Data type of keys and values, for the memory plan and for every start.

    capability: the GPU's compute capability; None: unknown, or no GPU. FP8 that the checkpoint
    alone asks for is the model's data type on a GPU that does not convert it. Raises ConfigError
    where the settings ask for it.
    """
    dtype, setting = choose_dtype(config, model_config), config.cache.kv_cache_dtype
    found = kv_name(setting, dtype, model_config.kv_cache_dtype)
    if found != FP8 or capability is None or capability >= FP8_CAPABILITY:
        return found
    require(
        setting == "auto",
        f"kv_cache_dtype is {setting!r}, which takes a GPU of compute capability 8.9 or later, but "
        f"this one has {capability[0]}.{capability[1]}; leave it out",
    )
    return dtype


def torch_reason(config: EngineConfig) -> str | None:
    """The reason why these settings need PyTorch whatever files there are, or None."""
    if device_type(config) == "cuda":
        return "the model runs on a GPU"
    if native.library() is None:
        return "there are no compiled kernels for this processor"
    model = config.model
    if model.dtype in DTYPES and model.dtype not in ROW_DTYPES:
        return f"dtype is {model.dtype}, which the compiled kernels do not have"
    scheme = scheme_of(model.scheme, "cpu", model.quantization_overrides)
    lacking = (each.name for each in (scheme.choices if scheme else ()) if not each.native_formats)
    if name := next(lacking, None):
        return (
            f"quantization is {model.quantization}: the compiled kernels have no weights in {name}"
        )
    return None


def torch_library() -> Path | None:
    """PyTorch's shared library for CPUs, if PyTorch is installed; the file need not exist."""
    spec = PathFinder.find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(folders[0]) / "lib" / "libtorch_cpu.so" if folders else None


def is_cpu_build(library: Path | None) -> bool:
    """Whether an installed PyTorch is known to be one without GPUs."""
    return (
        library is not None
        and library.exists()
        and not library.with_name("libtorch_cuda.so").exists()
        and not library.with_name("libtorch_hip.so").exists()
    )


def _is_emulated(dtype: str) -> bool:
    """Whether the processor lacks matrix products of a data type, as far as /proc/cpuinfo shows."""
    if dtype != "bfloat16":
        return dtype != "float32"
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set[str]()
    return not flags & {"avx512_bf16", "amx_tile"}
