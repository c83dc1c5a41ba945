"""`quire completion`: what a shell offers after some words."""

from __future__ import annotations

import shlex
import shutil

import pytest
from child_process import run_to_end

from quire.cli import COMMANDS, main


def offered(script: str, *words: str) -> list[str]:
    """What bash offers for the last word."""
    code = (
        f"{script}\nCOMP_WORDS=(quire {shlex.join(words)}); COMP_CWORD={len(words)}; _quire\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = run_to_end(["bash", "-c", code], check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert offered(script, "") == list(COMMANDS)
    assert offered(script, "ge") == ["generate"]
    assert offered(script, "serve", "--dty") == ["--dtype"]
    assert offered(script, "serve", "--dtype", "b") == ["bfloat16"]
    assert offered(script, "demo", "--dty") == []
    assert offered(script, "run-batch", "--inp") == ["--input-file"]
    assert "--no-enforce-eager" in offered(script, "chat", "--no-")


def test_zsh_and_fish(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert "autoload -Uz compinit && compinit" in first  # bashcompinit's commands need it
    assert second == "autoload -U +X bashcompinit && bashcompinit"
    assert third.startswith("_quire")
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(shlex.split(line)[:3] == ["complete", "-c", "quire"] for line in lines)
    (dtype,) = [
        words
        for words in map(shlex.split, lines)
        if words[4:7] == ["__fish_seen_subcommand_from serve", "-l", "dtype"]
    ]
    assert dtype[7:9] == ["-xa", "auto float32 bfloat16 float16"]


def test_another_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "shell must be one of bash, zsh, fish, not 'tcsh'" in capsys.readouterr().err
