"""Quantized checkpoints of all formats: loaded, and compared with their numbers."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_to_end
from harmed_checkpoints import check_refused
from harness import PagedModel, load_folder
from prepared_files import wait_for_prepared_files
from quantized_checkpoints import METHODS, write_quantized
from torch import Tensor

from quire import LLM
from quire.cli import main
from quire.compress.recipe import Recipe
from quire.config import STORED_METHODS, EngineConfig, ModelSettings
from quire.engine.startup.footprint import weights_by_format
from quire.engine.startup.resolved_config import ResolvedConfig, resolve
from quire.errors import ConfigError
from quire.kernels.cpu import native
from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.table import format_of
from quire.kernels.operands import CodebookWeight, Int4Weight, Int8Weight, PackedWeight
from quire.layers.linear_layers import LinearBase
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.config.model_config import ModelConfig
from quire.models.loading.checkpoint_source import CheckpointSource
from quire.models.prepared.prepared_weights import stored_arrays
from quire.models.runtimes.compiled_weights import find_weights
from quire.quantization.scheme import SCHEMES
from quire.quantization.stored_weight import tensors_of

PROMPT = torch.randint(3, 500, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def resolved(model: str | Path, quantization: str) -> ResolvedConfig:
    return resolve(EngineConfig.from_options(model=str(model), quantization=quantization), "cpu")


def test_the_load_format_bitsandbytes_is_the_quantization_of_that_name() -> None:
    """As in vLLM, where it is not about files: a 16-bit model would be served in 16 bits."""
    given = EngineConfig.from_options(load_format="bitsandbytes")
    assert given == EngineConfig.from_options(quantization="bitsandbytes")
    with pytest.raises(ConfigError, match=r"load_format='bitsandbytes' means.* quantization='nf4'"):
        resolve(given, "cpu")
    both = EngineConfig.from_options(load_format="bitsandbytes", quantization="nf4")
    assert both == EngineConfig.from_options(quantization="nf4")


@pytest.mark.parametrize("name", STORED_METHODS)
def test_a_format_that_the_checkpoint_lacks_is_refused_with_what_makes_it(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolved("quire-tiny", name)
    found = re.fullmatch(
        f"quantization is '{name}'(?:, which load_format='{name}' means, too)?, "
        "but the checkpoint is not quantized: its weights are in bfloat16; "
        r"use quantization='(\w+)' to convert them while they are loaded, "
        "(?:make a checkpoint with `quire quantize --method (.+)`, )?"
        "or leave that out to serve them as they are",
        str(error.value),
    )
    assert found is not None
    assert found[1] in SCHEMES
    method, _, packing = (found[2] or "").partition(" --format ")
    assert (name == "gguf") if not method else Recipe(method=method, format=packing or None)


def test_a_format_named_for_a_checkpoint_has_to_be_its_own(tmp_path: Path) -> None:
    write_quantized("awq", tmp_path)
    for name in ("awq", "auto_awq", "awq_marlin", "AWQ", "none"):
        assert resolved(tmp_path, name).config.model.scheme == "none"
    with pytest.raises(ConfigError, match=r"'gptq', but .* format of awq; leave that out"):
        resolved(tmp_path, "gptq_marlin")


@pytest.mark.parametrize("name", METHODS)
def test_each_checkpoint_may_be_named_by_its_format(name: str, tmp_path: Path) -> None:
    write_quantized(name, tmp_path)
    stored = ModelConfig.from_folder(tmp_path).checkpoint_format
    assert stored is not None
    assert resolved(tmp_path, stored.name).config.model.scheme in ("none", stored.name)


def test_commands_and_files_of_settings_refuse_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("quantization: gptq\n")
    for line in ("generate hello --quantization gptq", f"serve --dry-run --config {settings}"):
        assert main(line.split()) == 2
        assert "quantization is 'gptq', but the checkpoint is not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "warns"), [("none", False), ("awq", False), ("dequantized", False), ("int8", True)]
)
def test_weights_that_are_rounded_a_second_time_are_a_warning(
    setting: str, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_quantized("awq", tmp_path)
    options = {"dtype": "float32", "prepared_weights": "none", "num_blocks": 64}
    LLM(tmp_path, quantization=setting, skip_tokenizer_init=True, **options).close()
    text = (
        "the checkpoint is already quantized (awq), and quantization is 'int8': its weights are "
        "dequantized and rounded a second time, to int8, and lose more; leave quantization out to "
        "serve what the checkpoint stores"
    )
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert (text in warnings) == warns


@pytest.mark.parametrize("stored", ["fp8", "awq"])
def test_fp8_leaves_a_checkpoint_of_that_name_as_it_is(stored: str, tmp_path: Path) -> None:
    """As vLLM's users say it."""
    write_quantized(stored, tmp_path)
    resolved = resolve(EngineConfig.from_options(model=str(tmp_path), quantization="fp8"), "cpu")
    assert resolved.config.model.scheme == ("none" if stored == "fp8" else "fp8")


