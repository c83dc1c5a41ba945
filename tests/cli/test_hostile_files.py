"""Files of users that cannot be what they are named as: one sentence, no traceback, no hang."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import stat
import struct
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire import input_file
from quire.cli import answer_file, generate, main, prompt_texts
from quire.cli.answer_file import AnswerFile
from quire.errors import ConfigError
from quire.hub import resolve_model
from quire.models.prepared.prepared_files import note_use, stored_files

TEXT = ["--samples", "4", "--seq-len", "32", "--no-speed"]
LINEAR = "model.layers.0.mlp.down_proj.weight"
NORM = "model.layers.1.input_layernorm.weight"


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one sentence with which a command ends."""
    assert main(argv) in (1, 2)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "; " in last  # and then the fix
    return last


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_model("quire-tiny"), tmp_path / "model"))


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized copy of the bundled model."""
    out = tmp_path_factory.mktemp("quantized") / "out"
    command = ["quantize", "quire-tiny", "--method", "rtn", "--out", str(out), "--no-verify"]
    assert main(command) == 0
    return out


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pipe, a link to itself, a folder, deep JSON and a file."""
    folder = tmp_path / "odd"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    (folder / "deep.jsonl").write_text("[" * 100_000)
    (folder / "device").symlink_to("/dev/zero")
    monkeypatch.chdir(folder)
    return folder


def change(model: Path, name: str, value: float) -> None:
    file = model / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[7] = value
    save_file(tensors, file, {"format": "pt", "source": "changed"})


@pytest.mark.parametrize(
    ("name", "value"),
    [(LINEAR, math.nan), (NORM, math.inf), ("model.embed_tokens.weight", -math.inf)],
)
def test_weights_that_are_not_finite_are_named(
    model: Path, quantized: Path, capsys: pytest.CaptureFixture[str], name: str, value: float
) -> None:
    change(model, name, value)
    out = str(model.parent / "out")
    assert name in refusal(capsys, "quantize", str(model), "--method", "rtn", "--out", out)
    assert name in refusal(capsys, "verify", str(model), str(quantized), *TEXT)
    assert not (quantized / "quire_quality.json").exists()


def test_a_config_of_another_size_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"intermediate_size": 512}))
    out = str(model.parent / "out")
    said = refusal(capsys, "quantize", str(model), "--method", "rtn", "--out", out)
    assert "model.safetensors: model.layers.0.mlp." in said


@pytest.mark.parametrize("name", ["pipe", "loop", "folder", "deep.jsonl", "device"])
@pytest.mark.parametrize("option", ["calibration", "tasks"])
def test_texts_that_cannot_be_read(
    odd: Path, capsys: pytest.CaptureFixture[str], option: str, name: str
) -> None:
    words = ["quantize", "quire-tiny", "--method", "awq", "--out", "out", *TEXT]
    assert name in refusal(capsys, *words, f"--{option}", str(odd / name))
    assert not Path("out").exists()  # nothing was quantized before


@pytest.mark.parametrize("out", ["pipe", "loop", "deep.jsonl", "device", "x" * 300, "deep.jsonl/x"])
@pytest.mark.usefixtures("odd")
def test_folders_that_cannot_be_written(capsys: pytest.CaptureFixture[str], out: str) -> None:
    words = ["quantize", "quire-tiny", "--method", "rtn", "--no-verify", "--out", out]
    assert "--out" in refusal(capsys, *words)


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Larger files cannot be written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_whole_files(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["quantize", "quire-tiny", "--method", "rtn", "--no-verify", "--out", "folder"]
    with largest_file(100_000):
        assert "free some space" in refusal(capsys, *words)
    assert [file.name for file in (odd / "folder").iterdir()] == ["quire_quantize.json"]
    assert main(words) == 0  # it is taken up


def test_other_files_that_cannot_be_read_are_named(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = model / "model.safetensors"
    weights.unlink()
    weights.symlink_to(weights.name)
    assert str(weights) in refusal(capsys, "verify", "quire-tiny", str(model), *TEXT)


def test_a_cache_with_odd_entries_is_listed_and_cleared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def entry(number: int) -> Path:
        return tmp_path / f"{'0' * 24}-{number:024}.safetensors"

    headers = [b"", b"[" * 100_000, b'{"__metadata__":{"source":"\\u001b[31m\\u0000"}}']
    headers += [b'{"__metadata__":{"source":"\\ud800"}}', b'{"__metadata__":7}']
    for number, header in enumerate(headers):
        entry(number).write_bytes(struct.pack("<Q", len(header)) + header)
    entry(10).write_bytes(b"\xff" * 100)
    os.mkfifo(entry(11))
    entry(12).symlink_to("/dev/zero")
    entry(13).symlink_to(entry(13).name)
    entry(14).symlink_to("nowhere")
    entry(15).mkdir()
    note_use(entry(0))
    assert stored_files(tmp_path)[0] == entry(0)
    folder = ["--prepared-weights", str(tmp_path)]
    assert main(["cache", "ls", *folder]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert said.count("unknown") == 10
    assert "nothing is stored" in refusal(capsys, "cache", "rm", "quire", *folder)
    assert main(["cache", "clear", *folder]) == 0
    assert list(tmp_path.iterdir()) == [entry(15)]


def test_answers_go_to_a_pipe_that_is_read(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = str(odd / "pipe")
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    monkeypatch.setattr(answer_file, "PIPE_SECONDS", 0.2)
    with pytest.raises(ConfigError, match="nobody read it"):
        AnswerFile(pipe)
    monkeypatch.setattr(answer_file, "PIPE_SECONDS", 30.0)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(Path(pipe).read_bytes()))
    threading.Timer(0.2, reader.start).start()
    with AnswerFile(pipe) as file:
        file.clear()
        for _ in range(3):
            file.write(b"x" * 100_000)  # more than a pipe holds
    reader.join()
    assert found[0].count(b"\n") == 3


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_prompts_templates_and_keys_are_read_within_bounds(
    odd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (odd / "large").open("wb") as file:
        file.truncate(100 << 30)  # a sparse one
    monkeypatch.setattr(input_file, "PIPE_SECONDS", 0.05)
    for option in (
        ("generate", "--file"),
        ("generate", "hello", "--chat-template"),
        ("serve", "--dry-run", "--api-key-file"),
        ("verify", "quire-tiny", "quire-tiny", *TEXT, "--tasks"),
    ):
        assert "larger than" in refusal(capsys, *option, "large"), option
        assert "device" in refusal(capsys, *option, "device"), option
    for option in (("generate", "hello", "--chat-template"), ("serve", "--api-key-file")):
        assert "it is a pipe, not a file" in refusal(capsys, *option, "pipe")


def test_standard_input_without_an_end_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_texts, "MOST_BYTES", 1 << 20)
    with open("/dev/zero", encoding="utf-8") as zeros:
        monkeypatch.setattr("sys.stdin", zeros)
        assert "larger than 1 MiB" in refusal(capsys, "generate", "--file", "-")


def test_a_pipe_with_prompts_is_read_however_late_they_come(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_file, "PIPE_SECONDS", 0.01)

    def write() -> None:
        time.sleep(0.1)
        (odd / "pipe").write_bytes(b"\xef\xbb\xbfred\r\n\r\nblue")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        found = generate.read_prompts(Namespace(file="pipe"))
    assert found == [("red", "pipe, line 1"), ("blue", "pipe, line 3")]
