"""The report beside weights, and the gate that a start holds it to."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny_models import SAMPLES, quantize, write_model

from quire import LLM
from quire.cli import model_speed
from quire.cli.model_speed import measure_speed
from quire.cli.quality_table import layer_bars, print_report
from quire.compress.quality_check import (
    PLOT_FILE,
    check_pair,
    check_quality,
    check_writable,
    store_report,
)
from quire.compress.quality_plot import svg
from quire.compress.recipe import Recipe
from quire.compress.task_answers import Task, count_right
from quire.config import EngineConfig
from quire.engine.startup.resolved_config import resolve
from quire.errors import CheckpointError, ConfigError
from quire.model_folder import BUNDLED_FOLDER, GGUF_LINK
from quire.models.config.quality_gate import pass_gate
from quire.models.config.quality_report import (
    QUALITY_FILE,
    QualityLimits,
    read_report,
    replacement_problem,
    write_report,
)
from quire.models.config.weight_files import weight_files

LOOSE = QualityLimits(perplexity=10.0, cosine=0.1, same_top_1=0.0)
STRICT = QualityLimits(perplexity=-1.0, cosine=1.0, same_top_1=1.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its quantized copy."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("gate")
    write_model(root / "base")
    quantize(root / "base", root / "out", Recipe(method="rtn", group_size=32))
    return root / "base", root / "out"


def check(folders: tuple[Path, Path], limits: QualityLimits) -> dict:
    """Measure and store the report."""
    tasks = [Task(ids, 10) for ids in SAMPLES.verification]
    check_writable(folders[1])
    report = check_quality(*folders, SAMPLES, tasks, limits, torch.device("cpu"), lambda *_: None)
    store_report(folders[1], report)
    return report


def start(folder: Path, gate: str) -> object:
    """What a start makes of a folder."""
    config = EngineConfig.from_options(model=str(folder), quality_gate=gate)
    return resolve(config, "cpu").quality


def test_weights_that_failed_are_refused_and_why(folders: tuple[Path, Path]) -> None:
    report = check(folders, STRICT)
    assert not report["passed"]
    with pytest.raises(CheckpointError, match=r"quality gate: perplexity rises by .*cosine"):
        start(folders[1], "report")
    with pytest.raises(CheckpointError, match="does not pass"):
        start(folders[1], "require")
    shown = start(folders[1], "off")  # served, and told
    assert isinstance(shown, dict)
    assert shown["passed"] is False
    assert start(folders[1], "perplexity=0.9,cosine=0.1,same_top_1=0") is not None


def test_weights_that_failed_are_served_with_a_warning(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    for limits in (STRICT, LOOSE):
        report = check(folders, limits)
        caplog.clear()
        with LLM(folders[1], quality_gate="off", device="cpu", skip_tokenizer_init=True):
            pass
        found = [each.getMessage() for each in caplog.records if "quality gate" in each.msg]
        assert len(found) == (limits is STRICT)
        assert all("; ".join(report["failures"]) in each for each in found)


def test_weights_that_passed_are_served_unless_limits_are_stricter(
    folders: tuple[Path, Path],
) -> None:
    report = check(folders, LOOSE)
    quality = start(folders[1], "report")
    assert quality == start(folders[1], "require")
    assert isinstance(quality, dict)
    assert quality["passed"] is True
    assert quality["hidden_cosine"] == report["hidden_cosine"]["mean"]
    with pytest.raises(CheckpointError, match="less than"):
        start(folders[1], "cosine=0.9999")
    with pytest.raises(ConfigError, match="quality_gate must be report, require, off, or limits"):
        start(folders[1], "strictly")


def test_a_report_of_other_weights_is_no_report_of_these(folders: tuple[Path, Path]) -> None:
    check(folders, LOOSE)
    path = folders[1] / QUALITY_FILE
    values = json.loads(path.read_text())
    values["files"][next(iter(values["files"]))] += "0"
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="not of these weights"):
        start(folders[1], "report")
    assert start(folders[1], "off") is None
    path.write_text("{")  # which no download has
    with pytest.raises(CheckpointError, match=r"JSON; run `quire verify BASE .* again, or remove"):
        start(folders[1], "report")


def test_a_report_of_weights_of_the_same_size_is_refused(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """As after another quantization in place."""
    check(folders, LOOSE)
    folder = shutil.copytree(folders[1], tmp_path / "out")
    assert start(folder, "report") is not None
    file = min(folder.glob("*.safetensors"))
    stored = file.read_bytes()
    file.write_bytes(stored[:-512] + bytes(byte ^ 1 for byte in stored[-512:]))
    with pytest.raises(CheckpointError, match="not of these weights"):
        start(folder, "report")


def test_a_report_of_another_quantization_config_is_refused(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """By which the same codes are other numbers."""
    check(folders, LOOSE)
    folder = shutil.copytree(folders[1], tmp_path / "out")
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"rope_theta": 5.0}))
    assert start(folder, "report") is not None
    values["quantization_config"]["ignore"].append("x")
    path.write_text(json.dumps(values))
    message = (
        "quantization_config in config.json, by which they are read, has changed since; undo that, "
        f"run `quire verify BASE {folder}` again, or remove the report"
    )
    with pytest.raises(CheckpointError, match=re.escape(message)):
        start(folder, "report")
    (folder / QUALITY_FILE).unlink()
    assert start(folder, "report") is None


def test_tensors_that_do_not_fit_are_reported_before_a_stale_report(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """By a start and by `quire verify`, which would store a report of what no start loads."""
    write = Recipe(method="rtn", group_size=32, format="gptq")
    quantize(folders[0], tmp_path / "whole", write)
    check((folders[0], tmp_path / "whole"), LOOSE)

    def expect(change: Callable[[Path], object], message: str) -> None:
        folder = tmp_path / "harmed"
        shutil.rmtree(folder, ignore_errors=True)
        change(shutil.copytree(tmp_path / "whole", folder))
        with pytest.raises(CheckpointError, match=message):
            start(folder, "report")
        with pytest.raises(CheckpointError, match=message):
            check((folders[0], folder), LOOSE)

    expect(_with_another_group_size, r"qzeros at byte .* its shape is .*config\.json .*; download")
    expect(_without_scales, r"missing: model\.layers\.\d\.\S+\.scales; check that")
    expect(_cut_off, "the file is cut off: .* download the file again")


def _with_another_group_size(folder: Path) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    values["quantization_config"]["group_size"] = 16
    path.write_text(json.dumps(values))


def _without_scales(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = next(name for name in index["weight_map"] if name.endswith(".scales"))
    file = folder / index["weight_map"].pop(name)
    path.write_text(json.dumps(index))
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file)


def _cut_off(folder: Path) -> None:
    file = min(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-512])


def test_weights_that_a_setting_rounds_again_have_no_report(folders: tuple[Path, Path]) -> None:
    check(folders, LOOSE)
    found = {}
    for setting in ("none", "dequantized", "int8"):
        config = EngineConfig.from_options(model=str(folders[1]), quantization=setting)
        found[setting] = resolve(config, "cpu").quality is not None
    assert found == {"none": True, "dequantized": True, "int8": False}
    options = {"model": str(folders[1]), "quantization": "int8", "quality_gate": "require"}
    for model in folders:
        with pytest.raises(CheckpointError, match=r"'int8' rounds the weights of .* as they are"):
            resolve(EngineConfig.from_options(**options | {"model": str(model)}), "cpu")


def test_weights_are_not_measured_against_themselves(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """Which would pass any gate."""
    copy = shutil.copytree(folders[1], tmp_path / "copy")
    for base in (folders[1], copy):
        with pytest.raises(ConfigError, match=r"have the same weights .* name the 16-bit model"):
            check((base, folders[1]), LOOSE)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, r"model.layers.0.attention.qkv.bias: True and False"),
        ({"vocab_size": 320}, r"model.embedding.vocab_size: 320 and \d+"),
        ({"num_hidden_layers": 1}, r"model.layers: 1 and \d of them"),
    ],
)
def test_models_of_other_layers_are_refused_before_anything_is_measured(
    folders: tuple[Path, Path], tmp_path: Path, config: dict[str, int], found: str
) -> None:
    write_model(tmp_path, "qwen2")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(ConfigError, match=rf"different layers \({found}\); name a model and its"):
        check_pair(tmp_path, folders[1])


def test_a_base_model_gets_no_report(folders: tuple[Path, Path]) -> None:
    """Named second, it would be refused for what its copy has lost."""
    base, quantized = folders
    with pytest.raises(ConfigError, match=r"^quantized: .*base is not quantized; name the 16-bit"):
        check((quantized, base), LOOSE)
    assert not (base / QUALITY_FILE).exists()


def test_a_folder_that_cannot_be_written_is_refused_before_it_is_measured(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write to any folder, so that permissions alone test nothing."""
    monkeypatch.setattr("quire.compress.quality_check.os.access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"^quantized: .* cannot be written.* verify a copy$"):
        check(folders, LOOSE)


def test_a_full_disk_leaves_the_report_that_was_there(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(folders, STRICT)
    files = {path: path.read_bytes() for path in folders[1].iterdir()}
    write_text = Path.write_text

    def write_half(path: Path, text: str) -> None:
        write_text(path, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(ConfigError, match=r"^quantized: .*\(No space left on device\); free some"):
        check(folders, LOOSE)
    assert {path: path.read_bytes() for path in folders[1].iterdir()} == files


@pytest.mark.parametrize(
    ("name", "factor", "reason"),
    [
        ("model.layers.1.post_attention_layernorm.weight", 1e38, "numbers after layer 1 are not"),
        ("lm_head.weight", 1e10, "perplexity rises by"),  # beyond e to the power of 709
        ("lm_head.weight", 3e38, "numbers after the head are not finite"),
        ("model.norm.weight", 1e38, "numbers after the last norm are not finite"),
        ("model.norm.weight", 1e37, "perplexity rises by"),  # whose squares are infinite
    ],
)
def test_a_model_that_computes_no_numbers_has_a_report_and_is_refused(
    tmp_path: Path, name: str, factor: float, reason: str
) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    write_model(base)
    quantize(base, out, Recipe(method="fp8"))
    for file in out.glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            tensors[name] = (tensors[name].double() * factor).to(torch.float32)
            save_file(tensors, file, {"format": "pt"})
    report = check((base, out), LOOSE)
    assert not report["passed"]
    assert any(reason in failure for failure in report["failures"])
    assert ": NaN" not in (out / QUALITY_FILE).read_text()
    with pytest.raises(CheckpointError, match=reason):
        start(out, "report")


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_an_unknown_gate_is_refused_before_the_model_is_looked_for(load_format: str) -> None:
    config = EngineConfig.from_options(
        model="/nowhere/at-all", quality_gate="strict", load_format=load_format
    )
    with pytest.raises(ConfigError, match="quality_gate must be report, require, off, or limits"):
        resolve(config, "cpu")


@pytest.mark.parametrize("limit", ["nan", "inf", "-inf", "1e400", "", "x"])
def test_a_limit_is_a_number(limit: str) -> None:
    with pytest.raises(ConfigError, match="quality_limits must be limits such as perplexity="):
        QualityLimits.parse(f"cosine={limit}", "quality_limits")


@pytest.mark.parametrize("text", ["cosine=99", "perplexity=0.01,same_top_1=1.5"])
def test_a_share_in_percent_is_refused(text: str) -> None:
    """After a long run no model would reach it."""
    with pytest.raises(ConfigError, match=r"^quality_limits: \w+ is at most 1, not .* as 0.99$"):
        QualityLimits.parse(text, "quality_limits")
    assert QualityLimits.parse("cosine=1,same_top_1=1", "quality_limits").cosine == 1.0


@pytest.mark.parametrize("text", ["perplexity=5", "perplexity=1", "cosine=0.9,perplexity=1e9"])
def test_a_rise_in_percent_is_refused(text: str) -> None:
    """Any model would pass."""
    with pytest.raises(ConfigError, match=r"gate: perplexity is below 1, not .* 5 % as 0.05$"):
        QualityLimits.parse(text, "quality_gate")
    assert QualityLimits.parse("perplexity=-0.1", "quality_limits").perplexity == -0.1


def test_a_limit_that_is_named_needs_its_figure() -> None:
    limits = QualityLimits.parse("perplexity=0.01", "quality_gate")
    assert limits.failures({}) == ["the report has no perplexity"]
    assert limits.failures({"perplexity": {"change": 0.001}}) == []
    assert len(limits.failures({"perplexity": {"change": 0.02}})) == 1
    assert QualityLimits().failures({}) == []
    assert limits.record() == QualityLimits(perplexity=0.01).record()


@pytest.mark.parametrize("gate", ["report", "perplexity=0.5"])
@pytest.mark.parametrize(
    "change",
    [
        {"perplexity": 5},
        {"perplexity": {"change": "0.1"}},
        {"perplexity": {"change": True}},
        {"hidden_cosine": {"mean": math.nan}},
        {"same_top_1": {"share": 10**400}},
        {"kl_divergence": []},
        {"failures": {}},
        {"passed": "yes"},
        {"base": 1},
        {"not_finite": 2},
    ],
    ids=[f"hostile{number}" for number in range(10)],
)
def test_a_hostile_report_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], gate: str
) -> None:
    sound = {"base": "x", "failures": [], "passed": True, "perplexity": {"change": 0.01}}
    write_report(tmp_path, sound)
    assert pass_gate(tmp_path, gate, is_quantized=True) is not None
    write_report(tmp_path, sound | change)
    with pytest.raises(CheckpointError, match=f"{QUALITY_FILE}: {next(iter(change))}"):
        pass_gate(tmp_path, gate, is_quantized=True)


def test_what_a_weight_file_is_known_by_takes_little_memory(tmp_path: Path) -> None:
    """Also where the length of its header is that of the file."""
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write((1 << 30).to_bytes(8, "little"))
        file.truncate(1 << 30)
    tracemalloc.start()
    assert weight_files(tmp_path)["a.safetensors"].startswith(f"{1 << 30} bytes")
    assert tracemalloc.get_traced_memory()[1] < 1 << 28
    tracemalloc.stop()


def test_without_a_report_only_a_strict_gate_refuses(folders: tuple[Path, Path]) -> None:
    (folders[1] / QUALITY_FILE).unlink(missing_ok=True)
    assert start(folders[1], "report") is None
    with pytest.raises(CheckpointError, match=r"has no quality report.*quire verify BASE .*/out`"):
        start(folders[1], "require")
    assert pass_gate(folders[0], "require", is_quantized=False) is None


@pytest.mark.parametrize("gate", ["report", "require"])
def test_a_report_does_not_pass_by_its_word_alone(
    folders: tuple[Path, Path], tmp_path: Path, gate: str
) -> None:
    """Its own figures and limits say otherwise."""
    check(folders, STRICT)
    folder = shutil.copytree(folders[1], tmp_path / "out")
    path = folder / QUALITY_FILE
    report = json.loads(path.read_text()) | {"passed": True, "failures": []}
    path.write_text(json.dumps(report))
    message = rf"{QUALITY_FILE}: passed is true, but perplexity rises by .*; run `quire verify BASE"
    with pytest.raises(CheckpointError, match=message):
        start(folder, gate)
    path.write_text(json.dumps(report | {"limits": LOOSE.record()}))
    assert start(folder, gate) is not None


def test_a_gguf_file_that_needs_a_report_is_named_itself(tmp_path: Path) -> None:
    """It has none, and cannot be verified."""
    (tmp_path / GGUF_LINK).symlink_to("/models/a.gguf")
    with pytest.raises(CheckpointError, match=r"^/models/a.gguf is a GGUF file, which has no qual"):
        pass_gate(tmp_path, "require", is_quantized=True)


def test_only_as_much_text_and_limits_as_strict_replace_a_report(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[1], tmp_path / "out")
    (folder / QUALITY_FILE).unlink(missing_ok=True)
    assert replacement_problem(folder, 1, LOOSE) is None
    limits = QualityLimits(perplexity=0.02)
    sound = {"base": "x", "failures": [], "passed": True, "tokens": 100, "limits": limits.record()}
    write_report(folder, sound)
    assert replacement_problem(folder, 100, limits) is None
    assert replacement_problem(folder, 101, QualityLimits(perplexity=0.01, same_top_1=0.9)) is None
    assert replacement_problem(folder, 99, limits) == (
        "the stored report is of 100 tokens of text, this one of 99"
    )
    looser = QualityLimits(cosine=0.1, perplexity=0.03)
    assert replacement_problem(folder, 1000, looser) == (
        "the stored report has stricter limits, perplexity=0.02,cosine=0.97"
    )
    file = min(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-512] + bytes(512))
    assert replacement_problem(folder, 1, LOOSE) is None  # it is of other weights
    for hostile in ({"tokens": "x", "limits": 5}, {"limits": {"cosine": "x"}, "tokens": True}):
        write_report(folder, sound | hostile)
        assert replacement_problem(folder, 1, LOOSE) is None


