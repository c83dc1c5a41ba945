"""Weights as bitsandbytes, compressed-tensors and ModelOpt store NF4, LLM.int8, MXFP4 and NVFP4.

Packed here from the papers and the documented layouts. (Dettmers et al., 2022 and 2023; OCP
Microscaling, 2023)
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]  # tensors by their names in the module; the numbers

# QLoRA, appendix E
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
OFFSET = 0.25  # of scales in eight bits


def nearest(values: Tensor, numbers: Tensor) -> Tensor:
    return (values[..., None] - numbers).abs().argmin(-1).to(torch.uint8)


def four_bits(is_nested: bool) -> Callable[[Tensor], Stored]:
    """NF4 in blocks of 64; scales are float16 numbers, or have eight bits and an offset."""

    def pack(weight: Tensor) -> Stored:
        blocks, table = weight.reshape(-1, 64), torch.tensor(NF4)
        largest = blocks.abs().amax(1)
        tensors = {"weight.quant_map": table}
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32"}
        if is_nested:
            nested_map = torch.arange(-128, 128) / 128.0
            scales = nearest(largest - OFFSET, nested_map)
            tensors |= {
                "weight.absmax": scales,
                "weight.nested_absmax": torch.ones(-(-len(blocks) // 256)),
                "weight.nested_quant_map": nested_map,
            }
            largest = nested_map[scales.int()] + OFFSET
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": OFFSET}
        else:
            largest = largest.half().float()
            tensors["weight.absmax"] = largest
        codes = nearest(blocks / largest[:, None], table)
        settings = json.dumps(state | {"shape": list(weight.shape)}).encode()
        tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(settings)).byte()
        flat = codes.flatten()
        tensors["weight"] = (flat[0::2] << 4 | flat[1::2])[:, None]
        return tensors, (table[codes.int()] * largest[:, None]).view(weight.shape)

    return pack


def llm_int8(weight: Tensor) -> Stored:
    largest = weight.abs().amax(1)
    codes = (weight / largest[:, None] * 127.0).round().to(torch.int8)
    layout = torch.zeros((), dtype=torch.uint8)
    numbers = codes.float() * largest[:, None] * 7.874015718698502e-3
    return {"weight": codes, "SCB": largest, "weight_format": layout}, numbers


def mxfp4(weight: Tensor) -> Stored:
    groups, table = weight.unflatten(1, (-1, 32)), torch.tensor(E2M1)
    exponents = groups.abs().amax(2).log2().floor() - 2.0
    scale = exponents.exp2()[:, :, None]
    codes = nearest(groups / scale, table)
    numbers, flat = (table[codes.int()] * scale).flatten(1), codes.flatten(1)
    return {
        "weight_packed": flat[:, 0::2] | flat[:, 1::2] << 4,
        "weight_scale": (exponents + 127.0).to(torch.uint8),
    }, numbers


def nvfp4(codes_name: str, whole_name: str, *, reciprocal: bool) -> Callable[[Tensor], Stored]:
    """Scales in e4m3 of 16 inputs, and one of the whole weight, or its reciprocal."""

    def pack(weight: Tensor) -> Stored:
        groups, table = weight.unflatten(1, (-1, 16)), torch.tensor(E2M1)
        largest = groups.abs().amax(2)
        whole = 2.0 ** (largest.max() / (6.0 * 448.0)).log2().ceil()
        scale = (largest / 6.0 / whole).to(torch.float8_e4m3fn)
        wide = scale.float()[:, :, None] * whole
        codes = nearest(groups / wide, table)
        numbers, flat = (table[codes.int()] * wide).flatten(1), codes.flatten(1)
        return {
            codes_name: flat[:, 0::2] | flat[:, 1::2] << 4,
            "weight_scale": scale,
            whole_name: (1 / whole if reciprocal else whole).reshape(1 if reciprocal else ()),
        }, numbers

    return pack
