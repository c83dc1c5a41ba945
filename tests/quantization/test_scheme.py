"""Which weights get which format, and how much memory a format takes."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch

from quire.config import STORED_METHODS, EngineConfig, ModelSettings
from quire.engine.startup import resolved_config
from quire.engine.startup.device_policy import DeviceType
from quire.errors import ConfigError
from quire.hub import resolve_model
from quire.kernels.cpu import native
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp8 import FP8
from quire.kernels.formats.int4 import INT4
from quire.kernels.formats.int8 import INT8
from quire.kernels.formats.nf4 import NF4
from quire.kernels.formats.weight_format import WeightFormat
from quire.layers.linear_layers import LinearBase
from quire.layers.parameter import LayerOptions
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.quantization.scheme import SCHEMES, Role, Scheme, scheme_of
from quire.quantization.stored_weight import tensors_of


def test_the_setting_names_the_schemes_that_there_are() -> None:
    assert get_args(get_type_hints(ModelSettings)["quantization"]) == (
        "none", *SCHEMES, *STORED_METHODS
    )  # fmt: skip


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError,
        match="one of none, fp8, fp8_w8a16, int8, w8a16, int4, nf4, mxfp4, dequantized, "
        "awq, gptq, auto-round, bitsandbytes, compressed-tensors, modelopt, gguf, not 'fp7'",
    ):
        EngineConfig.from_options(quantization="fp7")
    with pytest.raises(ConfigError, match="quantization must be one of none, fp8"):
        scheme_of("fp7", "cpu")


def test_roles_without_a_format_are_left_alone() -> None:
    scheme = Scheme("invented", {"layer": (FP8,)})
    assert scheme.format_for("", "layer", 3, 5) is FP8
    assert scheme.format_for("", "head", 3, 5) is None


def test_modules_may_be_ignored_by_name() -> None:
    overrides = (("*.down_proj", None), ("model.layers.0.*", None))
    scheme = Scheme("invented", {"layer": (INT4, INT8)}, overrides=overrides)
    chosen = {
        name: scheme.format_for(name, "layer", 64, 128)
        for name in ("model.layers.0.mlp.gate_up_proj", "model.layers.1.mlp.gate_up_proj")
    }
    assert list(chosen.values()) == [None, INT4]
    assert scheme.format_for("model.layers.1.mlp.down_proj", "layer", 64, 128) is None


def test_modules_may_have_formats_of_their_own() -> None:
    scheme = scheme_of("int4", "cpu", "*.0.mlp.*=int8, *.down_proj=none,lm_head=nf4")
    assert scheme is not None

    def chosen(module: str, role: Role = "layer") -> WeightFormat | None:
        return scheme.format_for(module, role, 64, 128)

    assert chosen("model.layers.0.mlp.down_proj") is INT8
    assert chosen("model.layers.1.mlp.down_proj") is None
    assert chosen("model.layers.1.mlp.gate_up_proj") is INT4
    assert chosen("lm_head", "head") is NF4
    assert chosen("model.layers.0.mlp.router", "router") is None
    whole = scheme_of("int4", "cpu", "*=nf4,lm_head=int8")
    assert whole is not None
    assert whole.format_for("lm_head", "head", 64, 128) is NF4  # the first that matches
    alone = scheme_of("none", "cpu", "*.down_proj=fp8")
    assert alone is not None
    assert alone.format_for("model.layers.1.mlp.gate_up_proj", "layer", 64, 128) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("down_proj", "must hold pattern=format, .* not 'down_proj'"),
        ("*.down_proj=int3", r"the format of '\*.down_proj' must be one of none, fp8"),
        ("*.q_proj=int8", r"'\*.q_proj' matches no linear layer .* qkv_proj, o_proj, gate_up_proj"),
        ("q_proj=int8,down_proj=int8", r"such as 'model.layers.0.self_attn.qkv_proj', which "),
        ("lm_head=int8,down_proj=int8", r"'model.layers.0.mlp.down_proj', which '\*.down_proj' m"),
    ],
)
def test_wrong_overrides_are_refused_before_memory_is_taken(overrides: str, message: str) -> None:
    folder = resolve_model("quire-tiny-draft")
    settings = ModelSettings(quantization="int4", quantization_overrides=overrides)
    with pytest.raises(ConfigError, match=message):
        choose_formats(settings, None, ModelConfig.from_folder(folder).spec, "cpu")


def test_the_first_format_that_sizes_allow_is_taken() -> None:
    scheme = scheme_of("int4", "cpu")
    assert scheme is not None
    assert scheme.format_for("", "layer", 64, 96) is INT4
    assert scheme.format_for("", "layer", 64, 48) is INT8
    assert scheme.format_for("", "head", 64, 96) is INT8


def test_each_scheme_has_formats_for_each_type_of_device() -> None:
    assert all(schemes.keys() == set(get_args(DeviceType)) for schemes in SCHEMES.values())


def test_settings_of_several_values_take_a_list() -> None:
    rules = ["*.down_proj=int8", "lm_head=none"]
    for given in (rules, tuple(rules), ",".join(rules)):
        config = EngineConfig.from_options(model="a/b", quantization_overrides=given)
        assert config.model.quantization_overrides == "*.down_proj=int8,lm_head=none"
    with pytest.raises(ConfigError, match="overrides must be a string, or a list of such, not"):
        EngineConfig.from_options(model="a/b", quantization_overrides={"lm_head": "nf4"})


def test_wrong_overrides_are_refused_before_a_model_is_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolved_config, "config_folder", pytest.fail)
    requested = EngineConfig.from_options(model="a/b", quantization_overrides="lm_head=int3")
    with pytest.raises(ConfigError, match="the format of 'lm_head' must be one of none, fp8"):
        resolved_config.resolve(requested, "cpu")


@pytest.mark.parametrize("k", [128, 77], ids=str)
@pytest.mark.parametrize(
    "scheme", [s["cpu"] for s in SCHEMES.values() if s["cpu"].formats], ids=lambda s: s.name
)
def test_a_weight_takes_the_bytes_of_the_memory_plan(scheme: Scheme, k: int) -> None:
    """Without compiled kernels 4-bit weights take less: they have no scale for each output."""
    weight = torch.randn(64, k, dtype=torch.bfloat16)
    roles: tuple[Role, ...] = ("layer", "head")
    for role in roles:
        found = scheme.format_for("", role, 64, k)
        assert found is not None
        operand = kernels_for("cpu").quantize(weight, found.spec)
        spare = 4 * 64 if found is INT4 and native.library() is None else 0
        stored = sum(tensor.nbytes for tensor in tensors_of(operand).values())
        assert found.num_bytes(64, k) - spare == stored


def test_layers_and_the_memory_plan_choose_by_the_same_names() -> None:
    """An ignored module stays in the model's data type, in one decoder layer alone."""
    folder = resolve_model("quire-tiny-draft")
    spec = ModelConfig.from_folder(folder).spec
    overrides = (("model.layers.0.mlp.down_proj", None),)
    scheme = Scheme("invented", {"layer": (FP8,)}, overrides=overrides)
    options = LayerOptions(torch.float32, torch.device("meta"), kernels_for("meta"), scheme)
    model = LlamaForCausalLM(spec, 64, options)
    linears = dict(spec.named_linears)
    chosen = {
        name: module.method.weight_format
        for name, module in model.named_modules()
        if isinstance(module, LinearBase)
    }
    assert chosen.keys() == linears.keys()
    plain = {name for name, each in chosen.items() if each is None}
    assert plain == {"model.layers.0.mlp.down_proj", "lm_head"}


