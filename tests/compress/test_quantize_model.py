"""`quire quantize` on tiny models: files that read back equal, whole runs and runs taken up."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, SAMPLES, SIZES, quantize, write_embedding_model, write_model
from torch import Tensor

from quire.cli.quality_table import print_report
from quire.compress import shard_files
from quire.compress.layer_rounding import grid_of
from quire.compress.layer_stream import LayerRunner
from quire.compress.model_parts import ModelParts, linears_of, weight_of
from quire.compress.quantize_model import Quantization
from quire.compress.quantized_rows import nearest, nearest_codebook
from quire.compress.recipe import Recipe
from quire.compress.verify_model import compare_models
from quire.config import ModelSettings
from quire.errors import CheckpointError, ConfigError
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.nf4 import NF4
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.config.model_config import ModelConfig
from quire.models.config.pooling_config import DEFAULT_FOLDER, read_pooling
from quire.models.loading.loader import check_tensors, load_unsaved

CPU = torch.device("cpu")
_DOWN = "model.layers.1.mlp.down_proj.weight"
CODEBOOKS = {"nf4": NF4.spec, "mxfp4": MXFP4.spec}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "base"
    write_model(folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The numbers that the linear layers of a folder's model multiply by."""
    parts = ModelParts(folder, CPU)
    return {
        f"{index}.{name}": weight_of(linear)
        for index in range(len(parts.spec.layers))
        for name, linear in linears_of(parts.layer(index)).items()
    }


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_parts_one_by_one_are_the_whole_model(tmp_path: Path, family: str) -> None:
    model = write_model(tmp_path, family, torch.float32)
    parts, ids = ModelParts(tmp_path, CPU), SAMPLES.verification[0]
    samples = [ids[:23], *SAMPLES.verification]  # alone, and as a batch
    hidden = parts.embed(samples)
    for index in range(len(parts.spec.layers)):
        hidden = LayerRunner(parts, index, len(ids)).each(parts.layer(index), hidden)
    head = parts.head()
    assert head is not None
    for sample, states in zip(samples, hidden, strict=True):
        ours, theirs = head(parts.final_norm()(states)), model(torch.tensor([sample])).logits[0]
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-3)


FORMATS = [
    ("rtn", {"format": "awq"}),
    ("rtn", {"format": "gptq"}),
    ("rtn", {"format": "gptq", "symmetric": False}),
    ("rtn", {}),
    ("rtn", {"symmetric": False}),
    ("rtn", {"group_size": -1}),
    ("int8", {}),
    ("fp8", {}),
    ("fp8", {"weight_only": True}),
    ("nf4", {}),
    ("nf4", {"double_quantization": True}),
    ("mxfp4", {}),
]


@pytest.mark.parametrize(("method", "changes"), FORMATS)
def test_files_read_back_equal(base: Path, tmp_path: Path, method: str, changes: dict) -> None:
    """What the readers make of a file is what the codes stood for when it was written."""
    recipe = Recipe(method=method, **{"group_size": 32} | changes)
    quantize(base, tmp_path / "out", recipe)
    layout = recipe.layout("bfloat16")
    read = weights(tmp_path / "out")
    for name, weight in weights(base).items():
        if (codebook := CODEBOOKS.get(method)) is not None:
            fits = weight.shape[1] % codebook.group == 0
            expected = nearest_codebook(weight, codebook).numbers() if fits else weight
            close = {"atol": 0.01, "rtol": 0.05} if recipe.double_quantization else {}
            torch.testing.assert_close(read[name], expected, **close)
        elif method == "fp8":
            assert (read[name] - weight).abs().max() <= weight.abs().max() * 2**-4
        else:
            torch.testing.assert_close(read[name], nearest(weight, grid_of(layout)).numbers())
    settings = ModelSettings(model=str(tmp_path / "out"), prepared_weights="none")
    config = ModelConfig.from_folder(tmp_path / "out")
    load_unsaved(settings, config, tmp_path / "out", CPU, torch.bfloat16)


@pytest.mark.parametrize("family", FAMILIES)
def test_modules_are_found_by_structure(tmp_path: Path, family: str) -> None:
    write_model(tmp_path / "base", family)
    quantize(tmp_path / "base", tmp_path / "out", Recipe(method="rtn", group_size=32))
    stored = Checkpoint.open(tmp_path / "out").entries
    plain = Checkpoint.open(tmp_path / "base").entries
    packed = {name.removesuffix("_packed") for name in stored if name.endswith("_packed")}
    assert packed == {name for name in plain if name.endswith("_proj.weight")}
    for name in plain.keys() - packed:
        assert stored[name].shape == plain[name].shape


