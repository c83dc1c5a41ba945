"""Rotated models: the same function as before, in files that are a plain model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from tiny_models import SAMPLES, SIZES, logits, quantize, write_model

from quire.compress.model_parts import ModelParts
from quire.compress.recipe import Recipe
from quire.compress.rotation import RotatedParts, parts_beside, rotation
from quire.compress.verify_model import compare_models
from quire.errors import ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [16, 96, 24, 7])
def test_a_rotation_keeps_lengths_and_mixes_all_dimensions(size: int) -> None:
    found = rotation(size)
    torch.testing.assert_close(found @ found.t(), torch.eye(size), atol=1e-5, rtol=0.0)
    assert (found != 0.0).float().mean() == 1.0
    assert torch.equal(found, rotation(size))


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
@pytest.mark.parametrize("is_tied", [False, True])
@torch.no_grad()
def test_a_rotated_model_has_the_same_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, *, is_tied: bool
) -> None:
    """With biases, grouped queries, fused weights; a hidden size that is no power of two."""
    torch.set_num_threads(1)
    monkeypatch.setitem(SIZES, "hidden_size", 96)
    monkeypatch.setitem(SIZES, "head_dim", 24)  # phi3 has no other
    monkeypatch.setitem(SIZES, "tie_word_embeddings", is_tied)
    write_model(tmp_path, family, torch.float32)
    plain, rotated = ModelParts(tmp_path, CPU), RotatedParts(tmp_path, CPU)
    ids = SAMPLES.verification[0]
    expected = logits(plain, ids)
    torch.testing.assert_close(logits(rotated, ids), expected, atol=2e-4, rtol=2e-3)
    states = [parts.embed([ids])[0] for parts in (plain, rotated)]
    torch.testing.assert_close(states[0] @ rotation(96), states[1])


@torch.no_grad()
def test_a_rotated_checkpoint_is_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head is its own, transformers reads it, and verification knows that it was rotated."""
    torch.set_num_threads(1)
    monkeypatch.setitem(SIZES, "tie_word_embeddings", True)
    base, out = tmp_path / "base", tmp_path / "out"
    write_model(base)
    quantize(base, out, Recipe(method="int8", rotate=True))
    config = json.loads((out / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    read = ModelParts(out, CPU)
    report = compare_models(
        parts_beside(base, out, CPU), read, SAMPLES.verification, [], lambda *_: None
    )
    assert report["hidden_cosine"]["mean"] > 0.999
    assert report["same_top_1"]["share"] > 0.85
    # the same numbers without a quantization_config, as plain weights
    del config["quantization_config"]
    plain = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**config))
    state = {each.name: read.tensor(each.name).float() for each in read.tensor_names("")}
    plain.float().load_state_dict(state)
    monkeypatch.setattr(ModelParts, "activation_rounding", lambda *_: None)
    ids = SAMPLES.verification[0]
    theirs = plain(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits(read, ids), theirs, atol=2e-4, rtol=2e-3)


def test_models_that_cannot_be_rotated_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "base", "gemma2")
    with pytest.raises(ConfigError, match="rotate: the model has norms after"):
        quantize(tmp_path / "base", tmp_path / "out", Recipe(method="rtn", rotate=True))
    assert not (tmp_path / "out").exists()
