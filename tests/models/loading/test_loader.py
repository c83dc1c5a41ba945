"""Loading: data types, dummy weights, and the weight table of each model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import PagedModel, load_folder
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from quire.compress.model_parts import ModelParts
from quire.errors import CheckpointError
from quire.models.config.model_config import ModelConfig
from quire.models.loading.expected_tensors import expected_tensors

WEIGHTS = "model.safetensors"
PROMPT = list(range(3, 60))


@pytest.mark.parametrize("name", ["llama_biased", "qwen3", "phi3"])
def test_the_table_names_what_transformers_saves(checkpoint: Callable, name: str) -> None:
    folder, _ = checkpoint(name)
    spec = ModelConfig.from_folder(folder).spec
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {tensor.name for tensor in expected_tensors(spec)} == set(file.keys())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_stays_close_to_32(checkpoint: Callable, dtype: str) -> None:
    folder, _ = checkpoint("llama_tied_mha")
    exact = PagedModel(*load_folder(folder)).prefill(PROMPT)
    rounded = PagedModel(*load_folder(folder, dtype), dtype=getattr(torch, dtype))
    logits = rounded.prefill(PROMPT)
    assert logits.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(logits, exact)
    assert cosine.min() > 0.98
    stepwise = rounded.prefill(PROMPT, 1)
    assert torch.nn.functional.cosine_similarity(logits, stepwise).min() > 0.98


def test_weights_are_converted_while_they_are_loaded(checkpoint: Callable, tmp_path: Path) -> None:
    """float64 and float16 tensors in one file, run in float32."""
    folder, _ = checkpoint("llama")
    tensors = load_file(folder / "model.safetensors")
    mixed = {n: t.half() if "mlp" in n else t.double() for n, t in tensors.items()}
    save_file(mixed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    ours = PagedModel(*load_folder(tmp_path)).prefill(PROMPT)
    exact = PagedModel(*load_folder(folder)).prefill(PROMPT)
    assert (ours - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("name", ["model.layers.1.input_layernorm.weight", "lm_head.weight"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_start_names_a_tensor_that_is_not_finite(
    checkpoint: Callable, tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    folder, _ = checkpoint("llama")
    tensors = {key: tensor.to(dtype) for key, tensor in load_file(folder / WEIGHTS).items()}
    tensors[name].view(-1)[-1] = float("nan")
    save_file(tensors, tmp_path / WEIGHTS)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=rf"{name} at byte .* not finite.*; download the"):
        load_folder(tmp_path, prepared_weights="none")


def test_a_stored_head_must_be_the_embedding_that_it_is_tied_to(
    checkpoint: Callable, tmp_path: Path
) -> None:
    folder, _ = checkpoint("llama_tied_mha")
    tensors = load_file(folder / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    for head in (table.clone(), table.half()):
        save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
        load_folder(tmp_path, prepared_weights="none")
    for head in (table + 0.01, (table + 0.01).half()):
        save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"lm_head.weight differs from model.embed_token"):
            load_folder(tmp_path, prepared_weights="none")
    with pytest.raises(CheckpointError, match=r"set its tie_word_embeddings to false"):
        ModelParts(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "phi3_longrope"])
def test_dummy_weights(checkpoint: Callable, tmp_path: Path, name: str) -> None:
    """They need the config file only, are equal for equal seeds, and give finite logits."""
    folder, _ = checkpoint(name)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    first, again, other = (
        PagedModel(*load_folder(tmp_path, load_format="dummy", seed=seed)).prefill(PROMPT)
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert first.isfinite().all()
    assert first.std(dim=-1).min() > 0


def test_no_two_rows_of_a_dummy_embedding_are_equal(tmp_path: Path) -> None:
    """The block that is repeated must not line up with the rows: 2048 divides 2^22."""
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 5000,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, _ = load_folder(tmp_path, "auto", load_format="dummy")
    table = model.model.embed_tokens.weight
    assert table.dtype == torch.bfloat16
    assert len(torch.unique(table.float(), dim=0)) == 5000
