"""Angles against those of transformers, for every kind of scaling."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from quire.core.rope_settings import RopeSettings
from quire.kernels.dispatch import kernels_for
from quire.kernels.rope_table import RopeTable
from quire.layers.parameter import LayerOptions
from quire.layers.rope import RotaryEmbedding
from quire.layers.rope_scale import attention_factor

OPTIONS = LayerOptions(torch.float32, torch.device("cpu"), kernels_for("cpu"))
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("default", {}),
    ("linear", {"factor": 3.0}),
    ("dynamic", {"factor": 2.0}),
    ("llama3", {**LLAMA3, "original_max_position_embeddings": 512}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 512}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 512, "truncate": False}),
    ("yarn", {"factor": 1.0, "original_max_position_embeddings": 2048}),
    (
        "yarn",
        {
            "factor": 40.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64,
        },
    ),
    ("yarn", {"factor": 4.0, "attention_factor": 1.3, "original_max_position_embeddings": 512}),
]


def settings(kind: str, values: dict[str, Any], head_dim: int) -> RopeSettings:
    values = dict(values)
    original = values.pop("original_max_position_embeddings", 2048)
    return RopeSettings(
        kind=kind,
        theta=10000.0,
        rotary_dim=head_dim,
        max_position=2048,
        original_max_position=original,
        **values,
    )


@pytest.mark.parametrize("head_dim", [16, 80, 128])
@pytest.mark.parametrize(("kind", "values"), KINDS)
def test_equals_transformers(kind: str, values: dict[str, Any], head_dim: int) -> None:
    config = LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **values},
    )
    positions = torch.arange(2048)
    cos, sin = RotaryEmbedding(settings(kind, values, head_dim), 2048, OPTIONS)(positions)
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    # an angle of 2000 has a spacing of 1.2e-4 in float32; one such step is the most allowed
    sin[:, : head_dim // 2].neg_()  # kernels.rotary wants the first half negated
    for ours, theirs in zip((cos, sin), expected, strict=True):
        torch.testing.assert_close(ours, theirs[0], atol=1.3e-4, rtol=0)
        assert (ours - theirs[0]).abs().mean() < 1e-6


def test_dynamic_beyond_the_trained_length_follows_the_position() -> None:
    """A token's angles are those that transformers gives the last token of a sequence."""
    config = LlamaConfig(
        head_dim=16,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    )
    rope = msgspec.structs.replace(settings("dynamic", {"factor": 2.0}, 16), max_position=64)
    cos, _ = RotaryEmbedding(rope, 64, OPTIONS)(torch.arange(200))
    for position in (0, 63, 64, 65, 199):
        theirs = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([[position]]))[0]
        torch.testing.assert_close(cos[position], theirs[0, 0], atol=1e-5, rtol=0)


def test_data_type_is_the_models() -> None:
    options = dataclasses.replace(OPTIONS, dtype=torch.bfloat16)
    cos, sin = RotaryEmbedding(settings("default", {}, 16), 64, options)(torch.arange(3))
    assert cos.dtype == sin.dtype == torch.bfloat16
    assert cos.shape == sin.shape == (3, 16)


def test_cached_angles_depend_on_positions_alone() -> None:
    """Earlier calls and the table's size make no difference."""
    rope = RopeSettings(
        kind="default", theta=1e4, rotary_dim=20, max_position=9000, original_max_position=9000
    )
    rotary = RotaryEmbedding(rope, 9000, OPTIONS)
    for positions in ([3], [1023, 0, 7], [1024, 5000], [8999], [2, 2, 1025]):
        found = rotary(torch.tensor(positions))
        expected = kernels_for("cpu").rope_angles(
            torch.tensor(positions), rotary.inv_freq, 1.0, torch.float32
        )
        for ours, alone in zip(found, expected, strict=True):
            assert torch.equal(ours, alone)


@pytest.mark.parametrize(("kind", "values"), [each for each in KINDS if each[0] != "dynamic"])
def test_tables_of_what_runs_without_torch(kind: str, values: dict[str, Any]) -> None:
    """cos and sin are another library's, so that their last bits may differ."""
    rotary = RotaryEmbedding(settings(kind, values, 80), 2048, OPTIONS)
    own = rotary.inv_freq.numpy(), attention_factor(rotary.rope)
    expected = rotary(torch.arange(1500))
    table, bits = (RopeTable(*own, in_bfloat16=each) for each in (False, True))
    assert [len(each) for each in table.up_to(3)] == [1024, 1024]
    for ours, rounded, theirs in zip(table.up_to(1500), bits.up_to(1500), expected, strict=True):
        found = torch.from_numpy(ours)
        torch.testing.assert_close(found[:1500], theirs, atol=5e-7, rtol=0)
        assert torch.equal(torch.from_numpy(rounded).view(torch.bfloat16), found.bfloat16())
