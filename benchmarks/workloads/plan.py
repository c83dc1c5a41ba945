"""The workloads, and the prompts of one level of load. Owns no clock and sends nothing.

A level is closed (so many requests at a time, each followed by the next) or open (so many arrive a
second, whatever became of those before).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

FIRST_ID, LAST_ID = 1000, 120_000  # of the random prompts, where the vocabulary is as large
PREFIX_SEED = 11
MAX_REQUESTS = 512  # of a closed level
STEADY_REQUESTS = 1 << 20  # more than any run comes to
OPEN_SECONDS = 8.0  # of arrivals, at most


@dataclass(frozen=True, slots=True)
class Workload:
    """What one kind of service asks. levels: requests at a time, or a second if it is open.

    shared_prefix: tokens at the beginning that all prompts have in common. is_steady: saturated
    from its first moment on, see steady.py; for the engine alone.
    """

    name: str
    shape: str
    input_len: int
    output_len: int
    levels: tuple[float, ...]
    stream: bool = True
    is_open: bool = False
    shared_prefix: int = 0
    is_steady: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a workload, as it is sent to the processes that make the load.

    offsets: when requests arrive, in seconds from the start, if the load is open. stop_after: no
    request begins later; cut_after: what is then not done is given up. seeds: one a prompt.
    """

    workload: Workload
    level: float
    model: str
    seeds: Sequence[int]
    offsets: Sequence[float]
    vocab_size: int
    stop_after: float
    cut_after: float

    def prompts(self) -> Iterable[list[int]]:
        """Random token ids, distinct behind the shared prefix."""
        prefix = self.prompt_of(PREFIX_SEED, self.workload.shared_prefix)
        num_own = self.workload.input_len - len(prefix)
        return (prefix + self.prompt_of(seed, num_own) for seed in self.seeds)

    def prompt_of(self, seed: int, length: int) -> list[int]:
        """So many random token ids."""
        low, high = min(FIRST_ID, self.vocab_size // 2), min(LAST_ID, self.vocab_size)
        return random.Random(seed).choices(range(low, high), k=length)

    def shares(self, count: int) -> list[Level]:
        """This level for at most so many processes; requests are dealt round, as are lanes."""
        is_open = self.workload.is_open
        count = min(count, len(self.seeds) if is_open else int(self.level))
        return [
            replace(
                self,
                level=self.level if is_open else len(range(index, int(self.level), count)),
                seeds=self.seeds[index::count],
                offsets=self.offsets[index::count],
            )
            for index in range(count)
        ]


def make_level(
    workload: Workload, level: float, model: str, vocab_size: int, seed: int, seconds: float
) -> Level:
    """A level that begins no request after `seconds`."""
    offsets: list[float] = []
    if workload.is_open:
        offsets = arrivals(level, min(seconds, OPEN_SECONDS), seed)
    num_requests = len(offsets) or min(MAX_REQUESTS, max(8, 3 * int(level)))
    if workload.is_steady:
        num_requests = STEADY_REQUESTS
    return Level(
        workload=workload,
        level=level,
        model=model,
        seeds=range(seed, seed + num_requests),
        offsets=offsets,
        vocab_size=vocab_size,
        stop_after=seconds,
        cut_after=seconds * 4 / 3,
    )


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Moments of a Poisson stream; at least one."""
    rng, moment, found = random.Random(seed), 0.0, []
    while (moment := moment + rng.expovariate(rate)) < seconds:
        found.append(moment)
    return found or [0.0]


_VOICE_LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

WORKLOADS = (
    Workload("voice-8b", "llama-3.1-8b", 1950, 200, _VOICE_LEVELS),
    Workload("rewrite-1b", "llama-3.2-1b", 15, 15, (250, 500, 1000, 2000, 4000), False, True),
    Workload("voice-8b-shared", "llama-3.1-8b", 1950, 200, (1, 4, 16, 64, 256), shared_prefix=1750),
    Workload("voice-1b", "llama-3.2-1b", 1950, 200, (1, 8, 64, 256)),
)
# The pairs of lengths for which TensorRT-LLM publishes figures at saturation.
_SATURATED = ((128, 128, 1024), (1000, 1000, 1024), (2048, 128, 256), (2048, 2048, 512))
SATURATED = tuple(
    Workload(f"saturated-{ins}-{outs}", "llama-3.1-8b", ins, outs, (level,), is_steady=True)
    for ins, outs, level in (*_SATURATED, (20_000, 2000, 76))
)


def chosen(words: Sequence[str] | None) -> list[Workload]:
    """Those that are named, as `name` or `name:level,level`; all but the saturated ones without
    a word.

    Raises ValueError that says what is wrong.
    """
    if not words:
        return list(WORKLOADS)
    known, found = {workload.name: workload for workload in (*WORKLOADS, *SATURATED)}, []
    for word in words:
        name, _, levels = word.partition(":")
        if name not in known:
            raise ValueError(f"no workload {name!r}; known: {', '.join(known)}")
        wanted = tuple(float(text) for text in levels.split(",")) if levels else known[name].levels
        found.append(replace(known[name], levels=wanted))
    return found
