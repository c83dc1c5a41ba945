"""A mixture of experts beyond what every family is tested for: routing, formats, refusals."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import PagedModel, PagedRequest, load_folder
from quantized_checkpoints import METHODS
from safetensors.torch import load_file, save_file

from quire.compress.model_parts import ModelParts
from quire.config import EngineConfig
from quire.core.layer_spec import MoESpec
from quire.engine.startup.footprint import weights_by_format
from quire.engine.startup.resolved_config import resolve
from quire.engine.startup.step_memory import activation_bytes
from quire.errors import CheckpointError, ConfigError
from quire.kernels.operands import ResidualState
from quire.layers.mlp import GatedMLP, MixtureOfExperts
from quire.models.config.model_config import ModelConfig

CASE = "qwen3_moe_mixed"  # a dense layer, then one of 7 experts of which each token takes 3


@pytest.fixture(scope="module")
def folder(checkpoint: Callable) -> Path:
    found: Path = checkpoint(CASE)[0]
    return found


def test_layers_may_differ(folder: Path) -> None:
    model, config = load_folder(folder)
    kinds = [type(layer.mlp) for layer in model.model.layers]
    assert kinds == [GatedMLP, MixtureOfExperts]
    spec = config.spec.layers[1].mlp
    assert isinstance(spec, MoESpec)
    assert (len(spec.experts), spec.experts_per_token, spec.renormalize) == (7, 3, False)


@torch.inference_mode()
def test_a_tokens_result_does_not_depend_on_others(folder: Path) -> None:
    torch.manual_seed(0)
    model = load_folder(folder)[0].model
    layer, rows = model.layers[1], torch.randn(50, 96)

    def run(rows: torch.Tensor) -> torch.Tensor:
        norm = layer.pre_mlp_norm
        state = ResidualState(rows, None, norm.weight, norm.eps)
        return layer.mlp(state, (model.norm, None)).residual

    together = run(rows)
    assert layer.mlp.route(rows)[1].unique().tolist() == list(range(7))
    for index in (0, 17, 49):
        assert torch.equal(run(rows[index : index + 1])[0], together[index])


def test_routers_keep_the_models_type(folder: Path) -> None:
    """Experts are quantized as MLPs are, and the plan counts each."""
    model = load_folder(folder, "bfloat16", quantization="int8")[0]
    moe = model.model.layers[1].mlp
    assert moe.gate.method.weight_format is None
    assert {expert.down_proj.method.weight_format.name for expert in moe.experts} == {"int8"}
    config = EngineConfig.from_options(
        model=str(folder), quantization="int8", dtype="bfloat16", device="cpu"
    )
    planned = weights_by_format(config, ModelConfig.from_folder(folder), folder)
    numbers = 512 * 96 + 7 * 96  # embedding and router; norms are few
    assert 2 * numbers <= planned["bfloat16"] < 2 * numbers + 2000
    experts, attention = 7 * 3 * 64 * 96, 2 * (96 + 2 * 48 + 96) * 96
    codes = experts + 3 * 96 * 96 + attention + 512 * 96
    assert codes < planned["int8"] < 1.2 * codes


def test_it_is_refused_by_name_where_it_is_not_computed(folder: Path) -> None:
    config = EngineConfig.from_options(model=str(folder), device="cuda")
    with pytest.raises(ConfigError, match=r"mixture of 7 experts .* device='cpu'"):
        resolve(config, "cuda")
    with pytest.raises(CheckpointError, match=r"mixture of 7 experts .* quantization="):
        ModelParts(folder, torch.device("cpu"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_local_experts": None}, "num_local_experts is missing"),
        (
            {"num_experts_per_tok": 8},
            "num_experts_per_tok is 8; set it to an integer between 1 and 7",
        ),
        (
            {"num_local_experts": 2**16},  # an expert is described before weights are looked at
            "num_local_experts is 65536; set it to an integer between 1 and 32768",
        ),
        ({"mlp_only_layers": [0.5]}, "mlp_only_layers must be a list of layers' numbers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0; set it to an integer"),
    ],
)
def test_wrong_sizes_are_refused_by_their_key(
    changes: dict[str, object], words: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        changed_config(folder, tmp_path, changes)


def test_the_older_name_of_the_number_of_experts(folder: Path, tmp_path: Path) -> None:
    config = changed_config(folder, tmp_path, {"num_experts": 7}, without="num_local_experts")
    assert config == ModelConfig.from_folder(folder)


def test_experts_in_every_second_layer(folder: Path, tmp_path: Path) -> None:
    changes = {"num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    config = changed_config(folder, tmp_path, changes)
    assert [experts is not None for experts in config.experts] == [False, True, *[False] * 3]


def changed_config(
    folder: Path, to: Path, changes: dict[str, object], without: str = ""
) -> ModelConfig:
    values = json.loads((folder / "config.json").read_text()) | changes
    values.pop(without, None)
    (to / "config.json").write_text(json.dumps(values))
    return ModelConfig.from_folder(to)


@pytest.mark.parametrize("name", ["gptq", "awq", "fp8", "nf4_nested"])
def test_routers_are_plain_in_quantized_checkpoints(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """Though the config file does not say so: the logits are those of the codes' numbers."""
    method = METHODS[name]
    tensors, numbers = load_file(folder / "model.safetensors"), {}
    for key in [key for key in tensors if key.endswith(("_proj.weight", "o_proj.weight"))]:
        stored, numbers[key] = method.pack(tensors.pop(key))
        module = key.removesuffix(".weight")
        tensors |= {f"{module}.{leaf}": tensor.contiguous() for leaf, tensor in stored.items()}
    config = json.loads((folder / "config.json").read_text())
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    for to, content, more in (
        (plain, load_file(folder / "model.safetensors") | numbers, {}),
        (quantized, tensors, {"quantization_config": dict(method.config)}),
    ):
        to.mkdir()
        save_file(content, to / "model.safetensors")
        (to / "config.json").write_text(json.dumps(config | more))
    prompt = list(range(3, 40))
    expected, found = (
        PagedModel(*load_folder(each)).step([(PagedRequest(list(prompt)), len(prompt))])[0]
        for each in (plain, quantized)
    )
    assert (found - expected).norm() <= 0.03 * expected.norm()  # codes' products are rounded, too


@pytest.mark.parametrize("pattern", ["*.mlp.gate", "*gate"])
def test_an_override_of_routers_alone_is_refused(pattern: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match="matches no linear layer"):
        load_folder(folder, quantization_overrides=f"{pattern}=int8")


@torch.inference_mode()
def test_memory_is_planned_for_what_a_layer_takes(folder: Path) -> None:
    """All tokens may choose the same experts."""
    model, config = load_folder(folder, "bfloat16")
    moe, hidden = model.model.layers[1].mlp, config.hidden_size
    moe.gate.forward = lambda rows: rows.new_tensor([3.0, 2, 1, 0, 0, 0, 0]).expand(len(rows), 7)
    rows = torch.randn(1024, hidden, dtype=torch.bfloat16)
    norm = model.model.norm
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        moe(ResidualState(rows, None, norm.weight, norm.eps), (norm, None))
    events = [each for each in profile.profiler.kineto_results.events() if each.nbytes()]
    taken = itertools.accumulate(
        each.nbytes() for each in sorted(events, key=lambda e: e.start_ns())
    )
    peak = max(taken) + rows.nbytes
    assert 6 * rows.nbytes < peak <= activation_bytes(config, len(rows), 2)
