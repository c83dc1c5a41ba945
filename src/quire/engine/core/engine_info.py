"""EngineInfo: the fixed facts of a started engine, for the frontend. No torch."""

from __future__ import annotations

import msgspec

from quire.core.pooling_params import PoolingParams
from quire.core.request_limits import RequestLimits


class EngineInfo(msgspec.Struct, frozen=True):
    """Fixed facts of a started engine. seconds: start-up time by phase, see docs/startup.md.

    quantization: the scheme of the weights, or the method of a quantized checkpoint; "none" where
    they have the data type. kv_cache_dtype: of keys and values, by PyTorch's name; empty where
    there are none. pooling: how embeddings are made unless a request says otherwise.
    sampling_defaults: sampling params that the model's files ask for, by name. quality: figures of
    the weights' quality report. model: the folder, file or hub name that was loaded. file_bytes: of
    the files with its weights; 0 where there are none. family: of models, such as "llama".
    """

    model_name: str
    limits: RequestLimits
    eos_token_ids: list[int]
    dtype: str
    device: str
    num_blocks: int
    block_size: int
    kv_cache_bytes: int
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    quantization: str = "none"
    kv_cache_dtype: str = ""
    pooling: PoolingParams = msgspec.field(default_factory=PoolingParams)
    sampling_defaults: dict[str, int | float] = msgspec.field(default_factory=dict)
    quality: dict[str, bool | float | str] | None = None
    model: str = ""
    file_bytes: int = 0
    family: str = ""
    num_parameters: int = 0
