"""KV cache in FP8: written with saturation, read back exactly.

Every version of the operations: the reference, the CPU's and Triton's.
"""

from __future__ import annotations

import pytest
import torch
from device import DEVICE, ON_EITHER, ON_GPU
from test_triton_kernels import TWINS, close, moved
from torch import Tensor
from twins import attention_case, normal

from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.triton.ops.rounded_rows import multiplies_fp8

pytestmark = ON_EITHER
VERSIONS = {"reference": TWINS, "cpu": kernels_for("cpu"), "triton": kernels_for("cuda")}
if ON_GPU and not multiplies_fp8(DEVICE):
    del VERSIONS["triton"]
BATCHES = [
    ([1, 1, 1], [1, 40, 129]),
    ([1, 1, 5, 30, 2], [64, 7, 90, 30, 2]),
    ([37], [37]),
    ([1], [1100]),
]


def there(version: str, *arguments: object) -> list[object]:
    """The arguments where a version runs."""
    return [moved(a) if version == "triton" else a for a in arguments]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("window", [None, 33])
def test_attention_reads_the_numbers_that_the_codes_stand_for(
    version: str, batch: tuple[list[int], list[int]], window: int | None
) -> None:
    dtype = torch.bfloat16 if ON_GPU else torch.float16
    case = attention_case(*batch, (4, 2, 16), window, True, dtype)
    query, k_cache, v_cache, *rest = case
    k_cache, v_cache = k_cache.to(reference.FP8), v_cache.to(reference.FP8)
    twin = reference.attention(query, k_cache.to(dtype), v_cache.to(dtype), *rest)
    ours = VERSIONS[version].attention(*there(version, query, k_cache, v_cache, *rest))
    close(ours, twin)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_written_is_saturated_and_rounded(version: str) -> None:
    """Heads that do not turn, of numbers that FP8 has or that are too large for it."""
    codes = torch.arange(4 * 5 * 16).remainder(120).add(8).to(torch.uint8)  # no subnormal ones
    heads = codes.view(reference.FP8).float().nan_to_num(1.0).view(4, 5, 16)
    heads[1, 3:] *= -1.0
    heads[2, 2:] *= 1000.0
    k_cache = torch.zeros(3, 8, 2, 16, dtype=reference.FP8)
    v_cache = torch.zeros(3, 8, 2, 16, dtype=reference.FP8)
    slots = torch.tensor([17, 3, 0, 23])
    cos, sin = torch.ones(4, 16), torch.zeros(4, 16)
    mine = there(version, heads.clone(), None, cos, sin, k_cache, v_cache, slots)
    query = VERSIONS[version].rope_write_kv(*mine)
    close(query, heads[:, :1])
    for cache, written in zip(mine[4:6], (heads[:, 1:3], heads[:, 3:]), strict=True):
        assert isinstance(cache, Tensor)
        stored = cache.cpu().float().flatten(0, 1)
        assert torch.equal(stored[slots], written.clamp(-448, 448))
        assert int((stored != 0).any(-1).any(-1).sum()) == 4


@pytest.mark.parametrize("version", VERSIONS if ON_GPU else ["reference", "cpu"])
def test_what_is_written_is_the_nearest_number(version: str) -> None:
    heads = normal(6, 6, 32, dtype=torch.float32) * torch.logspace(-3, 3, 6)[:, None, None]
    caches = torch.zeros(2, 1, 8, 2, 32).to(reference.FP8)
    angles = normal(6, 32, dtype=torch.float32, seed=1)
    slots = torch.arange(6)
    mine = there(version, heads, None, angles.cos(), angles.sin(), *caches, slots)
    exact = torch.zeros(2, 1, 8, 2, 32)
    reference.rope_write_kv(heads, None, angles.cos(), angles.sin(), *exact, slots)
    VERSIONS[version].rope_write_kv(*mine)
    for cache, twin in zip(mine[4:6], exact, strict=True):
        assert isinstance(cache, Tensor)
        # half of a step of 3 bits of mantissa, or of the smallest numbers; a little for the angles
        limit = (twin.abs() * 2**-4).clamp_min(2**-10) * 1.001
        assert ((cache.cpu().float() - twin.clamp(-448, 448)).abs() <= limit).all()
