"""Folders whose tokenizer.json makes the `tokenizers` library fail or panic."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from child_process import run_to_end
from cpu_limit import cpu_limit
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from quire.background import CallerGoneError, CancelFlag, TooLongError, hurry, working_for
from quire.errors import CheckpointError, InvalidRequestError, OverloadedError, is_failure
from quire.gguf.pre_tokenizers import PRE_TOKENIZERS
from quire.tokenizer import encoding_guard, pattern_check
from quire.tokenizer.control_names import tokenizer_json
from quire.tokenizer.encoding_subprocess import Question
from quire.tokenizer.pattern_check import QUICK_CHARS, quick_chars
from quire.tokenizer.pattern_cost import num_attempts
from quire.tokenizer.pattern_literals import literal_characters, literal_runs
from quire.tokenizer.tokenizer import Tokenizer

BUNDLED = next((Path(__file__).parents[2] / "src/quire/bundled").rglob("tokenizer.json"))
OUT_OF_BOUNDS = base64.b64encode((8).to_bytes(4, "little") + b"\xff" * 8 + b"abc").decode()
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


WITHOUT_THREADS = """
import sys
from pathlib import Path
from quire.tokenizer.tokenizer import Tokenizer
tokenizer = Tokenizer.from_folder(Path(sys.argv[1]))
print(*(tokenizer.decode(tokenizer.encode(text)) for text in ("red", "shoes")))
"""


def test_a_text_is_encoded_where_the_library_gets_no_threads() -> None:
    env = os.environ | {"RUST_MIN_STACK": str(1 << 47)}  # of a thread: beyond all addresses
    env.pop("TOKENIZERS_PARALLELISM", None)
    command = [sys.executable, "-c", WITHOUT_THREADS, str(BUNDLED.parent)]
    run = run_to_end(command, env=env)
    assert run.stdout == "red shoes\n", run.stderr
    assert "thread pool has not been initialized" in run.stderr


ADDED = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
UNUSUAL: dict[str, dict[str, Any]] = {
    "two names of one id": {
        "vocab": {"a": 0, "b": 1, "c": 2, "bc": 2, "ab": 3, "abc": 4},
        "merges": [["b", "c"], ["a", "b"], ["a", "bc"]],
    },
    "a mark of a word's inside": {
        "vocab": {"a": 0, "##b": 1, "##c": 2, "ab": 3, "abc": 4, "##bc": 5, "b": 6},
        "merges": [["##b", "##c"], ["a", "##b"], ["ab", "##c"], ["a", "##bc"]],
        "continuing_subword_prefix": "##",
    },
}


@pytest.mark.parametrize("model", UNUSUAL.values(), ids=UNUSUAL)
def test_names_of_control_tokens_are_text_in_unusual_vocabularies(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    control = [{"id": 3, "content": "ab", "special": True} | ADDED]
    unused = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    changes = {"model": {"type": "BPE", **model}, "added_tokens": control}
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, unused | changes))
    assert tokenizer.encode("abc", parse_special=True)[0] == 3
    assert tokenizer.encode("abc") == [4]
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    copy = tokenizers.Tokenizer.from_str(tokenizer_json(backend))
    assert copy.encode("bc").ids == backend.encode("bc").ids
    sent = pickle.loads(pickle.dumps(tokenizer))
    assert (sent.encode("abc"), sent.encode("bc")) == ([4], backend.encode("bc").ids)
    assert sent.vocabulary() == tokenizer.vocabulary()


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


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "<a>"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": ""},
        {"type": "Strip", "content": "a", "start": 1, "stop": 0},
        {"type": "Metaspace", "replacement": "a", "prepend_scheme": "always", "split": True},
    ],
)
def test_a_decoder_may_change_any_letter(tmp_path: Path, decoder: dict[str, Any]) -> None:
    folder = folder_with(tmp_path, {"decoder": decoder})
    tokenizer, library = (
        Tokenizer.from_folder(folder),
        tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json"),
    )
    letters = [library.token_to_id(letter) for letter in "ab"]
    for ids in itertools.product(letters, repeat=3):
        assert tokenizer.decode(ids) == library.decode(list(ids))


def replacing(pattern: dict[str, str], made: str, count: int, part: str) -> dict[str, Any]:
    """A normalizer or a decoder that replaces several times."""
    step = {"type": "Replace", "pattern": pattern, "content": made}
    return {part: {"type": "Sequence", f"{part}s": [step] * count}}


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize(
    ("pattern", "made", "count", "is_taken"),
    [
        ({"String": "a"}, "aa", 9, False),  # not more: what does not refuse it has to read it
        ({"String": "a"}, "a" * 300, 1, False),
        ({"Regex": "a"}, "aa", 9, False),
        ({"Regex": "b*"}, "a", 9, False),
        ({"Regex": "^|$"}, "a", 9, False),
        ({"Regex": r"(a\b)\1"}, "a", 9, False),  # which nobody understands
        ({"String": "▁"}, " ", 60, True),
        ({"String": "ab"}, "ba", 60, True),
        ({"Regex": " {2,}"}, " ", 60, True),
        ({"Regex": r"(?:\r\n|[\r\n])(?=a)"}, "\n", 3, True),
    ],
)
def test_texts_that_grow_a_lot_are_refused(
    tmp_path: Path, pattern: dict[str, str], made: str, count: int, is_taken: bool, part: str
) -> None:
    folder = folder_with(tmp_path, replacing(pattern, made, count, part))
    if is_taken:
        assert Tokenizer.from_folder(folder)
        return
    with pytest.raises(CheckpointError, match=f"its {part} may make more than 256 characters"):
        Tokenizer.from_folder(folder)


def precompiled(made: str) -> dict[str, Any]:
    """SentencePiece's table of replacements that makes a text of each `a`."""
    index = np.zeros(512, "<u4")
    index[0], index[256 ^ ord("a")] = 256 << 10, 1 << 10 | 1 << 8 | ord("a")  # to 256, to a leaf
    table = np.uint32(index.nbytes).tobytes() + index.tobytes() + made.encode() + b"\0"
    encoded = base64.b64encode(table).decode()
    return {"type": "Precompiled", "precompiled_charsmap": encoded}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
