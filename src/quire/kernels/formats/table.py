"""The weight formats that there are, found by a spec or by a packed layout. No torch.

To add one, list its class here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from quire.kernels.formats.fp4 import Mxfp4, Nvfp4
from quire.kernels.formats.fp8 import BlockFp8, Fp8, Fp8A16
from quire.kernels.formats.int4 import Int4
from quire.kernels.formats.int8 import GroupedInt8, Int8, Int8A16
from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.nf4 import Nf4
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import QuantSpec

FORMATS: dict[str, type[WeightFormat]] = {
    "fp8": Fp8,
    "fp8_a16": Fp8A16,
    "int8": Int8,
    "int8_a16": Int8A16,
    "int4": Int4,
    "nf4": Nf4,
    "mxfp4": Mxfp4,
    "nvfp4": Nvfp4,
    "int8_group": GroupedInt8,
    "fp8_block": BlockFp8,
    "fp8_block_a16": BlockFp8,
}


def by_layout(
    formats: Mapping[str, type[WeightFormat]],
) -> dict[NativeFormat, tuple[str, bool, bool]]:
    """Codes, zeros and hadamard by packed layout. Raises ValueError for two formats of one."""
    found: dict[NativeFormat, tuple[str, bool, bool]] = {}
    for codes, each in formats.items():
        for variant, layout in each.native_formats.items():
            if layout in found:
                raise ValueError(
                    f"{codes} and {found[layout][0]} both have the layout {layout.name}"
                )
            found[layout] = (codes, *variant)
    return found


_BY_LAYOUT = by_layout(FORMATS)


@functools.cache
def format_of(spec: QuantSpec) -> WeightFormat:
    """The format of canonical rows. Raises KeyError for codes that are not known."""
    return FORMATS[spec.codes](spec)


def format_of_packed(layout: NativeFormat, group: int) -> WeightFormat:
    """The format of a packed weight of codes. Raises KeyError for a layout of numbers."""
    codes, zeros, hadamard = _BY_LAYOUT[layout]
    return format_of(QuantSpec(codes, group, zeros, hadamard))