def test_table_and_picture_show_each_layer(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(folders, STRICT)
    print_report(report)
    out = capsys.readouterr().out
    assert "perplexity" in out
    assert f"text, tokens          │ {report['tokens']}" in out
    assert "intervals are too narrow, as they are of 4 windows of text; take more (--s" in out
    print_report(report | {"windows": 10})
    assert "too narrow" not in capsys.readouterr().out
    assert "FAILED" in out
    assert f"right answers         │ {report['tasks']['right_quantized']} / 4" in out
    assert len(list(layer_bars(report["layers"]))) == 2
    assert (folders[1] / PLOT_FILE).read_text().count("<rect") == 2
    assert svg("a < b", [0.0, 0.0]).count("a &lt; b") == 1


def test_speed_and_memory_stand_beside_quality(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = {
        name: {"tokens_per_second": {"1": rate, "16": 8 * rate}, "weight_bytes": 7, "kv_tokens": 9}
        for name, rate in (("base", 100.0), ("quantized", 150.0))
    }
    device = torch.device("cpu")
    report = check_quality(*folders, SAMPLES, [], LOOSE, device, lambda *_: None, measured)
    store_report(folders[1], report)
    assert read_report(folders[1])["speed"] == measured
    print_report(report)
    out = capsys.readouterr().out
    assert "tokens/s, streams: 16 │ 1,200" in out
    assert "base: 800, 1.50 times" in out
    for speed in report["speed"].values():
        speed["tokens_per_second_range"] = {"1": [90.0, 160.0], "16": [700.0, 1300.0]}
    print_report(report, Console(width=120))
    out = capsys.readouterr().out
    assert "1,200 (700 to 1,300) │ base: 800 (700 to 1,300), 1.50 times" in out
    assert "tokens/s: median (least to most) of several runs" in out


def test_a_model_that_does_not_start_has_no_speed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert measure_speed(tmp_path, "cpu") is None
    assert "is not measured" in caplog.text


def test_a_model_that_never_starts_has_no_speed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_speed, "_TIMEOUT", 0.01)
    assert measure_speed(tmp_path, "cpu") is None
    assert "it took more than 0.01 s" in caplog.text


def test_speed_is_measured_in_a_process_of_its_own() -> None:
    speed = measure_speed(BUNDLED_FOLDER / "quire-tiny-draft", "cpu")
    assert speed is not None
    assert 0 < speed["tokens_per_second"]["1"] < speed["tokens_per_second"]["16"]
    for streams, (least, most) in speed["tokens_per_second_range"].items():
        assert 0 < least <= speed["tokens_per_second"][streams] <= most
    assert speed["weight_bytes"] > 500_000
    assert speed["kv_tokens"] > 1000


def test_an_answer_is_right_if_each_of_its_tokens_is_the_most_likely() -> None:
    tasks = [Task([1, 2, 3, 4], 2), Task([1, 2, 3, 4], 2)]
    best = [torch.tensor([9, 3, 4, 9]), torch.tensor([2, 3, 5, 9])]
    assert count_right(tasks, best) == 1