def stop_at_1(_: str, done: int, __: int) -> None:
    if done == 1:
        raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["rtn", "gptq", "smoothquant", "awq+autoround"])
def test_a_run_taken_up_makes_equal_bytes(base: Path, tmp_path: Path, method: str) -> None:
    settings = {"steps": 2} if "autoround" in method else {}
    recipe = Recipe(method=method, group_size=32, **settings)
    with pytest.raises(KeyboardInterrupt):
        quantize(base, tmp_path / "stopped", recipe, stop_at_1)
    assert len(list((tmp_path / "stopped").glob("*.safetensors"))) == 1
    first = next((tmp_path / "stopped").glob("*.safetensors")).stat().st_mtime_ns
    for folder in ("stopped", "whole"):
        quantize(base, tmp_path / folder, recipe)
    assert files_of(tmp_path / "stopped") == files_of(tmp_path / "whole")
    assert first in [p.stat().st_mtime_ns for p in (tmp_path / "stopped").glob("*.safetensors")]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def quantize_until_killed(base: Path, out: Path, recipe: Recipe) -> None:
    """In a process of its own: end by SIGKILL when half of the second layer's file is written."""

    def save_half(tensors: dict[str, torch.Tensor], path: Path, metadata: dict) -> None:
        save_file(tensors, path, metadata)
        if "00002" in path.name:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(shard_files, "save_file", save_half):
        quantize(base, out, recipe)


@pytest.mark.parametrize("method", ["rtn", "gptq", "int8", "fp8", "fp8+gptq", "nf4"])
def test_a_run_that_was_killed_is_taken_up(base: Path, tmp_path: Path, method: str) -> None:
    recipe = Recipe(method=method, group_size=32)
    given = base, tmp_path / "killed", recipe
    child = multiprocessing.get_context("fork").Process(target=quantize_until_killed, args=given)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert any(path.suffix == ".tmp" for path in (tmp_path / "killed").iterdir())
    for folder in ("killed", "whole"):
        quantize(base, tmp_path / folder, recipe)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


def quantize_until_event(base: Path, out: Path, recipe: Recipe, number: int) -> None:
    """In a process of its own: end by SIGKILL at that event on the output folder's files."""
    events = itertools.count(1)

    def kill(event: str, given: tuple[object, ...]) -> None:
        is_event = event in ("open", "os.rename", "os.mkdir")
        if is_event and str(out) in str(given[0]) and next(events) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    quantize(base, out, recipe)


def test_a_run_may_be_killed_at_any_moment(base: Path, tmp_path: Path) -> None:
    """Before each file is opened, and before it gets its name."""
    recipe, fork = Recipe(method="rtn", group_size=32), multiprocessing.get_context("fork")
    quantize(base, tmp_path / "whole", recipe)
    for number in itertools.count(1):
        given = base, tmp_path / f"killed_{number}", recipe, number
        child = fork.Process(target=quantize_until_event, args=given)
        child.start()
        child.join(60)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        quantize(base, given[1], recipe)
        assert files_of(given[1]) == files_of(tmp_path / "whole")
    assert number > 20


