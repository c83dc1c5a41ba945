"""Hostile `--config` files: one sentence, in bounded time and memory, whatever they hold."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest
from cpu_limit import cpu_limit

from quire import input_file
from quire.cli.models_file import ConfigFile
from quire.errors import UserError
from quire.input_file import read_file

NUM_LEVELS = 12
NAMES = ("port", "allowed_origins", "compilation_config", "x")


def levels(first: str, outer: str) -> str:
    """A list in which each item has the one before nine times, by aliases."""
    names = [", ".join([f"*a{level}"] * 9) for level in range(NUM_LEVELS)]
    nested = [f"&a{level} {outer.replace('@', name)}" for level, name in enumerate(names, 1)]
    items = [f"&a0 {first}", *nested]
    return f"[{', '.join(items)}]"


VALUES = {
    "a billion laughs": levels("[lol]", "[@]"),
    "a billion keys": levels("{x: 1}", "{<<: [@]}"),
    "a list in itself": "&a [*a]",
    "a map in itself": "&a {x: *a}",
    "nested deeply": "[\n" * 30_000,
    "nested, complete": "[" * 300 + "]" * 300,
    "a long number": "9" * 60_000,
    "a long hexadecimal number": "0x" + "f" * 60_000,
    "a long number of seconds": ":".join(["1"] * 25_000),
    "infinite": "1.0e+309",
    "no number": ".nan",
    "code": "!!python/object/apply:os.getcwd []",
    "binary": "!!binary gA==",
    "no date": "2026-99-99",
    "a set": "!!set {a, b}",
    "no integer": "!!int ''",
    "no bool": "!!bool x",
    "a list as a number": "!!float [1]",
    "a long text": "x" * 60_000,
    "a long list": f"[{'x,' * 30_000}]",
    "a NUL": r'"\0"',
    "half of a pair": r'"\ud800"',
    "two lines": r'"a\n\e[31m"',
}
FILES = {
    "a list as a name": b"[1, 2]: 3",
    "a deep name": b"? " + b"[" * 400 + b"]" * 400 + b"\n: 1",
    "a long name": b"k" * 60_000 + b": 1",
    "many names": b"\n".join(b"k%d: 1" % i for i in range(7000)),
    "twice": b"port: 1\nport: 2",
    "two documents": b"port: 1\n---\nport: 2",
    "a NUL": b"port: 1\0",
    "no UTF-8": b"port: \xff",
    "UTF-16": "port: 1".encode("utf-16"),
    "in itself": b"&a {port: *a}",
    "many models": b"models:\n" + b"  - model: x\n" * 5000,
    "a large file": b"# comment\n" * 200_000,
    "a long directive": b"%TAG ! " + b"x" * 60_000,
    "many quotes": b"a: '" + b"'" * 60_000,
    "many dashes": b"- " * 30_000,
    "many anchors": b"a: [" + b",".join(b"&a%d x" % i for i in range(6000)) + b"]",
    "spaces": b" " * 60_000 + b"ghost: 1",
}


def outcome(path: Path) -> str:
    """What is said of a file; empty if it is taken."""
    with cpu_limit(2.0, time.process_time):  # milliseconds; 0.3 s for the worst
        try:
            ConfigFile(str(path)).models({}, "at_start")
            said = ""
        except UserError as error:
            said = str(error)
    return said


def assert_is_a_sentence(said: str) -> None:
    assert said.count("\n") == 0
    assert said.isprintable()
    assert len(said) < 1500  # an unknown name is told with all that are known


@pytest.mark.parametrize("what", VALUES)
def test_hostile_values(tmp_path: Path, what: str) -> None:
    file = tmp_path / "config.yaml"
    for name in NAMES:
        file.write_text(f"{name}: {VALUES[what]}\n")
        assert_is_a_sentence(outcome(file))


@pytest.mark.parametrize("what", FILES)
def test_hostile_files(tmp_path: Path, what: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(FILES[what])
    assert_is_a_sentence(said := outcome(file))
    assert said


def test_damaged_files_end_in_one_sentence(tmp_path: Path) -> None:
    """A usual file with bytes that are changed, doubled and left out."""
    usual = b"port: 8000\napi-key: [a, b]\nmodels:\n  - model: x\n    load: at_start\n"
    rng = random.Random(20)
    file = tmp_path / "config.yaml"
    for _ in range(300):
        data = bytearray(usual)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.choice(
                [
                    b"",
                    b"&a ",
                    b"*a ",
                    b"- ",
                    b"? ",
                    b"!!int ",
                    b"<<: ",
                    b"{",
                    b"]",
                    b"\xff",
                    b"\0",
                    b"|",
                    b"%",
                ]
            ) * rng.randrange(1, 4)
        file.write_bytes(data)
        assert_is_a_sentence(outcome(file))


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "it is a folder" in outcome(tmp_path)
    assert "it is a device" in outcome(Path("/dev/zero"))
    assert "it has no options" in outcome(pipe)
    monkeypatch.setattr(input_file, "PIPE_SECONDS", 0.05)
    writer = os.open(pipe, os.O_RDWR)  # which never writes
    try:
        assert "nothing was written to it" in outcome(pipe)
    finally:
        os.close(writer)


def test_a_pipe_that_a_command_writes_is_read() -> None:
    """As with `--config <(command)`: the writer is there, and may be late."""
    read, write = os.pipe()

    def late() -> None:
        time.sleep(0.05)
        os.write(write, b"port: ")
        time.sleep(0.05)
        os.write(write, b"9000\n")
        os.close(write)

    thread = threading.Thread(target=late)
    thread.start()
    assert read_file(f"/dev/fd/{read}", 100) == b"port: 9000\n"
    thread.join()
    os.close(read)