# of which a form of Unicode makes 18 characters
LIGATURE = {"type": "Replace", "pattern": {"Regex": "."}, "content": "\ufdfa"}


@pytest.mark.parametrize(
    ("steps", "splits", "growing"),
    [
        ([precompiled("aa")] * 9, [], "normalizer"),
        ([precompiled("a" * 300)], [], "normalizer"),
        ([BYTES] * 5, [], "normalizer"),
        ([], [BYTES] * 5, "pre_tokenizer"),
        ([BYTES] * 2, [BYTES] * 3, "normalizer"),
        ([precompiled("a" * 18)] + [{"type": "NFKD"}] * 9, [BYTES], None),
        ([LIGATURE, {"type": "NFKD"}] * 2, [], "normalizer"),
        ([precompiled("\ufdfa"), {"type": "NFKC"}] * 2, [], "normalizer"),
        ([LIGATURE, {"type": "NFKD"}], [], None),
        ([], [], None),
    ],
)
def test_tables_and_bytes_of_bytes_count_as_replacements_do(
    tmp_path: Path, steps: list[dict[str, Any]], splits: list[dict[str, Any]], growing: str | None
) -> None:
    changes = {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
    }
    folder = folder_with(tmp_path, changes)
    if growing is None:
        assert Tokenizer.from_folder(folder)
        return
    with pytest.raises(CheckpointError, match=f"its {growing} may make more than 256 characters"):
        Tokenizer.from_folder(folder)


def test_the_table_of_these_tests_is_one_that_the_library_reads() -> None:
    table = precompiled("ab")["precompiled_charsmap"]
    normalizer = tokenizers.normalizers.Precompiled(base64.b64decode(table))
    assert tokenizers.normalizers.Sequence([normalizer] * 3).normalize_str("a") == "abbb"


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
def test_usual_patterns_are_quick(tmp_path: Path, pattern: str) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, splitting(pattern)))
    is_repeated_group = ")+" in pattern  # costly, whatever is in it
    assert quick_chars(tokenizer._backend) == (0 if is_repeated_group else QUICK_CHARS)


