"""Files of texts and questions for `quire quantize` and `quire verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.compress import text_samples
from quire.compress.task_answers import read_tasks
from quire.compress.text_samples import read_samples
from quire.hub import BUNDLED_FOLDER
from quire.tokenizer.tokenizer import Tokenizer

# U+2028, U+0085 and others end a line for str.splitlines, but not for JSON
TEXT = "one\u2028two\u2029three\x85four " * 40


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(BUNDLED_FOLDER / "quire-tiny")


def write_lines(path: Path, values: dict) -> Path:
    line = json.dumps(values, ensure_ascii=False)
    path.write_text(f"{line}\n\n{line}\n", encoding="utf-8")
    return path


def test_line_separators_inside_texts_end_no_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": TEXT})
    assert read_samples(tokenizer, file, 4, 16).verification
    messages = [{"role": "user", "content": TEXT}]
    file = write_lines(tmp_path / "b.jsonl", {"messages": messages, "expected": TEXT})
    assert len(read_tasks(tokenizer, file)) == 2


def test_a_long_file_is_cut_between_lines(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": TEXT})
    text = file.read_text(encoding="utf-8")
    whole = len(text)
    for most in (whole - 1, whole // 2 + 9):
        monkeypatch.setattr(text_samples, "_MOST_CHARACTERS", most)
        assert read_samples(tokenizer, file, 4, 16).verification
        assert text_samples._read(file) == text[: whole // 2 + 1]
    monkeypatch.setattr(text_samples, "_MOST_CHARACTERS", whole)
    assert text_samples._read(file) == text
