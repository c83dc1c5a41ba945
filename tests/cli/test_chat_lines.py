"""Messages that are typed or piped into a chat."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.cli.chat_lines import DroppedMessageError, read_messages


def test_ctrl_c_at_the_prompt_does_not_end_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed: list[str | type[BaseException]] = ["hi", KeyboardInterrupt, "more", EOFError]

    def read(_: str) -> str:
        if isinstance(word := typed.pop(0), str):
            return word
        raise word

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert list(read_messages()) == ["hi", "more"]
    assert "Ctrl-D leaves" in capsys.readouterr().err


def messages_of(*lines: str | type[Exception]) -> tuple[list[str], list[str]]:
    """The messages of these lines, after which the input ends, and the prompts that were shown."""
    rest, prompts = [*lines, EOFError], list[str]()

    def read(prompt: str) -> str:
        prompts.append(prompt)
        if isinstance(line := rest.pop(0) if rest else EOFError, str):
            return line
        raise line

    return list(read_messages(read)), prompts


def test_a_message_of_several_lines() -> None:
    quotes = '"' * 3
    lines = [f"{quotes}one\n", "\n", f"  two{quotes}\n", f"{quotes}three{quotes}\n", "four\n"]
    found, prompts = messages_of(*lines)
    assert found == ["one\n\n  two", "three", "four"]
    assert prompts == ["> ", "... ", "... ", "> ", "> ", "> "]
    assert messages_of(f"{quotes}open\n", "end")[0] == ["open\nend"]


def test_ctrl_c_drops_all_lines_of_a_message() -> None:
    assert messages_of('"' * 3 + "one", "two", DroppedMessageError, "/quit")[0] == ["/quit"]


def typed(*texts: bytes, stdout: int | None = None, **variables: str) -> tuple[bytes, list[str]]:
    """What a terminal shows that has each text typed after a prompt, and the messages of them.

    stdout: of the process, if not that terminal.
    """
    code = (
        "from quire.cli.chat_lines import read_messages\n"
        "for message in read_messages(): print(ascii(message), flush=True)"
    )
    master, slave = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=slave, stdout=slave if stdout is None else stdout, stderr=slave,
        env={**os.environ, **variables},
    ) as process:  # fmt: skip
        os.close(slave)
        shown = b""
        for text in texts:
            end = len(shown)
            while b"> " not in shown[end:]:
                shown += os.read(master, 4096)
            os.write(master, text)
        with suppress(OSError):  # EIO: the process has ended
            while more := os.read(master, 4096):
                shown += more
        os.close(master)
    assert process.returncode == 0
    lines = shown.decode(errors="replace").splitlines()
    return shown, [line for line in lines if line.startswith("'")]


def test_lines_that_are_pasted_together_are_one_message() -> None:
    """The terminal is asked to mark what is pasted."""
    paste = b"\x1b[200~one\ntwo\x1b[201~\r"
    shown, messages = typed(paste, b"three\r", b"\x04", TERM="xterm")
    assert b"\x1b[?2004h" in shown
    assert messages == [r"'one\ntwo'", "'three'"]


def test_what_is_typed_is_utf8_in_any_locale() -> None:
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb"}
    for text, message in (("gr\u00fcn".encode(), r"'gr\xfcn'"), (b"gr\xfcn", r"'gr\udcfcn'")):
        assert typed(text + b"\r", b"\x04", **c_locale)[1] == [message]


def test_prompts_are_not_among_answers_that_go_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "answers").open("wb") as file:
        shown, _ = typed(b"one\r", b"\x04", stdout=file.fileno())
    assert shown.count(b"> ") == 2
    assert (tmp_path / "answers").read_bytes() == b"'one'\n"
