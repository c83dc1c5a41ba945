"""Files of texts and questions for `quire quantize` and `quire verify`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from quire.compress import text_samples
from quire.compress.hub_text import text_file
from quire.compress.task_answers import read_tasks
from quire.compress.text_samples import read_samples
from quire.errors import ConfigError
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


def test_lines_in_gzip_are_those_of_the_plain_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plain = write_lines(tmp_path / "a.json", {"text": TEXT})
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_samples(tokenizer, packed, 4, 16).digest == (
        read_samples(tokenizer, plain, 4, 16).digest
    )
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_samples(tokenizer, packed, 4, 16)


def test_a_damaged_gzip_file_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole, broken = gzip.compress(TEXT.encode()), tmp_path / "a.txt.gz"
    for data in (whole[:10] + b"\xff" * 30, whole[:40], whole[:-8] + bytes(8), b"plain"):
        broken.write_bytes(data)
        with pytest.raises(ConfigError, match=r"a\.txt\.gz cannot be read \(.+\); name a text"):
            read_samples(tokenizer, broken, 4, 16)


def test_a_data_set_of_the_hub_gives_its_first_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ["README.md", "data/test.jsonl", "data/train-1.jsonl.gz", "data/train-0.parquet"]
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: listed)
    asked = []

    def download(*args: str, **_: str) -> str:
        asked.append(args)
        return str(tmp_path / "found")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert text_file("owner/chats") == tmp_path / "found"
    text_file("owner/chats:data/test.jsonl")
    assert asked == [
        ("owner/chats", "data/train-1.jsonl.gz"),
        ("owner/chats", "data/test.jsonl"),
    ]
    (tmp_path / "chats.txt").touch()
    monkeypatch.chdir(tmp_path.parent)
    here = f"{tmp_path.name}/chats.txt"  # looks like a name of the hub, but is a file
    assert text_file(here) == Path(here)
    listed[1:3] = []
    with pytest.raises(ConfigError, match="has no file of JSON lines or text"):
        text_file("owner/chats")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OfflineModeIsEnabled(), "the hub cannot be reached; check the network"),
        (
            HfHubHTTPError.__mro__[1]("Name or service not known"),
            "cannot be downloaded .*check the netw",
        ),
    ],
    ids=["offline", "unreachable"],
)
def test_without_the_hub_the_fix_is_named(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", fail)
    with pytest.raises(ConfigError, match=message):
        text_file("owner/text")
