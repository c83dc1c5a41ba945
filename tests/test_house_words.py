"""House rules for words: names are the field's terms, and texts are plain."""

from __future__ import annotations

import ast
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import house_words
import pytest
from house_files import FILES, NATIVE, PROGRAMS, ROOT, TESTS, expect_none, nodes


def old_words_in(path: Path) -> Iterator[str]:
    """Old words among the parts of a file's name and of each identifier in it."""
    old = {word for words in house_words.OLD_WORDS for word in words.split()}
    if path in NATIVE:
        code = re.sub(r"//.*|/\*.*?\*/|\"(\\.|[^\"\\])*\"", "", path.read_text(encoding="utf-8"))
        names = re.findall(r"[A-Za-z_]\w*", code)
    else:
        with path.open("rb") as file:
            names = [t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.NAME]
    for before, name in itertools.pairwise(("", path.stem, *names)):
        if not {name, f"{before}.{name}"} & house_words.ALLOWED:
            parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
            yield from {part.lower() for part in parts} & old


@pytest.mark.parametrize(
    ("files", "known"),
    [
        (FILES, house_words.KNOWN),
        (NATIVE, house_words.KNOWN_IN_NATIVE),
        (PROGRAMS, house_words.KNOWN_IN_PROGRAMS),
        (TESTS, house_words.KNOWN_IN_TESTS),
    ],
    ids=["src", "native", "programs", "tests"],
)
def test_names_are_the_terms_of_the_field(files: list[Path], known: dict[str, int]) -> None:
    found = {path: Counter(old_words_in(path)) for path in files}
    total = sum(found.values(), Counter[str]())
    instead = {w: new for words, new in house_words.OLD_WORDS.items() for w in words.split()}
    expect_none(
        f"{path}: {words[word]} of {total[word]} names with {word!r}, at most "
        f"{known.get(word, 0)} are left: say {instead[word]}"
        for path, words in found.items()
        for word in words
        if total[word] > known.get(word, 0)
    )


def old_phrases_in(path: Path) -> Iterator[str]:
    """Old phrases in a file, also those that are broken over lines of text or of a comment."""
    text = path.read_text(encoding="utf-8").lower()
    for phrase, instead in house_words.OLD_TEXT.items():
        for match in re.finditer(phrase.replace(" ", r"[\s#/]+"), text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: {match[0]!r}: say {instead}"


def test_no_file_has_old_phrases() -> None:
    """Code, comments and docstrings, C++ and the pages."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    files = [path for path in (*FILES, *PROGRAMS, *TESTS) if path.stem != house_words.__name__]
    expect_none(fault for path in (*files, *NATIVE, *pages) for fault in old_phrases_in(path))


@pytest.mark.parametrize("text", ["WI{}SHES", "what\n    # is{} so", "// whose\n// they{} are"])
def test_an_old_phrase_is_found(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n" + text.format(""))
    assert [fault.split(": ")[0] for fault in old_phrases_in(page)] == [f"{page}:2"]
    page.write_text(text.format("x"))
    assert list(old_phrases_in(page)) == []


def test_texts_are_plain() -> None:
    """Messages, help and docstrings."""
    expect_none(
        f"{path}:{node.lineno}: {node.value.strip()[:60]!r}: say {instead}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for phrase, instead in house_words.OLD_PHRASES.items()
        if re.search(phrase, node.value)
    )
