"""Folders whose tokenizer.json makes the `tokenizers` library fail or panic."""

from __future__ import annotations

import base64
import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quire.background import TooLongError, hurry
from quire.errors import CheckpointError, InvalidRequestError, OverloadedError, is_failure
from quire.gguf.pre_tokenizers import PRE_TOKENIZERS
from quire.tokenizer import encoding_guard, pattern_check
from quire.tokenizer.pattern_check import LONG_CHARS
from quire.tokenizer.pattern_cost import num_attempts
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
    text = rf"its pre_tokenizer {re.escape(json.dumps(pattern)[1:-1])} may take very long"
    with pytest.raises(CheckpointError, match=text):
        Tokenizer.from_folder(folder_with(tmp_path, splitting(pattern)))


def test_a_pattern_of_the_normalizer(tmp_path: Path) -> None:
    replace = {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": "b"}
    with pytest.raises(CheckpointError, match="its normalizer"):
        Tokenizer.from_folder(folder_with(tmp_path, {"normalizer": replace}))


@pytest.mark.parametrize("pattern", ["(a+)+$", "\\p{Thai}*\\p{Thai}*b"])
def test_a_pattern_of_the_decoder(tmp_path: Path, pattern: str) -> None:
    replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"}
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


# Taken at load, and slow on a text that no check could try: 700 characters take 0.25 s.
HIDDEN = r"\p{Thai}*\p{Thai}*Q"
SLOW_TEXT = "\u0e01" * 700 + "!Q"


@pytest.mark.parametrize("pattern", USUAL)
def test_num_attempts_usual_patterns(pattern: str) -> None:
    if ")+" in pattern:  # groups that are repeated are costly, whatever is in them
        assert num_attempts([pattern], LONG_CHARS) == math.inf
    else:
        assert num_attempts([pattern], LONG_CHARS) < pattern_check.MAX_ATTEMPTS


def test_num_attempts_each_gguf_pattern() -> None:
    patterns = [kind.pattern for kind in PRE_TOKENIZERS.values() if kind.pattern]
    assert patterns
    assert (
        max(num_attempts([pattern], LONG_CHARS) for pattern in patterns)
        < pattern_check.MAX_ATTEMPTS
    )


@pytest.mark.parametrize(
    ("expression", "attempts"),
    [
        ("abc", 1),
        ("a|b|c", 3),
        ("a*", 1 + 1),
        ("a*b", LONG_CHARS + 1),
        ("a*b*c", (LONG_CHARS + 1) ** 2),
        ("a+b?", 1 + 1),
        ("a?a?b", 4),
        ("a{1,3}b", 3),
        ("a{2}b", 1),
        ("(a|b)(a|b)c", 4),
        ("(?=a*)a", LONG_CHARS + 1),
        (r"[^\]\s]*?[[:alpha:]]", LONG_CHARS + 1),
        (r"\p{L}+(?i:'s|'t)?", 1 + 2),
        ("(a|b)?c", 3),
    ],
)
def test_attempts_count_what_may_be_tried_again(expression: str, attempts: float) -> None:
    assert num_attempts([expression], LONG_CHARS) == attempts


@pytest.mark.parametrize(
    "expression",
    [
        *(*SLOW, r"(a)\1", r"(?<n>a)\g<n>", "a++b", "(?~a)", "(?(1)a|b)", "(?x: a)", "(?:a*b)*"),
        *("(?:a{2}){2}b", "[]a]", "a{2", "(a", "a)", "(", "*a", "(" * 40 + ")" * 40, "\\"),
        *(r"\p{Tibetan}{2}?" * 20 + "[c-f]", "a{1}?", "a{}b", "a{,}b", "a{3,2}b"),
    ],
)
def test_what_is_not_understood_or_too_much_is_costly(expression: str) -> None:
    assert num_attempts([expression], LONG_CHARS) > pattern_check.MAX_ATTEMPTS


def test_a_text_that_takes_too_long_is_refused_and_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, splitting(HIDDEN)))
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS", 0.01)
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS_PER_CHAR", 0.0)
    with pytest.raises(InvalidRequestError, match="not finished this text after"):
        tokenizer.encode(SLOW_TEXT)
    assert tokenizer.encode("ab")


def test_a_costly_pattern_never_runs_on_the_event_loop(tmp_path: Path) -> None:
    costly = Tokenizer.from_folder(folder_with(tmp_path, splitting(HIDDEN)))
    with hurry():
        with pytest.raises(TooLongError):
            costly.encode("ab")
        usual = Tokenizer.from_folder(folder_with(tmp_path, splitting(USUAL[0])))
        assert usual.encode("a" * LONG_CHARS)
        with pytest.raises(TooLongError):
            usual.encode("a" * (LONG_CHARS + 1))


def test_only_so_many_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, go, ended = encoding_guard.EncodingGuard(), threading.Event(), threading.Semaphore(0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(encoding_guard, "wait", interrupted)
        for _ in range(encoding_guard.MAX_LEFT_BEHIND):
            with pytest.raises(KeyboardInterrupt):
                guard.run(lambda: go.wait(30), 1)
            for left in guard._left_behind:
                left.add_done_callback(lambda _: ended.release())
    with pytest.raises(OverloadedError, match="busy with 4 texts"):
        guard.run(bool, 1)
    go.set()
    assert ended.acquire(timeout=30)
    assert guard.run(lambda: 7, 1) == 7


def test_those_that_run_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, go = encoding_guard.EncodingGuard(), threading.Event()
    started: list[int] = []
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS", 0.002)
    monkeypatch.setattr(encoding_guard, "_SHORTEST_WAIT", 0.002)

    def encode() -> None:
        started.append(1)
        go.wait(30)

    with ThreadPoolExecutor(10) as pool:
        errors = [
            call.exception() for call in [pool.submit(guard.run, encode, 1) for _ in "a" * 10]
        ]
    assert len(started) == len(guard._left_behind) == encoding_guard.MAX_LEFT_BEHIND
    assert all(isinstance(error, OverloadedError) for error in errors)
    assert sum("little processor time" in str(error) for error in errors) == len(started)
    go.set()


def test_those_that_run_are_waited_for() -> None:
    guard, together = encoding_guard.EncodingGuard(), threading.Barrier(2)
    with ThreadPoolExecutor(10) as pool:
        calls = [pool.submit(guard.run, partial(together.wait, 30), 1) for _ in range(10)]
    assert sorted(call.result() for call in calls) == [0] * 5 + [1] * 5
    assert not guard._running


def test_no_thread_is_a_reason_to_try_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    guard = encoding_guard.EncodingGuard()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OverloadedError, match="no thread could be started"):
        guard.run(bool, 1)
    assert not guard._running
