"""`quire quantize` as a command: what it runs, and what it says of finished runs."""

from __future__ import annotations

import errno
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_to_end

from quire.cli import main, quantize, verify
from quire.compress import layer_stream, quality_check, quantize_model
from quire.compress.quality_check import PLOT_FILE
from quire.compress.quantize_model import Quantization
from quire.compress.recipe import METHODS
from quire.errors import ConfigError

TEXT = ["--samples", "4", "--seq-len", "64", "--no-speed"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def refused(*_: Any, **__: Any) -> None:
    """What must not be called."""
    raise AssertionError


def test_rounding_to_the_nearest_runs_no_text_and_a_finished_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["quire-tiny", "--method", "nf4", "--out", str(tmp_path / "out"), *TEXT]
    with monkeypatch.context() as patched:
        patched.setattr(layer_stream.LayerRunner, "__call__", refused)
        assert quantize.run([*command, "--no-verify"]) == 0
    assert "nf4, which needs no calibration" in capsys.readouterr().err
    first = quantize.run(command)
    assert "is finished: remove it to quantize again" in capsys.readouterr().err
    monkeypatch.setattr(quality_check, "check_quality", refused)
    assert quantize.run(command) == first
    said = capsys.readouterr()
    assert "to measure again: quire verify quire-tiny" in said.err
    assert "perplexity" in said.out
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"messages": [{"role": "user", "content": "hi"}], "expected": "hi"}\n')
    for options in (["--quality-limits", "perplexity=0.9"], ["--tasks", str(tasks)]):
        with pytest.raises(AssertionError):
            quantize.run([*command, *options])
    assert "quantized itself" not in capsys.readouterr().err
    with pytest.raises(ConfigError, match="have the same weights"):
        verify.run([str(tmp_path / "out"), str(tmp_path / "out"), *TEXT])
    assert f"note: {tmp_path / 'out'} is quantized itself (bitsandbytes)" in capsys.readouterr().err
    with pytest.raises(
        ConfigError, match="quire-tiny is not quantized; name the 16-bit model first"
    ):
        verify.run([str(tmp_path / "out"), "quire-tiny", *TEXT])  # which would then be refused


def test_a_disk_that_is_full_at_the_end_costs_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = str(tmp_path / "out")
    assert quantize.run(["quire-tiny", "--method", "nf4", "--out", out, "--no-verify"]) == 0
    monkeypatch.setattr(quality_check, "write_report", full)
    assert main(["verify", "quire-tiny", out, *TEXT]) == 2
    said = capsys.readouterr()
    assert "perplexity, quantized" in said.out
    assert "not stored in" in said.out
    assert "(No space left on device); free some space" in said.err