def test_each_gguf_pattern_is_quick() -> None:
    patterns = [kind.pattern for kind in PRE_TOKENIZERS.values() if kind.pattern]
    assert patterns
    most = max(num_attempts([pattern], QUICK_CHARS) for pattern in patterns)
    assert most * QUICK_CHARS < pattern_check.MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("expression", "attempts"),
    [
        ("abc", 1),
        ("a|b|c", 3),
        ("a*", 1 + 1),
        ("a*b", QUICK_CHARS + 1),
        ("a*b*c", (QUICK_CHARS + 1) ** 2),
        ("a+b?", 1 + 1),
        ("a?a?b", 4),
        ("a{1,3}b", 3),
        ("a{2}b", 1),
        ("(a|b)(a|b)c", 4),
        ("(?=a*)a", QUICK_CHARS + 1),
        (r"[^\]\s]*?[[:alpha:]]", QUICK_CHARS + 1),
        (r"\p{L}+(?i:'s|'t)?", 1 + 2),
        ("(a|b)?c", 3),
    ],
)
def test_attempts_count_what_may_be_tried_again(expression: str, attempts: float) -> None:
    assert num_attempts([expression], QUICK_CHARS) == attempts


COVERED = [r"a*b|a+", r"a*b|a+(?!c)|a*", r"x?a*b|y?a+b?", r"a+(?!b)|a+", r"[ab]*?c+|[ab]+"]
NOT_COVERED = [
    *("a*b", "a*b|a|a+", "a*b|a+?", "a*b|a{2,}", "a*b|xa+", "a*b|a+c", "a*a*b|a+", "a*b|[ab]+"),
    *("a*b|a+(?!b|c)|a+", "a*b|a+(?!c*)|a+", "a*(?:b+)?c|a+", "xxa*b|a+", "(?:a*b)|a+", "a+|a*b"),
]


def _seconds(splitter: Split, text: str) -> float:
    begin = time.thread_time()
    splitter.pre_tokenize_str(text)
    return time.thread_time() - begin


@pytest.mark.parametrize("expression", COVERED)
def test_what_is_tried_in_vain_and_matched_next_is_quick(expression: str) -> None:
    assert num_attempts([expression], QUICK_CHARS) < 64
    splitter = Split(Regex(expression), "isolated")
    for text in ("a" * QUICK_CHARS, "ab" * (QUICK_CHARS // 2), "aab" * 2730, "xya" * 2730):
        # else 0.5 s and more; the quickest of three, as other processes slow a core down
        assert any(_seconds(splitter, text) < 0.2 for _ in range(3))


@pytest.mark.parametrize("expression", NOT_COVERED)
def test_what_is_tried_in_vain_again_and_again_is_not_quick(expression: str) -> None:
    assert num_attempts([expression], QUICK_CHARS) > QUICK_CHARS / 2


@pytest.mark.parametrize(
    ("expression", "most"), [("a*b", 512), ("a*a*b", 64), (r"\p{Thai}*" * 3 + "Q", 0)]
)
def test_quick_texts_are_as_long_as_their_attempts_allow(
    tmp_path: Path, expression: str, most: int
) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, splitting(expression)))
    assert quick_chars(tokenizer._backend) == most


@pytest.mark.parametrize(
    "expression",
    [
        *(*SLOW, r"(a)\1", r"(?<n>a)\g<n>", "a++b", "(?~a)", "(?(1)a|b)", "(?x: a)", "(?:a*b)*"),
        *("(?:a{2}){2}b", "[]a]", "a{2", "(a", "a)", "(", "*a", "(" * 40 + ")" * 40, "\\"),
        *(r"\p{Tibetan}{2}?" * 20 + "[c-f]", "a{1}?", "a{}b", "a{,}b", "a{3,2}b"),
    ],
)
def test_what_is_not_understood_or_too_much_is_costly(expression: str) -> None:
    assert num_attempts([expression], QUICK_CHARS) > pattern_check.MAX_ATTEMPTS / 32