@pytest.mark.parametrize("name", METHODS)
def test_every_format_gives_the_logits_of_its_numbers(name: str, tmp_path: Path) -> None:
    """Exactly where they run as numbers; where codes run, activations are rounded to bytes."""
    oracle = write_quantized(name, tmp_path)
    model, model_config = load_folder(tmp_path, prepared_weights="none")
    ours = PagedModel(model, model_config).prefill(PROMPT)
    with torch.inference_mode():
        theirs = oracle(torch.tensor([PROMPT])).logits[0]
    native_format, error = METHODS[name].native_format, (ours - theirs).norm() / theirs.norm()
    assert error < (1e-5 if native_format is None else 0.05)


@pytest.mark.parametrize("name", METHODS)
def test_weights_are_the_codes_of_the_checkpoint_to_the_last_bit(name: str, tmp_path: Path) -> None:
    oracle = write_quantized(name, tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    linears = dict(oracle.named_modules())
    for setting in ("none", "int8"):
        scheme = choose_formats(
            ModelSettings(quantization=setting), config.checkpoint_format, config.spec, "cpu"
        )
        source = CheckpointSource(Checkpoint.open(tmp_path), config, scheme)
        source._names = set(source._checkpoint.entries)
        for weight, found, _ in source.weights(torch.device("cpu"), torch.float32):
            module = weight.removesuffix(".weight")
            if isinstance(found, Tensor) and not isinstance(linears.get(module), torch.nn.Linear):
                continue
            expected = linears[module].weight
            assert torch.equal(numbers_of(found), expected), module


def numbers_of(weight: Any) -> Tensor:
    """What codes stand for, by their definition."""
    if isinstance(weight, CodebookWeight):
        return format_of(weight.spec).dequantize(weight)
    if isinstance(weight, Int8Weight):
        assert not weight.hadamard
        return weight.codes.float() * weight.scale[:, None]
    if not isinstance(weight, Int4Weight):
        return weight
    assert not weight.hadamard
    codes = torch.stack([weight.codes & 15, weight.codes >> 4], dim=2).flatten(1).float()
    zeros = 8.0 if weight.zeros is None else weight.zeros[:, :, None].float()
    groups = codes.unflatten(1, (-1, weight.group)) - zeros
    found = (groups * weight.scale[:, :, None].float()).flatten(1)
    if weight.permutation is None:
        return found
    ordered = torch.empty_like(found)
    ordered[:, weight.permutation.long()] = found
    return ordered


@pytest.mark.skipif(native.library() is None, reason="there are no compiled kernels")
@pytest.mark.parametrize("name", METHODS)
def test_the_compiled_decoder_serves_it(name: str, tmp_path: Path) -> None:
    """All weights are natively packed; the table here says in which format."""
    write_quantized(name, tmp_path)
    model, model_config = load_folder(tmp_path, "bfloat16", prepared_weights="none")
    find_weights(model_config.spec, stored_arrays(model), 16)
    layers = [m for m in model.model.layers.modules() if isinstance(m, LinearBase)]
    formats = [layer.method.operand for layer in layers]
    assert all(isinstance(operand, PackedWeight) for operand in formats)
    native_format = METHODS[name].native_format or "BFLOAT16"
    skipped = len(METHODS[name].skipped)
    assert [operand.format for operand in formats].count(NativeFormat[native_format]) == len(
        formats
    ) - (skipped if METHODS[name].native_format else 0)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # who imports it fails
from quire.config import EngineConfig
from quire.engine.startup.compiled_start import load_prepared
from quire.engine.startup.startup_phases import Phases
settings = dict(device="cpu", dtype="float32", max_model_len=64, num_blocks=8)
load_prepared(
    EngineConfig.from_options(model=sys.argv[1], prepared_weights=sys.argv[2], **settings), Phases()
)
"""


@pytest.mark.parametrize("name", ["awq", "gptq_zeros_order", "int8", "fp8"])
def test_prepared_weights_are_those_that_were_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start with prepared weights needs no PyTorch."""
    monkeypatch.setattr("quire.models.prepared.prepared_weights.WORTH_BYTES", 0)
    write_quantized(name, tmp_path / "model")
    logits = []
    for _ in range(2):
        model, config = load_folder(tmp_path / "model", prepared_weights=str(tmp_path / "cache"))
        logits.append(PagedModel(model, config).prefill(PROMPT))
        wait_for_prepared_files()
    assert list((tmp_path / "cache").glob("*.safetensors"))
    assert torch.equal(*logits)
    if native.library() is not None:
        folders = tmp_path / "model", tmp_path / "cache"
        run_to_end([sys.executable, "-c", WITHOUT_TORCH, *folders], check=True)


@pytest.mark.skipif(native.library() is None, reason="what is packed is larger than rows")
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("name", METHODS)
def test_the_memory_plan_counts_the_codes(name: str, load_format: str, tmp_path: Path) -> None:
    """Dummy weights have the checkpoint's formats, too."""
    write_quantized(name, tmp_path)
    options = {"load_format": load_format, "prepared_weights": "none", "dtype": "float32"}
    model, model_config = load_folder(tmp_path, **options)
    config = EngineConfig.from_options(model=str(tmp_path), device="cpu", **options)
    planned = weights_by_format(config, model_config, tmp_path)
    found: Counter[str] = Counter()
    for module in model.modules():
        if isinstance(module, LinearBase) and module.method.weight_format is not None:
            tensors = tensors_of(module.method.operand).values()
            found[module.method.weight_format.name] += sum(tensor.nbytes for tensor in tensors)
    assert found == Counter({key: size for key, size in planned.items() if key != "float32"})
    assert bool(found) == (METHODS[name].native_format is not None)


@pytest.mark.parametrize("name", METHODS)
def test_a_scale_beyond_all_numbers_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Finite ones, too, by which the first request would fail, without a word of which it is."""

    def enlarge(tensors: dict[str, torch.Tensor], _: object) -> None:
        for name, tensor in tensors.items():
            is_codes = not tensor.is_floating_point() and tensor.dtype != torch.uint8
            is_codes |= tensor.dtype == torch.float8_e4m3fn
            if ".0.mlp.up_proj." in name and not is_codes:
                is_exponent = tensor.dtype == torch.uint8
                tensor.flatten()[-1] = 253 if is_exponent else 1e38

    check_refused(name, enlarge, "up_proj: (its .* has a number that is|a scale is) ", tmp_path)


def test_a_setting_quantizes_the_numbers_again(tmp_path: Path) -> None:
    """In the setting's format, with a Hadamard rotation, which other tools' codes do not have."""
    oracle = write_quantized("fp8", tmp_path)
    model, model_config = load_folder(tmp_path, prepared_weights="none", quantization="int8")
    down = model.model.layers[0].mlp.down_proj
    assert down.method.weight_format.spec.hadamard
    ours = PagedModel(model, model_config).prefill(PROMPT)
    with torch.inference_mode():
        theirs = oracle(torch.tensor([PROMPT])).logits[0]
    assert (ours - theirs).norm() / theirs.norm() < 0.05


def test_overrides_of_a_checkpoints_own_formats_are_refused(tmp_path: Path) -> None:
    write_quantized("awq", tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    settings = ModelSettings(quantization_overrides="*.o_proj=int8")
    with pytest.raises(ConfigError, match="quantized by awq; leave it out, or give quantization"):
        choose_formats(settings, config.checkpoint_format, config.spec, "cpu")
