"""The reasons of benchmarks/endpoint_suites: a failure in another way has none."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from child_process import run_to_end

FOLDER = Path(__file__).parents[1] / "benchmarks" / "endpoint_suites"


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield [importlib.import_module(name) for name in ("reasons", "vllm_tests", "llama_cpp_tests")]
    for name in ("reasons", "vllm_tests", "llama_cpp_tests"):
        sys.modules.pop(name, None)


def test_a_reason_is_that_of_a_test_and_its_message(suites: Any) -> None:
    reasons, vllm, llama_cpp = suites
    test, message = "test_models.py::test_check_models", "IndexError: list index out of range"
    found = reasons.reason_of(test, message, vllm.REASONS)
    assert (found.kind, found.why) == ("choice", "no adapters")
    assert reasons.reason_of(test, "assert 500 == 200", vllm.REASONS) is None
    assert reasons.reason_of("test_other", message, vllm.REASONS) is None
    for reason in (*vllm.REASONS, *llama_cpp.REASONS):
        assert reason.message, "every reason has a message"
        assert reason.test or "Reply" in reason.message or "refused by choice" in reason.message
        for message in ("assert 500 == 200", "InternalServerError: Error code: 500", ""):
            assert reasons.reason_of(reason.test, message, [reason]) is None, reason


def test_outcomes_that_nobody_named_are_not_judged(tmp_path: Path) -> None:
    """An older run, of another version perhaps, left them in the temporary folder."""
    (tmp_path / "endpoint_suites.jsonl").write_text("")
    ended = run_to_end(
        [sys.executable, FOLDER.with_suffix(".py"), "--out", tmp_path],
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert (ended.returncode, "--rows" in ended.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == [tmp_path / "endpoint_suites.jsonl"]