def test_the_pooling_of_an_embedding_model_is_that_of_its_base(base: Path, tmp_path: Path) -> None:
    """Which sentence-transformers have in a folder of its own."""
    model = shutil.copytree(base, tmp_path / "base")
    (model / DEFAULT_FOLDER).mkdir()
    (model / DEFAULT_FOLDER / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    for other in ("checkpoint-500", "1_int4"):
        shutil.copytree(base, model / other)
    quantize(model, tmp_path / "out", Recipe(method="rtn", group_size=32))
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == [DEFAULT_FOLDER]
    assert read_pooling(tmp_path / "out", "auto", SIZES["hidden_size"]).pooling == "mean"
    quantized, windows = ModelParts(tmp_path / "out", CPU), SAMPLES.verification
    pooled = [
        compare_models(ModelParts(folder, CPU), quantized, windows, [], lambda *_: None)[
            "pooled_cosine"
        ]["mean"]
        for folder in (base, model)
    ]
    assert pooled[0] < pooled[1]  # a mean of states has lost less than the last one


@pytest.mark.parametrize("modes", ['{"pooling_mode_cls_token": true}', "{"])
def test_a_pooling_that_is_not_known_costs_its_figure_alone(
    base: Path, tmp_path: Path, modes: str
) -> None:
    """The model may answer, or be served with another pooling."""
    model = shutil.copytree(base, tmp_path / "base")
    (model / DEFAULT_FOLDER).mkdir()
    (model / DEFAULT_FOLDER / "config.json").write_text(modes)
    quantize(model, tmp_path / "out", Recipe(method="rtn", group_size=32))
    both = (ModelParts(folder, CPU) for folder in (model, tmp_path / "out"))
    report = compare_models(*both, SAMPLES.verification, [], lambda *_: None)
    assert "pooled_cosine" not in report
    assert "hidden_cosine" in report
    named = {"base": "base", "quantized": "out", "text": "random", "failures": [], "passed": True}
    print_report(report | named)


def test_a_run_that_has_lost_a_file_is_not_finished(base: Path, tmp_path: Path) -> None:
    recipe, device = Recipe(method="rtn", group_size=32), torch.device("cpu")
    run = Quantization(base, tmp_path / "out", recipe, SAMPLES, device)
    run.run(lambda *_: None)
    assert run.is_finished
    for name in (run.files.path(1).name, "config.json", "generation_config.json"):
        (tmp_path / "out" / name).unlink()
        assert not run.is_finished
        run.run(lambda *_: None)  # which writes it again
        assert run.is_finished


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(_DOWN), f"missing: {_DOWN};"),
        (lambda tensors: tensors.pop("model.norm.weight"), "missing: model.norm.weight;"),
        (lambda tensors: tensors.update(more=torch.ones(1)), "left over: more;"),
        (lambda tensors: tensors.update({_DOWN: torch.ones(64, 95)}), "its shape is .64, 95., but"),
        (lambda tensors: tensors.update({_DOWN: tensors[_DOWN].int()}), f"{_DOWN} .*dtype is I32"),
    ],
    ids=["missing", "norm", "left_over", "shape", "dtype"],
)
def test_a_base_model_that_cannot_be_loaded_is_refused_before_the_first_layer(
    base: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    spoiled = shutil.copytree(base, tmp_path / "base")
    tensors = load_file(spoiled / "model.safetensors")
    change(tensors)
    save_file(tensors, spoiled / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        quantize(spoiled, tmp_path / "out", Recipe(method="rtn", group_size=32))
    assert not (tmp_path / "out").exists()


def test_a_run_with_other_settings_is_refused(base: Path, tmp_path: Path) -> None:
    quantize(base, tmp_path / "out", Recipe(method="rtn", group_size=32))
    with pytest.raises(ConfigError, match="another model, text or settings"):
        quantize(base, tmp_path / "out", Recipe(method="rtn", group_size=64))
    with pytest.raises(ConfigError, match="not empty"):
        quantize(base, base, Recipe(method="rtn", group_size=32))
    with pytest.raises(CheckpointError, match="quantized already"):
        quantize(tmp_path / "out", tmp_path / "again", Recipe(method="rtn"))


def test_a_run_is_not_taken_up_with_other_weights_of_the_same_size(
    base: Path, tmp_path: Path
) -> None:
    recipe, model = Recipe(method="rtn", group_size=32), shutil.copytree(base, tmp_path / "base")
    quantize(model, tmp_path / "out", recipe)
    quantize(shutil.copytree(model, tmp_path / "moved" / "base"), tmp_path / "out", recipe)
    file = min(model.glob("*.safetensors"))
    stored = file.read_bytes()
    file.write_bytes(stored[:-512] + bytes(byte ^ 1 for byte in stored[-512:]))
    with pytest.raises(ConfigError, match="another model, text or settings"):
        quantize(model, tmp_path / "out", recipe)


def test_a_run_is_not_taken_up_with_another_config_of_the_model(base: Path, tmp_path: Path) -> None:
    """By which the layers that are left would be calibrated, and all would be served."""
    recipe, model = Recipe(method="gptq", group_size=32), shutil.copytree(base, tmp_path / "base")
    with pytest.raises(KeyboardInterrupt):
        quantize(model, tmp_path / "out", recipe, stop_at_1)
    file = model / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    with pytest.raises(ConfigError, match="another model, text or settings"):
        quantize(model, tmp_path / "out", recipe)
    file.write_text(json.dumps(dict(reversed(config.items()))))
    quantize(model, tmp_path / "out", recipe)


def test_a_run_is_finished_by_the_version_that_began_it(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another may round and pack the layers that are left in another way."""
    recipe, out = Recipe(method="rtn", group_size=32), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        quantize(base, out, recipe, stop_at_1)
    with monkeypatch.context() as newer:
        newer.setattr(shard_files, "__version__", "9.9")
        with pytest.raises(ConfigError, match="another version of Quire"):
            quantize(base, out, recipe)
    quantize(base, out, recipe)
    monkeypatch.setattr(shard_files, "__version__", "9.9")
    assert Quantization(base, out, recipe, SAMPLES, CPU).is_finished


def test_files_that_a_finished_run_has_lost_are_copied_by_any_version(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, out, steps = Recipe(method="rtn", group_size=32), tmp_path / "out", list[str]()
    quantize(base, out, recipe)
    monkeypatch.setattr(shard_files, "__version__", "9.9")
    (out / "generation_config.json").unlink()
    quantize(base, out, recipe, lambda *step: steps.append(step[0]))
    assert Quantization(base, out, recipe, SAMPLES, CPU).is_finished
    assert not steps  # no layer was run
    (out / "config.json").unlink()  # by whose entry the other version's codes are read
    with pytest.raises(ConfigError, match="another version of Quire"):
        quantize(base, out, recipe)


def test_a_run_that_another_process_goes_on_with_is_left_to_it(base: Path, tmp_path: Path) -> None:
    """Each would write over the other's unfinished files."""
    recipe, out = Recipe(method="rtn", group_size=32), tmp_path / "out"

    def start_another(*_: object) -> None:
        before = files_of(out)
        with pytest.raises(ConfigError, match="another quire quantize writes to"):
            quantize(base, out, recipe)
        assert files_of(out) == before

    quantize(base, out, recipe, start_another)
    assert Quantization(base, out, recipe, SAMPLES, CPU).is_finished


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_a_file_that_was_cut_off_is_written_again(base: Path, tmp_path: Path, method: str) -> None:
    """As one may be after a system went down, though it has its name only once it is written."""
    recipe, device = Recipe(method=method, group_size=32), torch.device("cpu")
    run = Quantization(base, tmp_path / "out", recipe, SAMPLES, device)
    run.run(lambda *_: None)
    whole = files_of(tmp_path / "out")
    for size in (0, 1000):
        os.truncate(run.files.path(0), size)
        assert not run.is_finished
        run.run(lambda *_: None)
        assert files_of(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("down_proj", "layers.0.mlp.down_proj', which '*.down_proj' matches"),
        ("re:.*down_proj$", "layers.0.mlp.down_proj', which '*.down_proj' matches"),
        (r"re:.*layers\.1\.self_attn\.k_proj", "which '*.layers.1.self_attn.k_proj' matches"),
        ("mlp", "layers.0.mlp.gate_proj', which '*.mlp.*' matches"),
        ("re:.*(q|k)_proj", "layers.0.self_attn.q_proj', which '*.q_proj' matches"),
        ("", "layers.0.self_attn.q_proj', which '*.q_proj' matches"),
    ],
)
def test_an_error_on_an_ignored_name_has_a_pattern_that_matches(
    base: Path, tmp_path: Path, pattern: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        quantize(base, tmp_path, Recipe(method="rtn", group_size=32, ignore=(pattern,)))
    assert str(raised.value).startswith(f"ignore: no linear layer is named {pattern!r}; correct")
    assert str(raised.value).endswith(fix)
    quantize(base, tmp_path, Recipe(method="rtn", group_size=32, ignore=(fix.split("'")[-2],)))


def test_ignored_modules_stay_with_all_parts_of_their_weight(base: Path, tmp_path: Path) -> None:
    quantize(base, tmp_path, Recipe(method="rtn", group_size=32, ignore=("*.1.*.k_proj",)))
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    names = [f"model.layers.1.self_attn.{part}_proj" for part in "qkv"]
    assert config["ignore"] == [*names, "lm_head"]
    ours, plain = weights(tmp_path), weights(base)
    assert torch.equal(ours["1.self_attn.qkv_proj"], plain["1.self_attn.qkv_proj"])
    assert not torch.equal(ours["0.self_attn.qkv_proj"], plain["0.self_attn.qkv_proj"])
    with pytest.raises(ConfigError, match="no linear layer is named"):
        quantize(base, tmp_path / "x", Recipe(method="rtn", ignore=("*.w_proj",)))
    for wrong in ({"format": "xyz"}, {"act_order": "bogus"}):
        with pytest.raises(ConfigError, match="must be one of"):
            Recipe(method="gptq", **wrong)
    with pytest.raises(ConfigError, match="no linear layer is named 'typo'"):
        quantize(base, tmp_path / "x", Recipe(method="rtn", ignore=("lm_head", "typo")))
    quantize(
        base, tmp_path / "y", Recipe(method="rtn", group_size=32, ignore=("*lm_head", "*q_p*"))
    )


@pytest.mark.parametrize("method", ["rtn", "autoround", "int8", "fp8", "nf4", "mxfp4"])
def test_weights_that_no_scale_holds_are_refused(base: Path, tmp_path: Path, method: str) -> None:
    """Finite ones, as of a flipped bit: their scales are not, or no reader takes them."""
    model = shutil.copytree(base, tmp_path / "base")
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.self_attn.o_proj.weight"][3, 5] = 1e36
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1\.self_attn\.o_proj: a weight is 1e\+36, which"):
        quantize(model, tmp_path / "out", Recipe(method=method, group_size=32, steps=2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "settings",
    [{"method": "rtn"}, {"method": "gptq", "act_order": "group"}, {"method": "awq+autoround"},
     {"method": "nf4"}, {"method": "nf4", "double_quantization": True}],
    ids=str,
)  # fmt: skip
def test_scales_beyond_float16_are_refused(
    tmp_path: Path, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    """Readers have those of four bits in it; other formats hold the same weights."""
    write_model(model := tmp_path / "base", dtype=dtype)
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.self_attn.o_proj.weight"][3, 5] = 2e6
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1\.self_attn\.o_proj: .* scales of 4-bit"):
        quantize(model, tmp_path / "out", Recipe(**settings, group_size=32, steps=2))
    for method in ("int8", "mxfp4"):
        quantize(model, tmp_path / method, Recipe(method=method))
        load_unsaved(
            ModelSettings(prepared_weights="none"), ModelConfig.from_folder(tmp_path / method),
            tmp_path / method, CPU, torch.float32,
        )  # fmt: skip


@pytest.mark.parametrize("method", ["awq", "smoothquant"])
def test_norms_that_take_scales_stay_in_float16(tmp_path: Path, method: str) -> None:
    """An input that is always zero may have any scale, but its norm's weight has a largest one."""
    write_model(model := tmp_path / "base", dtype=torch.float16)
    tensors, norm = load_file(model / "model.safetensors"), "model.layers.0.input_layernorm.weight"
    tensors["model.embed_tokens.weight"][:, 7] = 0.0
    tensors[norm][7] = 30_000.0
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    quantize(model, tmp_path / "out", Recipe(method=method, group_size=32))
    found = load_file(min((tmp_path / "out").glob("*.safetensors")))[norm]
    assert found[7] == 30_000.0
    assert not torch.equal(found, tensors[norm]), "others take theirs"


@pytest.mark.parametrize("key", ["dynamic", "modules_in_block_to_quantize"])
def test_each_list_of_a_gptq_config_names_what_is_quantized(
    base: Path, tmp_path: Path, key: str
) -> None:
    """Libraries read one of them: GPTQModel the rules, transformers the modules."""
    recipe = Recipe(method="rtn", format="gptq", group_size=32, ignore=("*.1.*.k_proj", "*.o_proj"))
    quantize(base, tmp_path, recipe)
    config = json.loads((tmp_path / "config.json").read_text())
    wanted = weights(tmp_path)
    config["quantization_config"] = {
        name: value
        for name, value in config["quantization_config"].items()
        if name == key or name not in ("dynamic", "modules_in_block_to_quantize")
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert all(torch.equal(wanted[name], each) for name, each in weights(tmp_path).items())


@pytest.mark.parametrize("method", ["rtn", "awq", "gptq", "int8", "fp8", "nf4", "mxfp4"])
def test_ignored_modules_of_a_model_without_a_head(tmp_path: Path, method: str) -> None:
    """Whose names lack a part, in its files and in what its config file says of them."""
    write_embedding_model(tmp_path / "base")
    recipe = Recipe(method=method, group_size=32, ignore=("layers.1.self_attn.*",))
    quantize(tmp_path / "base", tmp_path / "out", recipe)
    ours, plain = weights(tmp_path / "out"), weights(tmp_path / "base")
    same = {name for name, weight in ours.items() if torch.equal(weight, plain[name])}
    assert same >= {"1.self_attn.qkv_proj", "1.self_attn.o_proj"}
    assert not same & {"0.self_attn.qkv_proj", "0.self_attn.o_proj", "1.mlp.gate_up_proj"}
    check_tensors(tmp_path / "out", ModelConfig.from_folder(tmp_path / "out"))


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "rtn", "format": "awq", "symmetric": True},
        {"method": "gptq", "format": "compressed-tensors", "act_order": "group"},
        {"method": "int8", "format": "gptq"},
        {"method": "int8", "symmetric": False},
        {"method": "nf4", "format": "awq"},
        {"method": "rtn", "double_quantization": True},
        {"method": "int8", "weight_only": True},
        {"method": "rtn", "group_size": 0},
        {"method": "nearest"},
    ],
)
def test_settings_that_do_not_go_together(settings: dict) -> None:
    with pytest.raises(ConfigError):
        Recipe(**settings)


def test_a_model_loses_nothing_against_itself(base: Path) -> None:
    same = [ModelParts(base, CPU) for _ in range(2)]
    report = compare_models(*same, SAMPLES.verification, [], lambda *_: None)
    assert report["kl_divergence"]["p99"] < 1e-6
    assert report["same_top_1"]["share"] == 1.0
    assert report["perplexity"]["change_95"] == [0.0, 0.0]
    assert all(layer["mean"] == pytest.approx(1.0, abs=1e-6) for layer in report["layers"])


def test_fewer_bits_lose_more(base: Path, tmp_path: Path) -> None:
    found = {}
    for method in ("rtn", "fp8", "int8"):
        quantize(base, tmp_path / method, Recipe(method=method, group_size=32))
        pair = ModelParts(base, CPU), ModelParts(tmp_path / method, CPU)
        report = compare_models(*pair, SAMPLES.verification, [], lambda *_: None)
        found[method] = report["kl_divergence"]["mean"]
        assert report["bytes"]["quantized"] < report["bytes"]["base"]
    assert found["rtn"] > found["fp8"] > 0
    assert found["rtn"] > found["int8"] > 0


@pytest.mark.parametrize("method", ["fp8", "fp8+gptq"])
def test_weights_alone_in_fp8_lose_less(base: Path, tmp_path: Path, method: str) -> None:
    """The checkpoint says that activations are not rounded, and `verify` does not round them."""
    found = {}
    for weight_only in (False, True):
        out = tmp_path / str(weight_only)
        quantize(base, out, Recipe(method=method, weight_only=weight_only))
        config = json.loads((out / "config.json").read_text())["quantization_config"]
        group = config["config_groups"]["group_0"]
        assert (group["input_activations"] is None) == weight_only
        pair = ModelParts(base, CPU), ModelParts(out, CPU)
        report = compare_models(*pair, SAMPLES.verification, [], lambda *_: None)
        found[weight_only] = report["kl_divergence"]["mean"]
    assert 0 < found[True] < 0.8 * found[False]


def test_files_have_the_mode_that_the_umask_gives(base: Path, tmp_path: Path) -> None:
    quantize(base, tmp_path / "out", Recipe(method="rtn", group_size=32))
    modes = {file.name: file.stat().st_mode for file in (tmp_path / "out").iterdir()}
    assert len(set(modes.values())) == 1, modes


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(method="rtn", group_size=40), "group_size 40 divides .* of no linear layer; use"),
        (Recipe(method="nf4", ignore=("*",)), "ignore leaves no linear layer to quantize"),
    ],
)
def test_settings_that_leave_no_layer_are_refused(
    base: Path, tmp_path: Path, recipe: Recipe, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        quantize(base, tmp_path / "out", recipe)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rotate", [False, True])
def test_a_data_type_that_no_model_runs_in_is_refused(tmp_path: Path, rotate: bool) -> None:
    write_model(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "float64"}))
    with pytest.raises(CheckpointError, match="dtype is 'float64'; set dtype to one of"):
        quantize(tmp_path, tmp_path / "out", Recipe(method="rtn", rotate=rotate))


def test_the_time_of_learned_rounding_is_that_of_the_steps_that_are_left(tmp_path: Path) -> None:
    write_model(tmp_path / "base")
    recipe, out = Recipe(method="autoround", group_size=32, steps=7), tmp_path / "out"
    run = Quantization(tmp_path / "base", out, recipe, SAMPLES, torch.device("cpu"))
    began = time.perf_counter()
    seconds = run.learning_seconds()
    assert 0 < seconds < (time.perf_counter() - began) * 7 * 2
    run.run(lambda *_: None)
    assert run.learning_seconds() == 0
