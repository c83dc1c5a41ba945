"""The workloads, and the prompts of one level of load. Owns no clock and sends nothing.

A level is closed (so many requests at a time, each followed by the next) or open (so many arrive a
second, whatever became of those before). Its figures count all its requests, from the first one
sent to the last byte: also those at its end, beside which fewer and fewer others run.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

BLOCK = 8  # consecutive seeds whose lengths together have the workload's mean
GOLDEN = (5**0.5 - 1) / 2  # its multiples are spread evenly between the whole numbers
FIRST_ID, LAST_ID = 1000, 120_000  # of the random prompts, where the vocabulary is as large
PREFIX_SEED, JITTER_SEED = 11, 1 << 40
MAX_REQUESTS = 768  # of a closed level: three rounds of 256
STEADY_REQUESTS = 1 << 20  # more than any run comes to
OPEN_SECONDS = 8.0  # of arrivals, at most


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind of service. levels: requests at a time, or a second if it is open.

    shared_prefix: tokens at the beginning that all prompts have in common. is_steady: saturated
    from its first moment on, see steady.py; for the engine alone. jitter: lengths of requests are
    even between 1 - jitter and 1 + jitter of those given, in blocks of BLOCK consecutive seeds:
    each block has one of every BLOCK-th part of that range, in random order, and the mean of all.
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
    jitter: float = 0.0

    def lengths(self, seed: int) -> tuple[int, int]:
        """Tokens in and out of the request of this seed."""
        block, index = divmod(seed, BLOCK)
        rng, offset = random.Random(block ^ JITTER_SEED), block * GOLDEN % 1
        pairs = [(pair + offset) / BLOCK for pair in range(BLOCK // 2)]
        quantiles = pairs + [1 - quantile for quantile in pairs]
        ins, outs = (
            round(n * (1 + self.jitter * (2 * rng.sample(quantiles, BLOCK)[index] - 1)))
            for n in (self.input_len, self.output_len)
        )
        return max(self.shared_prefix + 1, ins), max(1, outs)


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
        lengths = ((seed, self.workload.lengths(seed)[0]) for seed in self.seeds)
        return (prefix + self.prompt_of(seed, length - len(prefix)) for seed, length in lengths)

    def output_lens(self) -> list[int]:
        """Tokens of the answers, one for each seed."""
        return [self.workload.lengths(seed)[1] for seed in self.seeds]

    def prompt_of(self, seed: int, length: int) -> list[int]:
        """A prompt of this number of random token ids."""
        low, high = min(FIRST_ID, self.vocab_size // 2), min(LAST_ID, self.vocab_size)
        return random.Random(seed).choices(range(low, high), k=length)

    def shares(self, count: int) -> list[Level]:
        """Split this level among at most this number of processes, round robin."""
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
    """A level that begins no request after `seconds`. seed: its requests' are as high or higher."""
    offsets: list[float] = []
    if workload.is_open:
        offsets = arrivals(level, min(seconds, OPEN_SECONDS), seed)
    # a median of fewer would be one of the burst at the beginning
    least, rounds = (192, 4) if workload.jitter else (8, 3)
    num_requests = len(offsets) or min(MAX_REQUESTS, max(least, rounds * int(level)))
    if workload.is_steady:
        num_requests = STEADY_REQUESTS
    first = -(-seed // BLOCK) * BLOCK
    return Level(
        workload=workload,
        level=level,
        model=model,
        seeds=range(first, first + num_requests),
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
# Lengths that vary: mean tokens in and out, requests at a time. The last three were added after the
# scheduling rule had been chosen.
_VARIED = (
    (2000, 200, (16, 64)), (4000, 50, (8, 48)), (400, 400, (32,)), (100, 20, (64,)),
    (8000, 400, (4, 16)), (1200, 60, (12, 100)), (600, 800, (24,)), (3000, 30, (128,)),
)  # fmt: skip
VARIED = (
    *(
        Workload(f"varied-{ins}-{outs}", "llama-3.1-8b", ins, outs, levels, jitter=0.6)
        for ins, outs, levels in _VARIED
    ),
    Workload("equal-4000-50", "llama-3.1-8b", 4000, 50, (48,)),
)
# So many a second: 8B in bfloat16 is saturated at about 12.
OPEN = (Workload("open-1950-200", "llama-3.1-8b", 1950, 200, (3, 6, 9, 12), is_open=True),)


KNOWN = (*WORKLOADS, *SATURATED, *VARIED, *OPEN)


def chosen(words: Sequence[str] | None) -> list[Workload]:
    """The workloads named as `name` or `name:level,level`; `WORKLOADS` without a word.

    Raises ValueError that says what is wrong.
    """
    if not words:
        return list(WORKLOADS)
    known, found = {workload.name: workload for workload in KNOWN}, []
    for word in words:
        name, _, levels = word.partition(":")
        if name not in known:
            raise ValueError(f"no workload {name!r}; known: {', '.join(known)}")
        wanted = tuple(float(text) for text in levels.split(",")) if levels else known[name].levels
        found.append(replace(known[name], levels=wanted))
    return found
