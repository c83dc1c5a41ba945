from __future__ import annotations

import msgspec

from quire.core.request_limits import RequestLimits
from quire.engine.core.engine_info import EngineInfo


def test_numbers_of_sampling_defaults_keep_their_types_on_the_wire() -> None:
    limits = RequestLimits(max_model_len=8, max_kv_tokens=8, vocab_size=8, max_num_seqs=1)
    given = {"max_tokens": 64, "top_k": 20, "temperature": 1.0}
    info = EngineInfo("m", limits, [1], "float32", "cpu", 1, 16, 1, sampling_defaults=given)
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=EngineInfo).sampling_defaults
    assert [(name, type(value)) for name, value in found.items()] == [
        ("max_tokens", int),
        ("top_k", int),
        ("temperature", float),
    ]
