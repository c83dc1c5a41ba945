"""Folders whose tokenizer.json makes the `tokenizers` library fail or panic."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quire.errors import CheckpointError, InvalidRequestError, is_failure
from quire.tokenizer import pattern_check
from quire.tokenizer.pattern_literals import literal_characters, literal_runs
from quire.tokenizer.tokenizer import Tokenizer

BUNDLED = next((Path(__file__).parents[2] / "src/quire/bundled").rglob("tokenizer.json"))
OUT_OF_BOUNDS = base64.b64encode((8).to_bytes(4, "little") + b"\xff" * 8 + b"abc").decode()
ID_WITHOUT_TOKEN = {"SpecialToken": {"id": "zz", "type_id": 0}}
SPLIT_BY_NOTHING = {"type": "FixedLength", "length": 0}

FAILING: dict[str, dict[str, Any]] = {
    "panic in the normalizer": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": OUT_OF_BOUNDS}
    },
    "panic in the splitter": {"pre_tokenizer": SPLIT_BY_NOTHING},
    "no unknown token": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"}},
    "no unknown id": {"model": {"type": "Unigram", "vocab": [["b", 0.0]], "unk_id": None}},
}


def folder_with(path: Path, changes: dict[str, Any]) -> Path:
    (path / "tokenizer.json").write_text(json.dumps(json.loads(BUNDLED.read_text()) | changes))
    return path


@pytest.mark.parametrize("changes", FAILING.values(), ids=FAILING)
def test_a_failure_is_the_texts_refusal(tmp_path: Path, changes: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, changes))
    for encode in (tokenizer.encode, tokenizer.encode_prompt, tokenizer.encode_inside):
        with pytest.raises(InvalidRequestError, match="tokenizer fails on this text"):
            encode("hello world")
    with pytest.raises(InvalidRequestError):
        tokenizer.bad_words_ids(["hello"])


def test_a_panic_while_it_is_read_is_a_damaged_folder(tmp_path: Path) -> None:
    changes = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
    with pytest.raises(CheckpointError, match="damaged"):
        Tokenizer.from_folder(folder_with(tmp_path, changes))


def test_keyboard_interrupt_is_no_failure() -> None:
    assert is_failure(ValueError())
    for interrupt in (KeyboardInterrupt, SystemExit, GeneratorExit):
        assert not is_failure(interrupt())


USUAL = [
    r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?:\r?\n)+(?!\r?\n)| ?\p{L}+",
    r"(\p{N})(?=(\p{N}{3})+(?!\p{N}))",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+",
]
SLOW = [r"(a+)+$", r"(a|aa)+$", r"(ab|a|b)+$", r"([a-z]+)*=", r"(?:\p{L}+ ?)+\d$", r"a*a*a*a*a*a*$"]
SLOW += [r"(\[+)+$", r"(xyz|xyz)+$", r"bcdefghijklm|(z+)+$", r"([+*]+)+$"]


def splitting(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return {"pre_tokenizer": split | {"invert": False}}


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_patterns_are_taken(tmp_path: Path, pattern: str) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, splitting(pattern)))
    assert tokenizer.encode("aaa 1\n")


@pytest.mark.parametrize("pattern", SLOW)
def test_a_pattern_of_exponential_time_is_refused_by_name(tmp_path: Path, pattern: str) -> None:
    text = rf"its pre_tokenizer {re.escape(json.dumps(pattern)[1:-1])} takes exponential time"
    with pytest.raises(CheckpointError, match=text):
        Tokenizer.from_folder(folder_with(tmp_path, splitting(pattern)))


def test_a_pattern_of_the_normalizer(tmp_path: Path) -> None:
    replace = {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": "b"}
    with pytest.raises(CheckpointError, match="its normalizer"):
        Tokenizer.from_folder(folder_with(tmp_path, {"normalizer": replace}))


def test_a_pattern_of_the_decoder(tmp_path: Path) -> None:
    replace = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
    sequence = {"type": "Sequence", "decoders": [{"type": "Fuse"}, replace]}
    with pytest.raises(CheckpointError, match="its decoder"):
        Tokenizer.from_folder(folder_with(tmp_path, {"decoder": sequence}))


def runs_that_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the check tries from now on, each of them in so many seconds."""
    runs: list[str] = []

    def run_seconds(_: object, text: str) -> float:
        runs.append(text)
        return seconds

    monkeypatch.setattr(pattern_check, "_run_seconds", run_seconds)
    return runs


@pytest.mark.parametrize(
    ("seconds", "pattern", "most"),
    [
        (0.04, "a", pattern_check.MAX_TOTAL),
        (0.04, "(b|a)+", pattern_check.MAX_TOTAL),
        (0.0011, "(b|a)+", pattern_check.MAX_TOTAL + pattern_check.MAX_PAIRS),
    ],
)
def test_many_texts_that_are_each_a_little_slow_are_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, pattern: str, most: float
) -> None:
    runs = runs_that_take(seconds, monkeypatch)
    with pytest.raises(CheckpointError, match="its pre_tokenizer"):
        Tokenizer.from_folder(folder_with(tmp_path, splitting(pattern)))
    assert len(runs) * seconds < most + 2 * seconds


def test_many_texts_of_usual_time_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_that_take(5e-4, monkeypatch)
    letters = "".join(map(chr, range(0x3B1, 0x3C9)))
    Tokenizer.from_folder(folder_with(tmp_path, splitting(f"([{letters}])+")))
    most = pattern_check.MAX_TOTAL + pattern_check.MAX_PAIRS
    assert pattern_check.MAX_PAIRS < len(runs) * 5e-4 < most + 1e-3


def test_literals_of_escapes_and_classes() -> None:
    found = literal_characters([r"\[\x7a\x{e9}\u4e2d\101\n[+*]\p{L}\d(b\xd800)"])
    assert "".join(found) == "[z\u00e9\u4e2dA\n+*b\u00d80"
    assert literal_characters([r"\uD800\x{110000}\w$^"]) == []
    assert literal_runs([r"(xyz|uv\.)+q\p{L}s"]) == ["xyz", "uv."]
