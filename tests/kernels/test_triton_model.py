"""Whole models by Triton's kernels against the same models by the twins, on a device layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from device import DEVICE, ON_EITHER
from torch import Tensor
from twins import device_case

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.dispatch import Kernels, kernels_for
from quire.kernels.triton import triton_operations
from quire.layers.forward_context import ForwardContext
from quire.layers.linear_methods import FusedLinearMethod
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading.dummy_weights import fill_with_dummies
from quire.quantization.scheme import Scheme

pytestmark = ON_EITHER
TWINS = kernels_for("meta")
CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "vocab_size": 50,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
}
FAMILIES: list[dict[str, Any]] = [
    {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": True},
    {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
]

GEMMA2: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def build(
    model_config: ModelConfig,
    kernels: Kernels,
    dtype: torch.dtype,
    device: torch.device,
    scheme: Scheme | None = None,
) -> LlamaForCausalLM:
    """Random weights, the same for all kernels."""
    options = LayerOptions(dtype, device, kernels, scheme)
    model = LlamaForCausalLM(model_config.spec, 256, options)
    fill_with_dummies(model, 0)
    norms = [module for module in model.modules() if isinstance(module, RMSNorm)]
    generator = torch.Generator().manual_seed(0)
    for norm in norms:
        norm.weight.copy_(torch.rand(norm.weight.shape, generator=generator) + 0.5)
    return model


def step(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, ForwardContext]:
    """Ids, positions and context of decodes and prefills in any order; the last two are padding."""
    queries, lens = [3, 0, 1, 4, 1], [9, 40, 12, 4, 33]
    case = device_case(queries, lens, (4, 2, 16), None, dtype, padding=2)
    caches = [(case[1].to(device), case[2].to(device)), (case[2].to(device), -case[1].to(device))]
    positions = [
        p for n, length in zip(queries, lens, strict=True) for p in range(length - n, length)
    ]
    tokens = torch.arange(sum(queries) + 2) % 50
    layout = BatchLayout(
        *(getattr(case[3], name).to(device) for name in BatchLayout.__match_args__[:4]),
        has_decodes=True,
        has_prefills=True,
    )
    padded_positions = torch.tensor([*positions, 0, 0], device=device)
    return tokens.to(device), padded_positions, ForwardContext(layout, caches)


SAMPLED = [2, 3, 7, 8]  # the last token of each request of that step


def logits(model: LlamaForCausalLM, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Logits of that step, without padding."""
    with torch.inference_mode():
        return model.compute_logits(model(*step(dtype, device)))[:-2].float().cpu()


def sampled_logits(model: LlamaForCausalLM, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Logits of that step's sampled tokens, for which alone the last layer is finished."""
    ids, positions, context = step(dtype, device)
    with torch.inference_mode():
        residual, heads = model.attend(ids, positions, context, len(context.kv))
        hidden = model.finish(residual[SAMPLED], heads[SAMPLED])
        return model.compute_logits(hidden).float().cpu()


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("family", [*FAMILIES, GEMMA2], ids=lambda value: str(value["model_type"]))
def test_the_last_layer_may_be_finished_for_some_tokens(
    family: dict[str, Any], num_layers: int, tmp_path: Path
) -> None:
    config = CONFIG | family | {"num_hidden_layers": num_layers}
    (tmp_path / "config.json").write_text(json.dumps(config))
    cpu = torch.device("cpu")
    model = build(ModelConfig.from_folder(tmp_path), TWINS, torch.float32, cpu)
    with torch.inference_mode():
        ids, positions, whole = step(torch.float32, cpu)
        whole = ForwardContext(whole.layout, whole.kv[:num_layers])
        hidden = model(ids, positions, whole)
        _, _, split = step(torch.float32, cpu)
        split = ForwardContext(split.layout, split.kv[:num_layers])
        residual, heads = model.attend(ids, positions, split, num_layers)
        found = model.finish(residual[SAMPLED], heads[SAMPLED])
    torch.testing.assert_close(found, hidden[SAMPLED], atol=1e-5, rtol=1e-5)
    for own, other in zip(whole.kv, split.kv, strict=True):  # later steps read the same
        assert all(torch.equal(*pair) for pair in zip(own, other, strict=True))


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*zip(FAMILIES, (torch.float16, torch.float32, torch.float16), strict=True)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_a_model_gives_what_its_twins_give(
    family: dict[str, Any], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        triton_operations, "_WIDE", {torch.float16}
    )  # the interpreter has no bfloat16
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | family))
    model_config = ModelConfig.from_folder(tmp_path)
    mine = build(model_config, kernels_for("cuda"), dtype, DEVICE)
    theirs = build(model_config, TWINS, torch.float32, torch.device("cpu"))
    assert isinstance(mine.model.layers[0].mlp.gate_up_proj.method, FusedLinearMethod)
    exact = logits(theirs, torch.float32, torch.device("cpu"))
    limit = {torch.float32: 1e-5, torch.float16: 5e-3}[dtype] * exact.abs().max().item()
    found = logits(mine, dtype, DEVICE)
    assert exact.std(0).mean() > 20 * limit  # rows differ
    torch.testing.assert_close(found, exact, atol=limit, rtol=0)
    split = sampled_logits(mine, dtype, DEVICE)
    torch.testing.assert_close(split, exact[SAMPLED], atol=limit, rtol=0)
