"""The sizes that steps on a GPU are padded to, so that few graphs serve all of them. No torch.

Owns which sizes there are. A step is padded with tokens that belong to no row, and with samples
that nobody is due. The scheduler cuts prompts so that a step ends on a size wherever there is more
to compute.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

# Steps of single tokens come in all numbers of running requests.
_DECODES = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 1025, 32)]
# Of steps with parts of prompts. GEMMs are quick where their tiles fill the multiprocessors evenly:
# 2,048 tokens take no longer than 1,800 (docs/decisions/gpu-prefill.md). Above the largest, steps
# keep a GPU busy for longer than the launches of their kernels take.
_MIXED = [
    16, 32, *range(64, 385, 64), *range(512, 1537, 128), 1792, 2048, 2304,
    *range(2560, 6145, 512), 7168, 8192,
]  # fmt: skip
# Of those, the ones that are recorded once more for prompts with few keys: up to here all, as a
# layer's attention is a greater part of small steps, and what a burst of such prompts fills.
_MOST_SHORT, _BURSTS = 384, (512, 1024, 2048)
LEAST_MEMBERS = 4  # requests with the same beginning that are worth a group
_SAMPLES = [0, 16, 32, 64, 128, 256, 512, 1024]


@dataclass(frozen=True, slots=True)
class StepSize:
    """The size for which a step's kernels are launched; steps of one size have the same kernels.

    num_tokens: T; num_samples: S, rows of logits; has_prefills: False where each request has one
    token; has_shared: whether, of such a step, some requests begin with the same blocks;
    has_few_keys: whether, of any other, all prompts are short (see `BatchLayout`).
    """

    num_tokens: int
    num_samples: int
    has_prefills: bool
    has_shared: bool = False
    has_few_keys: bool = False


class StepSizes:
    """All sizes up to these limits, in ascending order.

    max_num_seqs: most requests, and so samples, and tokens of a step without parts of prompts.
    max_num_tokens: of any step, no fewer. pads_mixed: whether steps with parts of prompts are
    padded, too; else there are no sizes for them. shares_prefixes: whether requests may begin with
    the same blocks.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_num_tokens: int,
        *,
        pads_mixed: bool,
        shares_prefixes: bool = False,
    ) -> None:
        self.decodes = _up_to(max_num_seqs, _DECODES)
        self.shared_decodes = [n for n in self.decodes if shares_prefixes and n >= LEAST_MEMBERS]
        self.mixed = _up_to(min(max_num_tokens, _MIXED[-1]), _MIXED) if pads_mixed else []
        self.short_mixed = [n for n in self.mixed if n <= _MOST_SHORT or n in _BURSTS]
        self.samples = _up_to(max_num_seqs, _SAMPLES)

    @property
    def num_graphs(self) -> int:
        """All that are recorded: whole decodes, and the two parts of other steps."""
        decodes = len(self.decodes) + len(self.shared_decodes)
        return decodes + len(self.mixed) + len(self.short_mixed) + len(self.samples)

    def of(
        self,
        num_tokens: int,
        num_samples: int,
        has_prefills: bool,
        has_shared: bool = False,
        has_few_keys: bool = False,
    ) -> StepSize:
        """The size that a step of this many tokens runs at."""
        if not has_prefills:
            padded = _next(num_tokens, self.decodes)
            return StepSize(padded, padded, has_prefills=False, has_shared=has_shared)
        if self.mixed and num_tokens <= self.mixed[-1]:
            num_tokens = _next(num_tokens, self.mixed)
            has_few_keys = has_few_keys and num_tokens in self.short_mixed
        num_samples = _next(num_samples, self.samples)
        return StepSize(num_tokens, num_samples, has_prefills=True, has_few_keys=has_few_keys)


def _up_to(most: int, sizes: list[int]) -> list[int]:
    """The sizes below the largest that is needed, and that one."""
    return [size for size in sizes if size < most] + [most]


def _next(number: int, sizes: list[int]) -> int:
    return sizes[bisect.bisect_left(sizes, number)]
