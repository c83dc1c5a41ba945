"""What config files say: old and new spellings, and every kind of mistake."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from checkpoints import CASES
from harness import load_folder
from safetensors.torch import save_file

from quire.errors import CheckpointError
from quire.models.checkpoints.checkpoint import UNKNOWN_DTYPE
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
    missing = read(tmp_path, **GEMMA2 | {"final_logit_softcapping": ...})
    assert missing.logit_soft_cap == 30.0


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
    assert (model_config.dtype, model_config.eos_token_ids) == (UNKNOWN_DTYPE, ())


SIZES = {
    "hidden_size": 2048,
    "num_hidden_layers": 31,  # so that some are above Qwen's max_window_layers
    "num_attention_heads": 32,
    "intermediate_size": 768,
    "vocab_size": 512,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


@pytest.mark.parametrize(
    "switches",
    [{}, {"use_sliding_window": True}, {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}],
    ids=["none", "windows", "yarn"],
)
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_left_out_keys_are_those_of_transformers(
    tmp_path: Path, architecture: str, switches: dict[str, Any]
) -> None:
    """A config with the sizes alone means what its class of transformers makes of it."""
    family = ARCHITECTURES[architecture]
    if family.name == "phi3":
        switches = {key: value for key, value in switches.items() if key != "rope_scaling"}
    given = SIZES | (EXPERTS if family.name == "qwen3_moe" else {}) | switches
    given["architectures"] = [architecture]
    whole = transformers.AutoConfig.for_model(family.name, **copy.deepcopy(given)).to_dict()
    found = {}
    for name, values in (("sizes", given), ("whole", whole)):
        (tmp_path / "config.json").write_text(json.dumps(values))
        found[name] = msgspec.structs.replace(
            ModelConfig.from_folder(tmp_path),  # tokens: the tokenizer's are better than a guess
            bos_token_id=None,
            eos_token_ids=(),
        )
    assert found["sizes"] == found["whole"]


@pytest.mark.parametrize("beside", [True, False])
def test_the_trained_length_beside_the_rope_section_wins(tmp_path: Path, beside: bool) -> None:
    """As in transformers."""
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    given = SIZES | {"rope_parameters": rope}
    if beside:
        given["original_max_position_embeddings"] = 128
    config = transformers.LlamaConfig(**copy.deepcopy(given))
    config.standardize_rope_params()
    trained = config.rope_parameters["original_max_position_embeddings"]
    (tmp_path / "config.json").write_text(
        json.dumps(given | {"architectures": ["LlamaForCausalLM"]})
    )
    assert ModelConfig.from_folder(tmp_path).rope.original_max_position == trained


@pytest.mark.parametrize("kind", ["default", "linear"])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_a_partial_rotary_factor_is_refused_where_whole_heads_are_rotated(
    tmp_path: Path, architecture: str, kind: str
) -> None:
    """transformers ignores the key with the default kind, and fails with others."""
    given = {"architectures": [architecture], "num_experts": 4, "num_experts_per_tok": 2}
    given |= {"moe_intermediate_size": 8, "rope_scaling": ...}
    section = {"rope_theta": 1e4, "rope_type": kind, "factor": 2.0}
    for where in (
        {"rope_parameters": section | {"partial_rotary_factor": 0.5}},
        {"rope_parameters": section, "partial_rotary_factor": 0.5},
    ):
        if ARCHITECTURES[architecture].has_partial_rotary:
            assert read(tmp_path, **given, **where).rope.rotary_dim == 32
            continue
        with pytest.raises(CheckpointError, match="factor rotates 32 of 64 dimensions, but layers"):
            read(tmp_path, **given, **where)
        read(tmp_path, **given, **json.loads(json.dumps(where).replace("0.5", "1.0")))


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


@pytest.mark.parametrize("key", ["mscale", "mscale_all_dim", "beta_fast", "beta_slow"])
def test_a_number_of_yarn_that_is_zero_is_none(tmp_path: Path, key: str) -> None:
    """As in transformers."""
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    zero = read(tmp_path, rope_scaling=scaling | {key: 0.0}).rope
    assert zero == read(tmp_path, rope_scaling=scaling).rope


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
            "hidden_size is '2048'; set it to an integer between 1 and 1048576",
        ),
        (
            {"hidden_size": 2048.0},
            "hidden_size is 2048.0; set it to an integer between 1 and 1048576",
        ),
        ({"hidden_size": True}, "hidden_size is True; set it to an integer between 1 and 1048576"),
        (
            {"num_hidden_layers": 0},
            "num_hidden_layers is 0; set it to an integer between 1 and 1024",
        ),
        ({"num_hidden_layers": 10**9}, "set it to an integer between 1 and 1024"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5, which does not divide"),
        (
            {"architectures": ["MistralForCausalLM"], "num_key_value_heads": ...}
            | {"num_attention_heads": 4},
            "num_key_value_heads is missing, which means 8, which does not divide num_attention",
        ),
        ({"head_dim": None, "num_attention_heads": 24}, "does not divide hidden_size (2048)"),
        ({"head_dim": 63}, "head_dim is 63, which is odd; take another model"),
        (
            {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 1.5},
            "partial_rotary_factor rotates 96 of 64 dimensions; set a factor",
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": 2}},
            "rope_scaling.short_factor is a list of 1; set it to a list of 32 numbers",
        ),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; set it to a finite number > 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; set it to a finite number > 0"),
        ({"rms_norm_eps": 10**400}, "set it to a finite number"),
        ({"rope_theta": 1e-300}, "rope_theta is 1e-300; set it to a finite number > 0"),
        ({"rope_theta": 1}, "rope_theta must be above 1, not 1.0"),
        (
            {"rope_scaling": LLAMA_1B["rope_scaling"] | {"original_max_position_embeddings": 1}},
            "original_max_position_embeddings is 1; set it to an integer between 2 and",
        ),
        ({"rope_theta": "big"}, "rope_theta is 'big'; set it to a finite number > 0"),
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
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; set it to true or false"),
        (
            {"eos_token_id": [-1]},
            "eos_token_id is [-1]; set it to a token id or a list of token ids",
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_without_a_key_the_data_type_is_that_of_the_weights(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """Of most numbers: norms and biases may have another one, and codes are no numbers."""
    other = torch.float32 if dtype == torch.float16 else torch.float16
    weights = {
        "a.norm": torch.zeros(8, dtype=other),
        "b.weight": torch.zeros(8, 8, dtype=dtype),
        "c.qweight": torch.zeros(64, 8, dtype=torch.int32),
    }
    save_file(weights, tmp_path / "model.safetensors")
    for absent in (..., None, "auto"):
        found = read(tmp_path, torch_dtype=absent)
        assert (found.dtype, found.names_dtype) == (str(dtype).removeprefix("torch."), False)
    assert read(tmp_path, torch_dtype="float16", dtype="bfloat16").dtype == "bfloat16"
    assert read(tmp_path, torch_dtype="half", dtype="auto").dtype == "float16"


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
