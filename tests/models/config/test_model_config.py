"""What config files say: old and new spellings, and every kind of mistake."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES
from harness import load_folder

from quire.errors import CheckpointError
from quire.layers.rope_scale import attention_factor
from quire.models.config.model_config import ModelConfig
from quire.models.families.registry import ARCHITECTURES, FAMILIES

LLAMA_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128009],
}


def read(folder: Path, **changes: Any) -> ModelConfig:
    """Read LLAMA_1B with changes; a change to `...` removes the key."""
    config = {k: v for k, v in (LLAMA_1B | changes).items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig.from_folder(folder)


def test_no_two_families_have_one_architecture() -> None:
    names = [name for family in FAMILIES.values() for name in family.architectures]
    assert sorted(names) == sorted(ARCHITECTURES)


GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": None,
}


def test_soft_caps_are_given_or_null(tmp_path: Path) -> None:
    """A missing key must not mean that the model is computed without its soft cap."""
    found = read(tmp_path, **GEMMA2)
    assert (found.attention_soft_cap, found.logit_soft_cap) == (50.0, None)
    assert found.attention_scale == 1 / 16
    for key in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
        with pytest.raises(CheckpointError, match=f"{key} is missing"):
            read(tmp_path, **GEMMA2 | {key: ...})


def test_reads_the_older_spelling(tmp_path: Path) -> None:
    model_config = read(tmp_path)
    assert (model_config.num_layers, model_config.num_heads, model_config.num_kv_heads) == (
        16,
        32,
        8,
    )
    assert (model_config.family, model_config.dtype, model_config.tie_word_embeddings) == (
        "llama",
        "bfloat16",
        True,
    )
    assert (model_config.rope.kind, model_config.rope.theta, model_config.rope.factor) == (
        "llama3",
        500000.0,
        32.0,
    )
    assert model_config.rope.original_max_position == 8192
    assert model_config.eos_token_ids == (128001, 128009)
    assert model_config.sliding_windows == (None,) * 16


def test_reads_the_spelling_of_transformers_5(tmp_path: Path) -> None:
    rope = LLAMA_1B["rope_scaling"] | {"rope_theta": 500000.0}
    new = read(tmp_path, rope_scaling=..., rope_theta=..., torch_dtype=..., rope_parameters=rope,
               dtype="bfloat16")  # fmt: skip
    assert new == read(tmp_path)
    assert new == read(tmp_path, rope_parameters=rope)  # both, for readers of either


def test_generation_config_adds_its_end_tokens_first(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [128008, 128001]}')
    assert read(tmp_path).eos_token_ids == (128008, 128001, 128009)


def test_defaults_of_left_out_keys(tmp_path: Path) -> None:
    model_config = read(
        tmp_path, num_key_value_heads=..., head_dim=..., rope_scaling=..., rope_theta=None,
        torch_dtype=..., eos_token_id=...,
    )  # fmt: skip
    assert (model_config.num_kv_heads, model_config.head_dim) == (32, 64)
    assert (model_config.rope.kind, model_config.rope.theta) == ("default", 10000.0)
    assert (model_config.dtype, model_config.eos_token_ids) == ("float32", ())


@pytest.mark.parametrize(
    ("name", "changes", "windows"),
    [
        ("MistralForCausalLM", {"sliding_window": 4096}, (4096,) * 3),
        ("MistralForCausalLM", {"sliding_window": None}, (None,) * 3),
        ("MistralForCausalLM", {}, (4096,) * 3),
        ("LlamaForCausalLM", {"sliding_window": 4096}, (None,) * 3),
        ("Qwen2ForCausalLM", {"sliding_window": 64, "max_window_layers": 1}, (None,) * 3),
        (
            "Qwen2ForCausalLM",
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
            (None, 64, 64),
        ),
        (
            "Qwen3ForCausalLM",
            {
                "use_sliding_window": True,
                "sliding_window": 64,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (64, None, 64),
        ),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": None}, (None,) * 3),
        (
            "Qwen3ForCausalLM",
            {"use_sliding_window": True, "max_window_layers": 2},
            (None, None, 4096),
        ),
        ("Phi3ForCausalLM", {"sliding_window": 2047}, (2047,) * 3),
        ("Phi3ForCausalLM", {}, (None,) * 3),
    ],
)
def test_windows(tmp_path: Path, name: str, changes: dict[str, Any], windows: Any) -> None:
    changes = {"architectures": [name], "num_hidden_layers": 3, "rope_scaling": ..., **changes}
    assert read(tmp_path, **changes).sliding_windows == windows


def test_phi3_keeps_its_trained_length_beside_the_rope_section(tmp_path: Path) -> None:
    factors = [1.0] * 32
    rope = read(
        tmp_path,
        architectures=["Phi3ForCausalLM"],
        model_type="phi3",
        original_max_position_embeddings=4096,
        rope_scaling={"type": "su", "short_factor": factors, "long_factor": factors},
    ).rope
    assert (rope.kind, rope.original_max_position, rope.max_position) == ("longrope", 4096, 131072)


def test_an_mscale_of_zero_is_none(tmp_path: Path) -> None:
    """As in transformers."""
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    zero = read(tmp_path, rope_scaling=scaling | {"mscale": 0.7, "mscale_all_dim": 0.0}).rope
    assert attention_factor(zero) == attention_factor(read(tmp_path, rope_scaling=scaling).rope)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architectures names 'GPT2LMHeadModel'; supported",
        ),
        ({"architectures": ...}, "architectures must be a list"),
        ({"architectures": []}, "architectures must be a list"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        (
            {"hidden_size": "2048"},
            "hidden_size must be an integer between 1 and 1048576, not '2048'",
        ),
        (
            {"hidden_size": 2048.0},
            "hidden_size must be an integer between 1 and 1048576, not 2048.0",
        ),
        ({"hidden_size": True}, "hidden_size must be an integer between 1 and 1048576, not True"),
        (
            {"num_hidden_layers": 0},
            "num_hidden_layers must be an integer between 1 and 1024, not 0",
        ),
        ({"num_hidden_layers": 10**9}, "must be an integer between 1 and 1024"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5, which does not divide"),
        ({"head_dim": None, "num_attention_heads": 24}, "does not divide hidden_size (2048)"),
        ({"head_dim": 63}, "partial_rotary_factor rotates 63 of 63 dimensions"),
        ({"partial_rotary_factor": 1.5}, "rotates 96 of 64 dimensions"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a finite number > 0, not 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number > 0, not nan"),
        ({"rms_norm_eps": 10**400}, "must be a finite number"),
        ({"rope_theta": 1e-300}, "rope_theta must be a finite number > 0, not 1e-300"),
        ({"rope_theta": 1}, "rope_theta must be above 1, not 1.0"),
        (
            {"rope_scaling": LLAMA_1B["rope_scaling"] | {"original_max_position_embeddings": 1}},
            "original_max_position_embeddings must be an integer between 2 and",
        ),
        ({"rope_theta": "big"}, "rope_theta must be a number, not 'big'"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_scaling.rope_type is 'mrope'; supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
            "rope_scaling.factor is 32.0, but that of rope_parameters is None; put all settings",
        ),
        (
            {"rope_scaling": ..., "rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            "rope_parameters.full_attention has settings of its own, but all layers share one",
        ),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object, not 'yarn'"),
        ({"rope_scaling": LLAMA_1B["rope_scaling"] | {"low_freq_factor": 4.0}}, "must differ"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, not 1"),
        (
            {"eos_token_id": [-1]},
            "eos_token_id must be a token id or a list of token ids, not [-1]",
        ),
        ({"is_causal": False}, "is_causal is false, but every layer here looks back only"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is true, but every"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but only 'silu'"),
        (
            {"quantization_config": {"quant_method": "aqlm"}},
            "quant_method is 'aqlm', which is not read",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config.bits is missing"),
        ({"quantization_config": 4}, "quantization_config must be an object, not 4"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, **changes)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'config.json'}: ")
    assert words in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be valid JSON"),
        ("[1]", "must be a JSON object"),
        ("[" * 99999, "must be valid"),
        ('{"model_type": "\\udfff"}', "half of a surrogate"),
    ],
    ids=["empty", "list", "nested", "surrogate"],
)
def test_config_is_not_an_object(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=words):
        ModelConfig.from_folder(tmp_path)


def test_config_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        ModelConfig.from_folder(tmp_path)


VALUES = [None, True, 0, -1, 1, 2, 3, 7, 2**40, 10**400, 0.5, -0.0, 1e308, float("nan"), "", "x"]
VALUES += [[], {}, [None], [1, "a"], {"rope_type": "yarn"}, {"factor": 2}]


@pytest.mark.parametrize("name", [name for name in CASES if "_" not in name])
def test_random_mistakes_are_errors_of_the_checkpoint(
    name: str, checkpoint: Callable, tmp_path: Path
) -> None:
    """Any key may become anything: a CheckpointError, or a model that loads."""
    source = checkpoint(name)[0]
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    rng = random.Random(name)
    for _ in range(80):
        changed = json.loads(json.dumps(config))
        for key in rng.sample(sorted(changed), rng.randint(1, 2)):
            inner = changed[key]
            if isinstance(inner, dict) and inner and rng.random() < 0.7:
                inner[rng.choice(sorted(inner))] = rng.choice(VALUES)
            else:
                changed[key] = rng.choice(VALUES)
        (tmp_path / "config.json").write_text(json.dumps(changed))
        try:
            model, model_config = load_folder(tmp_path)
        except CheckpointError:
            continue
        last = model.model.embed_tokens(torch.tensor([model_config.vocab_size - 1]))
        assert last.shape == (1, model_config.hidden_size)
        assert model.compute_logits(last).dtype == torch.float32
