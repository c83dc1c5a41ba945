"""The system_fingerprint: names what made an answer.

It changes with Quire's version, the model's name, its data types and the type of device, not with
other weights under the same name. Clients may compare it; it begins with "b", as that of
llama.cpp's server, whose clients look for the build there.
"""

from __future__ import annotations

import hashlib

from quire.engine.core.engine_info import EngineInfo
from quire.version import __version__


def system_fingerprint(info: EngineInfo) -> str:
    """The fingerprint of a started engine, such as "build-0.1.0-5f0c2d1e"."""
    facts = (info.model_name, info.dtype, info.device, info.quantization, info.kv_cache_dtype)
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:8]
    return f"build-{__version__}-{digest}"