W8A16 = "w8a16 needs a Hopper GPU and bfloat16; take int8"
FP8_W8A16 = "fp8_w8a16 needs bfloat16 on a Hopper GPU; take fp8, or dtype='bfloat16'"


@pytest.mark.parametrize(
    ("name", "dtype", "capability", "refusal"),
    [
        ("w8a16", "bfloat16", (9, 0), None),
        ("w8a16", "float16", (9, 0), W8A16),
        ("w8a16", "bfloat16", (8, 9), W8A16),
        ("fp8_w8a16", "bfloat16", (9, 0), None),
        ("fp8_w8a16", "float16", (9, 0), FP8_W8A16),
        ("fp8_w8a16", "float16", (8, 0), None),
        ("fp8_w8a16", "bfloat16", (10, 0), None),
    ],
)
@pytest.mark.parametrize("setting", ["quantization", "quantization_overrides"])
def test_activations_in_16_bits_need_their_kernels(
    setting: str, name: str, dtype: str, capability: tuple[int, int], refusal: str | None
) -> None:
    value = name if setting == "quantization" else f"lm_head={name}"
    spec = ModelConfig.from_folder(resolve_model("quire-tiny")).spec

    def choose() -> object:
        settings = ModelSettings(**{setting: value})
        return choose_formats(settings, None, spec, "cuda", dtype=dtype, capability=capability)

    if refusal is None:
        assert choose() is not None
    else:
        with pytest.raises(ConfigError, match=refusal):
            choose()
