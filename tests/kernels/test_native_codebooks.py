"""Codebooks of native kernels: one home in Python, and no format with other numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.kernels import cpu
from quire.kernels.formats.native_format import NATIVE_CODEBOOKS, NativeFormat
from quire.kernels.formats.nf4 import Nf4
from quire.kernels.formats.table import FORMATS, by_layout

HEADER = Path(cpu.__file__).with_name("native") / "codebook.h"


@pytest.mark.parametrize("layout", NATIVE_CODEBOOKS, ids=lambda each: each.name)
def test_the_numbers_are_those_of_the_header(layout: NativeFormat) -> None:
    found = re.search(rf"{layout.name}_BYTES\[16\] = {{(.*)}};", HEADER.read_text("utf-8"))
    assert found is not None
    assert tuple(map(int, found[1].split(","))) == NATIVE_CODEBOOKS[layout][0]


@pytest.mark.parametrize(
    "changes",
    [
        {"numbers": tuple(i / 15 for i in range(16))},
        {"unit": 1.0 / 64.0},
        {"native_formats": {(False, False): NativeFormat.INT4}},
    ],
    ids=lambda each: next(iter(each)),
)
def test_a_format_with_other_numbers_than_its_kernel_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Nf5 has other numbers than the native kernel of"):
        type("Nf5", (Nf4,), {"__slots__": (), **changes})
    type("Nf5", (Nf4,), {"__slots__": (), **changes, "native_formats": {}})


def test_two_formats_of_one_layout_are_refused() -> None:
    with pytest.raises(ValueError, match="nf5 and nf4 both have the layout NF4"):
        by_layout({**FORMATS, "nf5": Nf4})
