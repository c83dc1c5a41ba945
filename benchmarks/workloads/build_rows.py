"""Rows of compare_builds.py for two builds behind `quire serve`: models and loads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from workloads.plan import Workload


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for a server: name, workload, how many at a time (or a second), how many in all.

    share_of: the load of the same row of whose requests a second `level` is a share, if any.
    """

    name: str
    workload: Workload
    level: float
    count: int
    share_of: str = ""


@dataclass(frozen=True, slots=True)
class ServedRow:
    """A model behind `quire serve`, and what is asked of it; is_repeated: `--repeats` times."""

    shape: str
    loads: tuple[Load, ...]
    options: dict[str, Any] = field(default_factory=dict)
    is_repeated: bool = False


def _voice(shape: str) -> Workload:
    return Workload("voice", shape, 1950, 200, ())


def _voice_loads(shape: str, *, most: int = 64) -> tuple[Load, ...]:
    counts = {1: 4, 16: 48, 64: 128}
    return tuple(Load(f"voice {n}", _voice(shape), n, counts[n]) for n in counts if n <= most)


_8B, _1B = "llama-3.1-8b", "llama-3.2-1b"
_REWRITE = Workload("rewrite", _1B, 15, 15, (), stream=False)
SERVED = {
    "8b": ServedRow(
        _8B,
        (*_voice_loads(_8B), Load("shared 16", replace(_voice(_8B), shared_prefix=1750), 16, 48)),
    ),
    "8b-fp8": ServedRow(_8B, _voice_loads(_8B), {"quantization": "fp8", "kv_cache_dtype": "fp8"}),
    "1b": ServedRow(
        _1B,
        (
            *_voice_loads(_1B),
            Load("rewrite 256 at a time", _REWRITE, 256, 8192),
            Load("rewrite 1000/s", replace(_REWRITE, is_open=True), 1000, 3000),
        ),
    ),
}
_SHORT = Workload("short", _1B, 64, 32, ())
_SMALL = "llama-5m"  # of whose prompts a CPU computes some thousand tokens a second
_PROMPTS = Workload("prompts", _SMALL, 400, 20, (), jitter=0.6)
SERVED_ON_CPU = {
    "served": ServedRow(
        _1B,
        (
            Load("short 1", _SHORT, 1, 4),
            Load("short 8", _SHORT, 8, 16),
            Load("rewrite 16 at a time", _REWRITE, 16, 64),
            Load("rewrite 2/s", replace(_REWRITE, is_open=True), 2, 8),
        ),
    ),
    "prompts": ServedRow(
        _SMALL,
        (
            Load("400/20 8 at a time", _PROMPTS, 8, 24),
            Load("200/100 4 at a time", replace(_PROMPTS, input_len=200, output_len=100), 4, 12),
            Load(
                "400/20 at 0.8",
                replace(_PROMPTS, is_open=True),
                0.8,
                48,
                share_of="400/20 8 at a time",
            ),
        ),
        is_repeated=True,
    ),
}