@pytest.mark.parametrize(
    "expression",
    [
        *("[" + "&" * 100_000, "[" + r"\p{a}" * 20_000, "[" * 100_000, r"\[" * 50_000),
        *("a{" + "1" * 100_000, "a{" + "1" * 5000 + "}", r"\p{" * 33_000, r"\x{" * 33_000),
        "|".join(["a+(?!c)"] * 12_500),
    ],
)  # fmt: skip
def test_an_expression_is_read_in_time_proportional_to_it(expression: str) -> None:
    with cpu_limit(5.0):  # of a busy machine; by the square it takes minutes
        assert num_attempts([expression], QUICK_CHARS) > 0
        assert len(literal_runs([expression])) < 2
        assert not pattern_check.has_repeated_group(expression)


def test_groups_that_are_repeated_are_found_beside_classes_and_escapes() -> None:
    for expression in ("(a+)+", "[)](a+)*", r"\[(a+) {2}", r"(?<n>a)\g<n>", "(?#[)(a+)+"):
        assert pattern_check.has_repeated_group(expression)
    for expression in ("[(a)+]", r"\(a\)+", r"[\])+]", "(a+)b+", r"\[)a*", "a|[)]*"):
        assert not pattern_check.has_repeated_group(expression)


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    """A tokenizer that takes long for some texts, which have 0.06 s."""
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS", 0.06)
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS_PER_CHAR", 0.0)
    monkeypatch.setattr(encoding_guard, "WALL_SECONDS_PER_SECOND", 6000)
    return Tokenizer.from_folder(folder_with(tmp_path, splitting(HIDDEN)))


def test_texts_that_take_too_long_are_refused_and_all_others_are_read(hidden: Tokenizer) -> None:
    texts = ["ab", "hello <|end|> \u00fc\u4e2d", "x" * 9000]
    ids = [hidden.encode(text) for text in texts]
    raw = hidden.encode_prompt(texts[1])
    for _ in range(3):  # in a thread, then in child processes
        with pytest.raises(InvalidRequestError, match="not finished this text after"):
            hidden.encode(SLOW_TEXT)
    guard = hidden._encoder._guard
    assert len(guard._left_behind) <= 1
    assert [hidden.encode(text) for text in texts] == ids
    assert hidden.encode_prompt(texts[1]) == raw != ids[1]


def test_those_that_came_together_are_all_that_are_left_behind(hidden: Tokenizer) -> None:
    with ThreadPoolExecutor(6) as pool:
        errors = [pool.submit(hidden.encode, SLOW_TEXT).exception for _ in range(6)]
        assert all(isinstance(error(), InvalidRequestError) for error in errors)
    assert len(hidden._encoder._guard._left_behind) <= encoding_guard.MAX_THREADS
    assert hidden.encode("ab")


def test_a_process_fails_as_a_thread_does(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, {"pre_tokenizer": SPLIT_BY_NOTHING}))
    tokenizer._encoder._guard._is_slow = True
    with pytest.raises(InvalidRequestError, match="tokenizer fails on this text"):
        tokenizer.encode("a" * (QUICK_CHARS + 1))


def test_a_costly_pattern_never_runs_on_the_event_loop(tmp_path: Path) -> None:
    costly = Tokenizer.from_folder(folder_with(tmp_path, splitting(HIDDEN)))
    with hurry():
        assert costly.encode("ab")
        with pytest.raises(TooLongError):
            costly.encode("a" * 65)
        usual = Tokenizer.from_folder(folder_with(tmp_path, splitting(USUAL[0])))
        assert usual.encode("a" * QUICK_CHARS)
        with pytest.raises(TooLongError):
            usual.encode("a" * (QUICK_CHARS + 1))


def guard_of_nothing() -> encoding_guard.EncodingGuard:
    """Its child processes never start."""
    return encoding_guard.EncodingGuard(lambda: "")


QUESTION = Question("a", is_broken=False, add_special_tokens=False)


