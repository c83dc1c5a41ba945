"""The Dockerfile, the systemd unit and the commands of their pages: options and files exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from child_process import run_to_end

from quire.cli import serve

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
UNIT = ROOT / "deploy" / "quire.service"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TORCH = next(d for d in PROJECT["project"]["dependencies"] if d.startswith("torch"))


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def commands() -> list[list[str]]:
    """The words of each shell command of the Dockerfile."""
    runs = [rest for name, rest in instructions() if name == "RUN"]
    return [shlex.split(part) for run in runs for part in run.split("&&")]


def quire_commands() -> list[list[str]]:
    """Every `quire serve` of the Dockerfile, the unit, and the fenced blocks of the pages."""
    found = []
    for page in ("deploy.md", "install.md"):
        for block in re.findall(r"```\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.S):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if "serve" in words:
                    found.append(words[words.index("serve") :])
    found.append([*json.loads(dict(instructions())["CMD"])])
    start = unit()["Service"]["ExecStart"].split()
    return [*found, start[start.index("serve") :]]


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(UNIT)
    return parser


@cache
def pip_help(command: str) -> str:
    asked = [sys.executable, "-m", "pip", command, "--help"]
    return run_to_end(asked, check=True).stdout


def test_there_are_commands_to_check() -> None:
    assert len(quire_commands()) >= 3
    assert len([words for words in commands() if words[0] == "pip"]) >= 3


@pytest.mark.parametrize("words", quire_commands(), ids=" ".join)
def test_servers_options_exist(words: list[str]) -> None:
    serve.make_parser().parse_args([word.replace("${", "$") for word in words[1:]])


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_of_the_image_have_options_that_exist(words: list[str]) -> None:
    program, *rest = words
    options = {word.partition("=")[0] for word in rest if word.startswith("--")}
    if program == "pip":
        assert {option for option in options if option not in pip_help(rest[0])} == set()
    else:
        assert program in {"apt-get", "rm", "useradd", "mkdir", "chown"}


def test_the_image_takes_the_pytorch_that_is_tested() -> None:
    named = {word for words in commands() for word in words if word.startswith("torch")}
    assert named == {TORCH}


def test_stages_and_copied_files_exist() -> None:
    stages: list[str] = []
    for name, rest in instructions():
        words = rest.split()
        if name == "FROM":
            assert words[0] in stages or words[0].startswith("python:${PYTHON}")
            stages.append(words[-1])
        if name == "COPY":
            sources = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
            assert set(sources) <= set(stages)
    assert {"cpu", "cuda"} <= set(stages)
    (version,) = [rest.partition("=")[2] for name, rest in instructions() if name == "ARG"]
    least = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert tuple(map(int, version.split("."))) >= tuple(map(int, least.split(".")))


def test_the_image_leaves_out_nothing_that_a_wheel_needs() -> None:
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    needed = {"src", "setup.py", "pyproject.toml", "README.md", "LICENSE"}
    assert needed & set(ignored) == set()
    assert all((ROOT / name).exists() for name in needed)


def test_the_servers_limits_fit_the_units() -> None:
    service = unit()["Service"]
    words = service["ExecStart"].split()
    shutdown = float(words[words.index("--shutdown-timeout") + 1])
    assert float(service["TimeoutStopSec"]) > shutdown
    assert service["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "quire"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "quire.service"
    copy.write_text(UNIT.read_text().replace("/opt/quire/bin/quire", str(program)))
    done = run_to_end(["systemd-analyze", "verify", "--man=no", str(copy)])
    assert "quire.service" not in done.stderr
