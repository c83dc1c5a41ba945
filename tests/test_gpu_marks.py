"""Every test that needs a GPU has the mark `gpu`, by which runs on a GPU choose tests."""

from __future__ import annotations

import re

import pytest
from gpu_marks import Capability, missing_gpu
from house_files import TESTS, expect_none

# which the mark would do
SKIPS = re.compile(
    r"skipif\(\s*not\b[^,]*(?:cuda|GPU|HOPPER)|skipif\([^,]*!= \(\d|"
    r"if [^\n]*(?:not [^\n]*(?:cuda|ON_GPU)|torch\.cuda[^\n]*!=)[^\n]*:\n +pytest\.skip\("
)


def test_tests_that_need_a_gpu_are_marked() -> None:
    others = (path for path in TESTS if path.name != "test_gpu_marks.py")
    found = (path for path in others if SKIPS.search(path.read_text()))
    expect_none(map(str, found), 'mark it with pytest.mark.gpu or gpu("Hopper"), which skips it')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@pytest.mark.skipif(not torch.cuda.is_available(), reason='x')", True),
        ("@pytest.mark.skipif(not HOPPER, reason='x')", True),
        ("@pytest.mark.skipif(ON_GPU, reason='x')", False),
        ("    if not ON_GPU:\n        pytest.skip('x')", True),
        ("    if torch.cuda.get_c() != 9:\n        pytest.skip('x')", True),
        ("if not torch.cuda.is_available():\n    pytest.skip('x', allow_module_level=True)", True),
    ],
)  # fmt: skip
def test_a_test_without_the_mark_is_found(text: str, *, found: bool) -> None:
    assert bool(SKIPS.search(text)) == found


@pytest.mark.parametrize(
    ("marks", "capability", "missing"),
    [
        ([], (0, 0), None),
        ([pytest.mark.gpu], (0, 0), "CUDA"),
        ([pytest.mark.gpu], (7, 5), None),
        ([pytest.mark.gpu("FP8")], (8, 6), "FP8"),
        ([pytest.mark.gpu("FP8")], (8, 9), None),
        ([pytest.mark.gpu, pytest.mark.gpu("Hopper")], (10, 0), "Hopper"),
        ([pytest.mark.gpu("Hopper")], (9, 0), None),
    ],
)
def test_a_marked_test_runs_on_the_gpus_that_it_names(
    marks: list[pytest.MarkDecorator], capability: Capability, missing: str | None
) -> None:
    assert missing_gpu([each.mark for each in marks], capability) == missing