def test_an_interrupt_leaves_no_thread_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, go, ended = guard_of_nothing(), threading.Event(), threading.Event()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(encoding_guard, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            guard.ids(lambda: [int(go.wait(30))], QUESTION)
    (left,) = guard._left_behind
    with monkeypatch.context() as patch:
        patch.setattr(encoding_guard.EncodingSubprocess, "ids", lambda *_: [5])
        assert guard.ids(lambda: [7], QUESTION) == [5]
    left.add_done_callback(lambda _: ended.set())
    go.set()
    assert ended.wait(30)
    assert guard.ids(lambda: [7], QUESTION) == [7]


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Ends abandoned threads; set at the end. Child processes answer 5."""
    event = threading.Event()
    monkeypatch.setattr(encoding_guard.EncodingSubprocess, "ids", lambda *_: [5])
    yield event
    event.set()


def abandon(guard: encoding_guard.EncodingGuard, encode: encoding_guard.Encode) -> None:
    """Encode for a caller that leaves as soon as the thread runs."""
    flag = CancelFlag()

    def leave() -> list[int]:
        flag.is_set = True
        return encode()

    with working_for(flag), pytest.raises(CallerGoneError):
        guard.ids(leave, QUESTION)


def test_few_callers_that_leave_send_nobody_to_a_child_process(go: threading.Event) -> None:
    guard = guard_of_nothing()
    for _ in range(encoding_guard.MAX_THREADS - 1):
        abandon(guard, lambda: [int(go.wait(30))])
        assert guard.ids(lambda: [7], QUESTION) == [7]
    abandon(guard, lambda: [int(go.wait(30))])
    assert guard.ids(lambda: [7], QUESTION) == [5], "as many threads as may be"
    ended = threading.Barrier(encoding_guard.MAX_THREADS + 1)
    for result in list(guard._abandoned):
        result.add_done_callback(lambda _: ended.wait(30))
    go.set()
    ended.wait(30)
    assert guard.ids(lambda: [7], QUESTION) == [7]


def test_an_abandoned_thread_that_takes_too_long_sends_texts_to_a_child_process(
    go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> list[int]:
        while not go.is_set():
            pass
        return []

    guard = guard_of_nothing()
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS", 0.5)
    abandon(guard, work)
    end = time.monotonic() + 30.0
    while guard.ids(lambda: [7], QUESTION) == [7]:
        assert time.monotonic() < end


def test_a_thread_without_processor_time_says_nothing_about_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard, go = guard_of_nothing(), threading.Event()
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS", 0.002)
    monkeypatch.setattr(encoding_guard, "_SHORTEST_WAIT", 0.002)
    with pytest.raises(OverloadedError, match="little processor time"):
        guard.ids(lambda: [int(go.wait(30))], QUESTION)
    assert not guard._is_slow
    go.set()


def test_those_that_run_are_waited_for() -> None:
    guard, together = guard_of_nothing(), threading.Barrier(2)
    with ThreadPoolExecutor(10) as pool:
        calls = [pool.submit(guard.ids, lambda: [together.wait(30)], QUESTION) for _ in range(10)]
    assert sorted(call.result() for call in calls) == [[0]] * 5 + [[1]] * 5


def test_no_thread_or_process_is_a_reason_to_try_again_later(
    no_thread_left: Callable[[], AbstractContextManager[None]],
) -> None:
    guard = guard_of_nothing()
    with no_thread_left():
        with pytest.raises(OverloadedError, match="no thread could be started"):
            guard.ids(lambda: [1], QUESTION)
        guard._is_slow = True
        with pytest.raises(OverloadedError, match="at the moment"):
            guard.ids(lambda: [1], QUESTION)


def test_no_thread_waits_forever_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = guard_of_nothing()
    guard._is_slow = True
    for _ in range(encoding_guard.MAX_CHILDREN):
        guard._children.get_nowait()
    monkeypatch.setattr(encoding_guard, "MAX_SECONDS", 0.0005)
    with pytest.raises(OverloadedError, match="keep the processes for the tokenizer busy"):
        guard.ids(lambda: [1], QUESTION)