@pytest.mark.parametrize(
    ("flag", "notes"), [("--no-symmetric", 1), ("--symmetric", 0), ("--group-size=48", 0)]
)
def test_notes_say_what_a_loader_makes_of_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, notes: int
) -> None:
    command = ["quire-tiny", "--method", "rtn", "--format", "compressed-tensors", "--no-verify"]
    assert quantize.run([*command, "--out", str(tmp_path / "out"), flag]) == 0
    said = capsys.readouterr().err
    assert said.count("CompressedTensorsConfig(dequantize=True)") == notes
    assert ("note: groups of 48 are not a multiple of 32" in said) == ("48" in flag)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--method FP8 --group-size 64", "group_size does nothing with method fp8; leave it out"),
        ("--method autoround --damping 0.1", "damping does nothing .* take awq, gptq, awq[+]gptq"),
        ("--method gptq --steps 9", "steps does nothing .* take autoround, awq[+]autoround"),
        ("--method awq --seed 1", "seed does nothing .* take autoround, awq[+]autoround"),
        ("--method int8 --weight-only", "weight_only is for methods fp8 and fp8[+]gptq; leave"),
        ("--method rtn --seq-len 4097", "seq_len must be between 8 and 4096, the model's context"),
        (
            "--method gptq --group-size 100",
            r"^group_size 100 divides the inputs \(256, 768\) of no linear layer; use one of 32, "
            r"64, 128, 256, -1 \(all inputs\)$",
        ),
        ("--method nf4 --ignore *proj", "^ignore leaves no linear layer to quantize; ignore less$"),
        ("--method rtn --out /proc/x/y", "out: /proc/x/y cannot be written"),
        ("--method rtn --json", "^json is for what --no-verify leaves out; use one of them$"),
        ("--method rtn --tasks x.jsonl", "^tasks is for what --no-verify leaves out"),
        ("--method rtn --quality-limits perplexity=0.1", "^quality_limits is for what"),
    ],
)
def test_what_cannot_be_done_is_refused(options: str, message: str, tmp_path: Path) -> None:
    out = [] if "--out" in options else ["--out", str(tmp_path / "out")]
    with pytest.raises(ConfigError, match=message):
        quantize.run(["quire-tiny", *TEXT, *options.split(), *out, "--no-verify"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("int8 --format awq", "--format: method int8 has its own; leave it out"),
        ("awq --format awq --symmetric", "--symmetric: such .* AWQ's format; use --format gptq"),
        ("awq+gptq --act-order group", "--act-order 'group' is in GPTQ's format .* --format gptq"),
        ("int8 --no-symmetric", "--symmetric is needed by method int8; leave the option out"),
        ("rtn --double-quantization", "--double-quantization does nothing with|is for method nf4"),
        ("gptq --damping 2", "--damping must be above 0 and below 1, not 2.0"),
    ],
)
def test_options_are_refused_by_the_names_that_they_have(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["quantize", "quire-tiny", "--method", *options.split(), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert re.search(f"^error: {said}", capsys.readouterr().err)


def test_bits_are_refused_with_the_methods_that_have_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "quire-tiny", "--bits", "8", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "--bits 8" in said
    eight, four = said.split("use --method ")[1].split(" for 8 bits, and ")
    for named, are_eight in ((eight, True), (four, False)):
        names = set(re.split(", | or |, and | for", named)) & METHODS.keys()
        have = {name for name, each in METHODS.items() if each.is_eight_bit == are_eight}
        assert names == {name for name in have if "+" not in name}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--method INT4", "--method 'INT4' is not supported: use 'awq', 'gptq', 'autoround' or"),
        (
            "--method w8a16",
            "--method 'w8a16' is not .* quantization 'w8a16', or use 'fp8' with --w",
        ),
        ("--method nvfp4", "--method 'nvfp4' is not supported: .*; use 'mxfp4'$"),
        ("--method bnb", "--method 'bnb' is not supported: use 'nf4'"),
        ("--method rtn --device cuda:1", "--device 'cuda:1' is not .* set CUDA_VISIBLE_DEVICES=1"),
        ("--method rtn --device None --ignore x", "--ignore: no linear layer is named 'x'"),
        ("--method bogus", "--method: must be one of 'rtn', .*, not 'bogus'"),
        ("--quantization int4", "--quantization 'int4' is not supported: use 'awq'"),
        ("--method W8A8 --format awq", "--format: method int8 has its own"),
        ("--method rtn --scheme W4A16", "--scheme 'W4A16' is not supported: .* use --method int8"),
        ("--method rtn --w_bit 4", "--w_bit 4 is not supported: .* use --method int8"),
        ("--method awq --desc-act", "--act-order 'group' is in GPTQ's format alone; use --format"),
        ("--method awq --sym", "--symmetric: such codes are not in AWQ's format"),
        ("--method int8 --zero-point", "--symmetric is needed by method int8; leave"),
        ("--method awq --dataset /no/file", "--dataset: /no/file cannot be read"),
        ("--method awq --nsamples 0", "--nsamples must be at least 1, not 0"),
        ("--method gptq --damp-percent 2", "--damp-percent must be above 0 and below 1"),
    ],
)
def test_names_of_other_libraries_mean_what_they_mean_there(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main(["quantize", "quire-tiny", "--no-verify", *options.split(), *out]) == 2
    assert re.search(f"^error: {said}", capsys.readouterr().err)


def test_the_time_of_learned_rounding_is_said_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["quire-tiny", "--method", "autoround", *TEXT[:4], "--no-verify", "--device", "cpu"]
    monkeypatch.setattr(quantize_model, "step_seconds", lambda *_: 1.5)  # for each of 6 layers

    def begins(*_: object) -> None:
        said.append(re.findall("takes about (.*);", capsys.readouterr().err))
        raise KeyboardInterrupt

    said: list[list[str]] = []
    monkeypatch.setattr(Quantization, "run", begins)
    for steps in ("6", "400", "1200"):
        with pytest.raises(KeyboardInterrupt):
            quantize.run([*command, "--steps", steps, "--out", str(tmp_path / "out")])
    assert said == [[], ["60 min"], ["3 h"]]


def test_a_stopped_run_says_how_it_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, stop = tmp_path / "out", KeyboardInterrupt()
    layer = Quantization._layer

    def stopped(self: Quantization, index: int, *states: Any) -> Any:
        if index == 2:
            raise stop
        return layer(self, index, *states)

    command = ["quantize", "quire-tiny", "--method", "rtn", "--out", str(out), "--no-verify"]
    with monkeypatch.context() as patched:
        patched.setattr(Quantization, "_layer", stopped)
        assert main(command) == 130
    assert f"{out}: stopped: the same command continues after" in capsys.readouterr().err
    assert main(["generate", "-m", str(out), "-p", "hi"]) == 2
    assert f"{out} is a run of `quire quantize` that has not fin" in capsys.readouterr().err
    assert main(command) == main(["generate", "-m", str(out), "-p", "hi"]) == 0


def test_ctrl_c_while_pytorch_is_imported_ends_the_command(tmp_path: Path) -> None:
    """Where PyTorch's library imports NumPy's, it clears what a handler raises."""
    program = f"""
import os, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "numpy._core.multiarray":
            os.kill(os.getpid(), 2)
sys.meta_path.insert(0, Interrupt())
from quire.cli import main
main(["quantize", "quire-tiny", "--method", "rtn", "--out", {str(tmp_path / "out")!r}])
"""
    done = run_to_end([sys.executable, "-c", program])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not (tmp_path / "out").exists()


def test_what_does_not_fit_is_one_line_for_all_layers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ["--method", "rtn", "--group-size", "384", "--ignore", "*.o_proj", "--no-verify"]
    assert quantize.run(["quire-tiny", *options, "--out", str(tmp_path / "out"), *TEXT]) == 0
    assert caplog.messages == [
        "q_proj, k_proj, v_proj of 6 layers stay as they are: 256 inputs are not a multiple of "
        "group_size 384",
        "gate_proj, up_proj of 6 layers stay as they are: 256 inputs are not a multiple of "
        "group_size 384",
    ]


def test_bundled_models_are_measured_with_chats(tmp_path: Path) -> None:
    from quire.models.config.quality_report import read_report

    out = tmp_path / "out"
    quantize.run(["quire-tiny", "--method", "int8", "--out", str(out), *TEXT])
    report = read_report(out)
    assert report is not None
    assert report["text"] == "chats of calibration.jsonl"
    assert report["perplexity"]["base"] < 6


def test_a_smaller_measurement_does_not_replace_a_larger_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    quantize.run(["quire-tiny", "--method", "int8", "--out", str(out), *TEXT, "--samples", "8"])
    stored = {name: (out / name).read_bytes() for name in ("quire_quality.json", PLOT_FILE)}
    capsys.readouterr()
    command = ["quire-tiny", str(out), *TEXT]
    verify.run(command)
    said = capsys.readouterr()
    problem = "the stored report is of 128 tokens of text, this one of 64"
    assert f"note: {problem}, so this one will not be stored; to store it use --repl" in said.err
    assert f"not stored in {out / 'quire_quality.json'}: {problem}" in said.out
    assert verify.run([*command, "--quality-limits", "perplexity=-0.9"]) == 1
    said = capsys.readouterr()
    assert "FAILED: perplexity" in said.out
    assert "refuses these weights" not in said.out  # serving goes by the stored report
    assert stored == {name: (out / name).read_bytes() for name in stored}
    verify.run([*command, "--replace-report"])
    assert f"\nstored in {out / 'quire_quality.json'}" in capsys.readouterr().out
    assert stored.keys() == {name for name in stored if stored[name] != (out / name).read_bytes()}
