"""Quantized checkpoints of each format: loaded, compared with their numbers, refused when wrong."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import PagedModel, load_folder
from prepared_files import wait_for_prepared_files
from quantized_checkpoints import DOWN, METHODS, words, write_quantized
from safetensors.torch import load_file
from torch import Tensor

from quire import LLM
from quire.compress.model_parts import ModelParts
from quire.config import EngineConfig, ModelSettings
from quire.engine.startup import footprint
from quire.engine.startup.footprint import weights_by_format
from quire.errors import CheckpointError, ConfigError
from quire.kernels.cpu import native
from quire.kernels.formats.native_format import NativeFormat
from quire.kernels.formats.table import format_of
from quire.kernels.operands import CodebookWeight, Int4Weight, Int8Weight, PackedWeight, QuantSpec
from quire.layers.linear_layers import LinearBase
from quire.models.checkpoint_formats.awq import ORDER, rows_of
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.checkpoint_formats.integer_layout import integer_spec
from quire.models.checkpoint_formats.integer_rows import (
    packed,
    unpacked,
    words_as_rows,
)
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.config.model_config import ModelConfig
from quire.models.loading.checkpoint_source import CheckpointSource
from quire.models.prepared.prepared_weights import stored_arrays
from quire.models.runtimes.compiled_weights import find_weights
from quire.quantization.stored_weight import tensors_of

PROMPT = torch.randint(3, 500, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def test_a_quantization_that_the_checkpoint_lacks_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_quantized("awq", tmp_path)

    def warnings(model: str | Path, quantization: str) -> str:
        caplog.clear()
        options = {"dtype": "float32", "prepared_weights": "none", "num_blocks": 64}
        with LLM(model, quantization=quantization, skip_tokenizer_init=True, **options) as llm:
            assert llm.info.quantization == ("awq" if model == tmp_path else "none")
        return "\n".join(each.getMessage() for each in caplog.records if "quantization" in each.msg)

    for name in ("awq", "auto_awq", "awq_marlin", "none"):
        assert warnings(tmp_path, name) == ""
    assert warnings(tmp_path, "gptq_marlin") == (
        "quantization is 'gptq', but the checkpoint's is awq, in which it is served"
    )
    assert warnings("quire-tiny", "awq") == (
        "quantization is 'awq', but the checkpoint is not quantized: it is served in float32; use "
        "quantization 'int4' to quantize it while it is loaded, or `quire quantize --method awq` "
        "to make a quantized checkpoint"
    )
    assert "use quantization 'fp8' to" in warnings("quire-tiny", "modelopt")


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
        subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *folders], check=True)


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_and_unpacking_are_inverses(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (24, 64), dtype=torch.uint8)
    assert torch.equal(unpacked(packed(codes, bits), bits), codes)
    assert torch.equal(words_as_rows(words(codes, bits)), packed(codes, bits))
    few = codes[:, : 32 // bits]  # in one word each: a transposed column has strides of its own
    column = torch.empty(1, 24, dtype=torch.int32).copy_(words(few, bits).t()).t()
    assert torch.equal(words_as_rows(column), packed(few, bits))
    fours = codes & 15
    assert torch.equal(unpacked(rows_of(words(fours, 4, ORDER)), 4), fours.t())


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


def drop(leaf: str) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        del tensors[f"model.layers.0.mlp.up_proj.{leaf}"]

    return change


def cast(leaf: str, dtype: torch.dtype) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        name = f"model.layers.0.mlp.up_proj.{leaf}"
        tensors[name] = tensors[name].to(dtype)

    return change


def spoil(leaf: str) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    """One scale is NaN."""

    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        tensors[f"model.layers.0.mlp.up_proj.{leaf}"].flatten()[-1] = float("nan")

    return change


def only_one(leaf: str) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    """The scale of the first output for all."""

    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        name = f"model.layers.0.mlp.up_proj.{leaf}"
        tensors[name] = tensors[name].flatten()[:1].clone()

    return change


def configure(**changes: Any) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def change(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        config["quantization_config"] |= changes

    return change


def reorder(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.k_proj.g_idx"
    tensors[name] = tensors[name].flip(0)


def group_of(**weights: Any) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    """Other settings of the weights of a compressed-tensors group."""

    def change(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        section = copy.deepcopy(config["quantization_config"])  # which other tests use, too
        section["config_groups"]["group_0"]["weights"] |= weights
        config["quantization_config"] = section

    return change


def other_shape(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.endswith("weight_shape")]:
        tensors[name] = tensors[name] + 1


def reorder_one(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    """A part with an order beside others without any."""
    reorder(tensors, {})
    del tensors["model.layers.0.self_attn.q_proj.g_idx"]


def one_group_less(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.k_proj.g_idx"
    tensors[name] = tensors[name].clamp(max=2)


def give_biases(value: float) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    """A bias for each quantized layer, as AutoGPTQ writes them."""

    def change(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.endswith(".scales")]:
            size = tensors[name].shape[1]
            tensors[name.replace(".scales", ".bias")] = torch.full((size,), value).half()

    return change


def test_biases_of_zeros_that_the_model_lacks_are_passed_over(tmp_path: Path) -> None:
    write_quantized("gptq", tmp_path, give_biases(0.0))
    load_folder(tmp_path, prepared_weights="none")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("awq", drop("scales"), r"quantized by awq; missing: model.layers.0.mlp.up_proj.scales;"),
        (
            "awq",
            cast("scales", torch.int64),
            r"up_proj.scales .* its data type is I64, not the F16",
        ),
        # of the layer that is read first
        ("awq", configure(group_size=64), r"is \[(4|8), \d+\], not the \[(2|4), \d+\] of quanti"),
        ("awq", configure(group_size=48), r"inputs are not a multiple of group_size 48; correct"),
        ("awq", configure(group_size=0), r"group_size is 0; correct quantization_config"),
        ("awq", configure(bits=3), r"quantization_config.bits is 3, but AWQ is read with 4"),
        ("awq", configure(version="gemv"), r"version is 'gemv'; take a checkpoint in AWQ's 'gemm'"),
        ("awq", configure(quant_method="gptq"), r"quantized by gptq; missing: .*qweight"),
        ("awq", configure(quant_method="aqlm"), r"quant_method is 'aqlm', which is not read; take"),
        ("awq", configure(modules_to_not_convert=[]), rf"missing: {DOWN}.qweight"),
        ("awq", configure(modules_to_not_convert="x"), r"must be a list of strings"),
        ("gptq", configure(bits=8), r"its shape is"),
        ("gptq", configure(bits=3), r"bits is 3; take a checkpoint of 4 or 8 bits"),
        (
            "gptq",
            configure(checkpoint_format="marlin"),
            r"is 'marlin'; take a checkpoint in 'gptq'",
        ),
        ("gptq", configure(checkpoint_format="gptq_v2"), r"proj: its qzeros are not those of symm"),
        ("gptq", configure(dynamic={"-:(": {}}), r"dynamic.-:\( holds '\(', which is not a reg"),
        ("gptq_order", drop("g_idx"), r"missing: model.layers.0.mlp.up_proj.g_idx"),
        (
            "gptq_order",
            reorder,
            r"k_proj: its g_idx orders inputs in another way than that of .*q_",
        ),
        ("gptq", reorder, r"its g_idx orders inputs in another way"),
        ("gptq", reorder_one, r"its g_idx orders inputs in another way"),
        ("gptq_order", one_group_less, r"g_idx .*it does not put its inputs into 4 groups of one"),
        ("packed", drop("weight_scale"), r"missing: model.layers.0.mlp.up_proj.weight_scale"),
        ("packed", configure(config_groups={}), r"config_groups is missing"),
        (
            "packed",
            configure(format="nvfp4-pack-quantized"),
            r"num_bits is 4 \(int, group, symmetric",
        ),
        ("mxfp4", group_of(group_size=64), r"group_size is 64 \(group\), but MXFP4 has a scale"),
        ("mxfp4", group_of(strategy="channel"), r"\(channel\), but MXFP4 has a scale for each 32"),
        ("int8", configure(format="nvfp4-pack-quantized"), r"num_bits is 8 \(int, channel, symm"),
        ("packed", other_shape, r"proj: its weight_shape is \[\d+, \d+\], but weight_packed has"),
        ("packed", configure(ignore=["re:("]), r"ignore holds '\(', which is not a regular"),
        ("packed", configure(ignore=["re:((a|b)+)+!"]), "ignore holds .*very long to match"),
        ("packed", configure(ignore=["re:" + ".*" * 5]), "ignore holds .*very long to match"),
        ("packed", configure(ignore=["re:" + "a" * 1001]), "ignore holds .*is too long"),
        (
            "packed",
            configure(quantization_status="frozen"),
            r"is 'frozen'; save the checkpoint com",
        ),
        ("auto_round", configure(data_type="mx_fp"), r"data_type is 'mx_fp'; take integers"),
        ("auto_round", configure(packing_format="x"), r"packing_format is 'x' with 4 bits; take"),
        ("auto_round", configure(act_bits=8), r"act_bits is set; take a checkpoint that quantizes"),
        ("auto_round", configure(extra_config={}), rf"missing: {DOWN}.qweight"),
        ("modelopt", configure(quant_algo="NVFP4"), r"quant_algo is 'NVFP4'; take a checkpoint in"),
        ("fp8", cast("weight", torch.bfloat16), r"up_proj.weight .*BF16, not the F8_E4M3"),
        (
            "fp8",
            configure(weight_block_size=[128]),
            r"weight_block_size is \[128\]; it must be two",
        ),
        ("fp8", configure(fmt="e5m2"), r"fmt is 'e5m2'; take a checkpoint in e4m3"),
        (
            "awq",
            spoil("scales"),
            r"up_proj: its scales has a number that is not finite; download",
        ),
        ("gptq_8", spoil("scales"), r"up_proj: its scales has a number that is not finite"),
        (
            "int8",
            spoil("weight_scale"),
            r"up_proj: its weight_scale has a number that is not finite",
        ),
        (
            "int8",
            only_one("weight_scale"),
            r"weight_scale .*its shape is \[1\], not the \[256\] or",
        ),
        ("float_channel", only_one("weight_scale"), r"its shape is \[1\], not the \[256\] or"),
        (
            "float_block",
            spoil("weight_scale"),
            r"up_proj: its weight_scale has a number that is not finite",
        ),
        (
            "nf4",
            spoil("weight.absmax"),
            r"up_proj: its weight.absmax has a number that is not finite",
        ),
        (
            "fp8_block_exponents",
            spoil("weight_scale_inv"),
            r"up_proj: its weight_scale_inv has a number that is not finite",
        ),
        ("gptq", give_biases(0.5), r"left over: model.layers.0.mlp.down_proj.bias"),
        ("llm_int8", spoil("SCB"), r"up_proj: its SCB has a number that is not finite; download"),
        ("fp8", drop("weight_scale"), r"missing: model.layers.0.mlp.up_proj.weight_scale"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__qualname__,
)
def test_what_does_not_fit_is_refused_by_name(
    name: str, change: Any, message: str, tmp_path: Path
) -> None:
    write_quantized(name, tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        load_folder(tmp_path, prepared_weights="none")


def test_codes_without_a_config_are_refused(tmp_path: Path) -> None:
    write_quantized("fp8", tmp_path, lambda _, config: config.pop("quantization_config"))
    with pytest.raises(CheckpointError, match=r"config.json has no quantization_config: take"):
        load_folder(tmp_path, prepared_weights="none")


def test_gate_and_up_are_in_fp8_on_a_gpu_whatever_down_is(tmp_path: Path) -> None:
    """`method_for` sees both formats, so that no activation is rounded for one that is not."""
    write_quantized("float_channel", tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    scheme = choose_formats(ModelSettings(), config.checkpoint_format, config.spec, "cuda")
    assert scheme is not None
    found = {
        name: scheme.format_for(name, linear.role, linear.n, linear.k)
        for name, linear in config.spec.named_linears
    }
    numbers = {name for name, each in found.items() if each is None}
    assert numbers == {DOWN, "lm_head"}


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("gptq_8", QuantSpec("int8_group", 32)),
        ("gptq_8_order", QuantSpec("int8_group", 32, zeros=True, permuted=True)),
        ("packed_8", QuantSpec("int8_group", 128)),
        ("int8_weights", QuantSpec("int8_group", 128)),
        ("float_tensor", QuantSpec("fp8_a16")),
        ("float_channel", QuantSpec("fp8_a16")),
        ("float_block", QuantSpec("fp8_block_a16", 64)),
        ("fp8_block", QuantSpec("fp8_block", 128)),
        ("float_tokens", QuantSpec("fp8")),
        ("fp8", QuantSpec("fp8")),
        ("modelopt", QuantSpec("fp8")),
    ],
)
def test_eight_bits_stay_codes_on_a_gpu(name: str, spec: QuantSpec, tmp_path: Path) -> None:
    """Activations are rounded where the checkpoint asks for it.

    Canonical rows are the numbers that they become on a CPU.
    """
    write_quantized(name, tmp_path)
    config, module = ModelConfig.from_folder(tmp_path), "model.layers.0.self_attn.o_proj"
    checkpoint = config.checkpoint_format
    assert checkpoint is not None
    for device, expected in (("cuda", format_of(spec)), ("cpu", None)):
        scheme = choose_formats(ModelSettings(), checkpoint, config.spec, device)
        assert scheme is not None
        assert scheme.format_for(module, "layer", 128, 128) == expected
    stored = checkpoint.stored_linear(module)
    assert stored is not None
    tensors = load_file(tmp_path / "model.safetensors")
    own = {leaf: tensors[f"{module}.{leaf}"] for leaf in stored.tensors(128, 128)
           if f"{module}.{leaf}" in tensors}  # fmt: skip
    rows, numbers = stored.rows(own), stored.numbers(own, "float32")
    assert rows.spec == spec
    found = format_of(spec).dequantize(rows)
    if (order := rows.tensors.get("permutation")) is not None:
        numbers = numbers[:, order]
    torch.testing.assert_close(found, numbers)


@pytest.mark.parametrize("name", ["gptq_8", "fp8_block", "float_block", "float_channel"])
@pytest.mark.parametrize(
    ("dtype", "capability", "keeps"),
    [
        ("bfloat16", (9, 0), True),
        ("bfloat16", None, True),
        ("float16", (9, 0), False),
        ("bfloat16", (8, 0), ["float_channel"]),
        ("float16", (10, 0), ["float_channel"]),
    ],
)
def test_eight_bits_stay_codes_where_their_kernels_run(
    name: str,
    dtype: str,
    capability: tuple[int, int] | None,
    keeps: bool | list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan has them in as many bytes. keeps: which names do, if not all or none."""
    write_quantized(name, tmp_path)
    model_config = ModelConfig.from_folder(tmp_path)
    options = {"model": tmp_path, "device": "cuda", "dtype": dtype}
    monkeypatch.setattr(footprint, "driver_capability", lambda: capability)
    config = EngineConfig.from_options(**options)
    planned = footprint.weights_by_format(config, model_config, tmp_path)
    assert (len(planned) > 1) == (keeps if isinstance(keeps, bool) else name in keeps)


