"""NF4 and MXFP4: codes that are indices of 16 numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import quire
from quire.kernels import reference
from quire.kernels.formats.codebook_format import CodebookFormat
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.nf4 import NF4
from quire.kernels.operands import CodebookWeight

BOTH: tuple[CodebookFormat, ...] = (NF4, MXFP4)
NAMES = [each.name for each in BOTH]
NAME = re.compile(r"(\w+\.)*_?\w*mxfp4\w*", re.I)


def random_rows(weight_format: CodebookFormat, n: int, k: int) -> CodebookWeight:
    """Rows with all codes, and scales as checkpoints have them."""
    scales = torch.rand(n, k // weight_format.spec.group)
    exponents = torch.randint(100, 140, scales.shape, dtype=torch.uint8)
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    scale = exponents if weight_format is MXFP4 else scales.half()
    return weight_format.rows({"codes": codes, "scale": scale})


@pytest.mark.parametrize("weight_format", BOTH, ids=NAMES)
def test_numbers_of_codes_are_rounded_to_the_same_codes(weight_format: CodebookFormat) -> None:
    """For groups that contain their largest number, which sets the scale."""
    group = weight_format.spec.group
    rows = random_rows(weight_format, 64, 4 * group)
    rows.codes[:, :: group // 2] = 0xFF if weight_format is NF4 else 0x7F  # the largest code
    wide = weight_format.dequantize(rows)
    again = weight_format.round_rows(wide)
    assert torch.equal(weight_format.dequantize(again), wide)
    assert torch.equal(again.scale, rows.scale)


@pytest.mark.parametrize("weight_format", BOTH, ids=NAMES)
def test_numbers_become_the_nearest_of_the_codebook(weight_format: CodebookFormat) -> None:
    weight = torch.randn(8, 4 * weight_format.spec.group)
    weight[0], weight[1, 3] = 0.0, 100.0
    rows = weight_format.round_rows(weight)
    groups = weight.view(8, 4, -1)
    scales = weight_format.wide_scales(rows.scale)[:, :, None]
    known = torch.tensor(weight_format.numbers)
    nearest = (groups[..., None] - known * scales[..., None]).abs().amin(dim=3)
    found = weight_format.dequantize(rows).view_as(groups)
    assert torch.allclose((found - groups).abs(), nearest, atol=1e-6)
    assert torch.equal(found[0], torch.zeros_like(found[0]))


@pytest.mark.parametrize("weight_format", BOTH, ids=NAMES)
def test_linear_is_that_of_the_numbers_in_float64(weight_format: CodebookFormat) -> None:
    """Within the error of rounding activations, and NF4's values, to bytes."""
    rows = weight_format.round_rows(torch.randn(48, 256))
    x, bias = torch.randn(9, 256), torch.randn(48)
    exact = x.double() @ weight_format.dequantize(rows).double().T + bias.double()
    error = reference.linear(x, rows, bias).double() - exact
    assert error.square().mean() < 1e-4 * exact.square().mean()
    exactly = torch.randint(-127, 128, (9, 256)).float()
    exactly[:, ::32] = 127.0
    found = reference.linear(exactly, rows, bias).double() - bias.double()
    wanted = exactly.double() @ weight_format.dequantize(rows).double().T
    limit = 0.01 if weight_format is NF4 else 1e-5
    assert (found - wanted).abs().max() < limit * wanted.abs().max()


def test_mxfp4_is_that_of_the_standard() -> None:
    """Ties go to an even mantissa, what is beyond 6 becomes 6, and exponents are e8m0."""
    numbers = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.9, -0.26, -5.1]
    weight = torch.zeros(1, 32)
    weight[0, : len(numbers)] = torch.tensor(numbers)
    rows = MXFP4.round_rows(weight)
    assert rows.scale.tolist() == [[127]]
    found = MXFP4.dequantize(rows)[0, : len(numbers)].tolist()
    assert found == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, -0.5, -6.0]
    powers = MXFP4.wide_scales(torch.tensor([[0, 1, 127, 254, 255]], dtype=torch.uint8))
    assert powers[0, :4].tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127]
    assert powers[0, 4].isnan()
    assert MXFP4.round_rows(torch.full((1, 32), torch.inf)).scale.tolist() == [[255]]


# docs/quantization.md: to add a format
FILES = {
    "config.py", "llm_options.py", "kernels/formats/fp4.py", "kernels/formats/native_format.py",
    "kernels/formats/table.py", "kernels/operands.py", "kernels/reference_codebook.py",
    "quantization/scheme.py", "models/checkpoint_formats/checkpoint_scheme.py",
}  # fmt: skip


def test_only_the_files_that_the_docs_list_know_a_format_by_its_name() -> None:
    """A file that has to be told of each format is one more that a new format touches."""
    source = Path(quire.__file__).parent
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for text in [path.read_text()]
        if "mxfp4" in text.lower() and any(map(names_mxfp4, ast.walk(ast.parse(text))))
    }
    of_checkpoints = ("gguf/", "models/checkpoint_formats/", "compress/")  # read and written
    assert {path for path in found if not path.startswith(of_checkpoints)} <= FILES


def names_mxfp4(node: ast.AST) -> bool:
    """Whether it is the format's name in code: an identifier, or a text of one word."""
    values = (getattr(node, name, None) for name in ("id", "name", "attr", "value", "module"))
    return any(isinstance(value, str) and NAME.fullmatch(value) for value in values)