@pytest.mark.parametrize("block", [(128, 128), None])
def test_codes_in_fp8_that_are_no_number_are_refused(block: tuple[int, int] | None) -> None:
    linear = Fp8Linear("config.json", "scale", block, rounds=False)
    codes = torch.full((128, 128), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="not a number"):
        linear.rows({"weight": codes, "scale": torch.ones(1, 1)})


@pytest.mark.parametrize("name", ["float_tokens", "fp8_block"])
def test_a_quality_report_rounds_activations_as_fp8_checkpoints_expect(
    name: str, tmp_path: Path
) -> None:
    write_quantized(name, tmp_path)
    parts = ModelParts(tmp_path, torch.device("cpu"))
    module, linear = "model.layers.0.mlp.down_proj", parts.spec.layers[0].mlp.down
    rounding = parts.activation_rounding(module, linear)
    assert rounding is not None
    assert rounding(torch.full((1, linear.k), 1.01))[0, 0] == 1.0


@pytest.mark.parametrize("size", [0, -32, -1, 32, 7])
def test_groups_of_no_size_have_no_format(size: int) -> None:
    """A plan is made before the sizes of groups are refused with the tensor's name."""
    found = integer_spec(4, size, 64, zeros=False)
    assert (found is None) == (size in (0, -32, 7))


def test_modelopts_own_config_file_is_read(tmp_path: Path) -> None:
    def move(_: dict[str, Tensor], config: dict[str, Any]) -> None:
        own = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", DOWN]}}
        del config["quantization_config"]
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(own))

    write_quantized("modelopt", tmp_path, move)
    found = ModelConfig.from_folder(tmp_path).checkpoint_format
    assert found is not None
    assert found.stored_linear(DOWN) is None
    assert found.stored_linear(DOWN.replace("1", "0")) is not None
    load_folder(tmp_path, prepared_weights="none")


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
