"""The description of a model's layers: its numbers for every family, and the features it names."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from checkpoints import CASES

from quire.core.layer_spec import LayerSpec, UnsupportedModelError, check_features
from quire.core.rope_settings import RopeSettings
from quire.kvcache.kv_sizes import block_bytes
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.config.model_config import ModelConfig
from quire.models.families import llama
from quire.models.loading.expected_tensors import expected_tensors
from quire.models.runtimes import compiled_weights

BASE = frozenset({"LinearSpec.parts"})  # of what every family has


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, checkpoint: Callable) -> tuple[ModelConfig, Checkpoint]:
    folder, _ = checkpoint(request.param)
    return ModelConfig.from_folder(folder), Checkpoint.open(folder)


def test_sizes_follow_from_the_config(case: tuple[ModelConfig, Checkpoint]) -> None:
    config, _ = case
    hidden, dim, size = config.hidden_size, config.head_dim, config.intermediate_size
    heads = config.num_heads + 2 * config.num_kv_heads
    attention = [(heads * dim, hidden), (hidden, config.num_heads * dim)]
    expected = 0
    for layer, experts in zip(config.spec.layers, config.experts, strict=True):
        linears = [*attention, (2 * size, hidden), (hidden, size)]
        if experts is not None:
            own = experts.intermediate_size
            linears = [*attention, (experts.num_experts, hidden)]
            linears += experts.num_experts * [(2 * own, hidden), (hidden, own)]
        assert [(linear.n, linear.k) for linear in layer.linears] == linears
        expected += sum(n * k for n, k in linears)
    tables = 1 if config.tie_word_embeddings else 2
    assert config.num_parameters == expected + tables * config.vocab_size * hidden
    for item, name in ((4, "float32"), (1, "float8_e4m3fn")):
        found = block_bytes(config.spec.kv_layers, 16, name)
        assert found == 2 * config.num_layers * 16 * config.num_kv_heads * dim * item
    assert tuple(kv.window for kv in config.spec.kv_layers) == config.sliding_windows


def test_the_expected_tensors_are_those_of_the_checkpoint(
    case: tuple[ModelConfig, Checkpoint],
) -> None:
    config, checkpoint = case
    expected = expected_tensors(config.spec)
    names = {tensor.name for tensor in expected}
    assert len(names) == len(expected)
    assert names == checkpoint.entries.keys() - {"lm_head.weight"} | (
        set() if config.tie_word_embeddings else {"lm_head.weight"}
    )
    matrices = [e.num_items for n, e in checkpoint.entries.items() if len(e.shape) == 2]
    spare = "lm_head.weight" in checkpoint.entries and config.tie_word_embeddings
    copies = config.vocab_size * config.hidden_size if spare else 0
    assert sum(matrices) == config.num_parameters + copies


def test_one_object_describes_a_model(checkpoint: Callable) -> None:
    folder = checkpoint("qwen2_windows")[0]
    first, second = (ModelConfig.from_folder(folder).spec for _ in range(2))
    assert first is second
    assert first.layers[0] != first.layers[1]  # by their windows
    assert (
        msgspec.structs.replace(first.layers[0].attention, window=first.layers[1].attention.window)
        == first.layers[1].attention
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"post_attention_norm": "pre_mlp_norm"}, "post-norm after attention"),
        ({"post_mlp_norm": "pre_mlp_norm"}, "post-norm after the MLP"),
        ({"attention.soft_cap": 50.0}, "soft cap 50.0"),
        ({"attention.sinks": True}, "attention sinks"),
        ({"mlp.activation": "gelu_tanh"}, "activation gelu_tanh"),
        ({"pre_mlp_norm.adds_one": True}, r"norm weight \(1 \+ w\)"),
    ],
)
def test_a_feature_that_is_not_computed_is_refused_by_name(
    changes: dict[str, object], words: str, checkpoint: Callable
) -> None:
    spec = ModelConfig.from_folder(checkpoint("llama")[0]).spec
    check_features(spec, BASE)
    (path, value), *_ = changes.items()
    changed = msgspec.structs.replace(
        spec, layers=(spec.layers[0], with_feature(spec.layers[1], path, value))
    )
    with pytest.raises(UnsupportedModelError, match=words):
        check_features(changed, BASE)


class NewerRope(RopeSettings, frozen=True, kw_only=True):
    """RoPE with a field that no runtime knows."""

    interleaved: bool = False


@pytest.mark.parametrize(
    "computed", [llama.COMPUTED, compiled_weights.COMPUTED], ids=["modules", "compiled"]
)
@pytest.mark.parametrize(
    ("changes", "words"),
    [({"kind": "xpos"}, "RoPE of the kind xpos"), ({"interleaved": True}, "interleaved")],
    ids=["kind", "field"],
)
def test_a_rope_that_is_not_computed_is_refused_by_name(
    changes: dict[str, object], words: str, computed: frozenset[str], checkpoint: Callable
) -> None:
    spec = ModelConfig.from_folder(checkpoint("llama")[0]).spec
    rope = NewerRope(**{**msgspec.structs.asdict(spec.ropes[0]), **changes})  # type: ignore[arg-type]
    changed = with_feature(spec.layers[0], "attention.rope", rope)
    with pytest.raises(UnsupportedModelError, match=words):
        check_features(msgspec.structs.replace(spec, layers=(changed,)), computed)


def with_feature(layer: LayerSpec, path: str, value: object) -> LayerSpec:
    """The layer with one field changed; a text that names a field means that field's value."""
    first, _, rest = path.partition(".")
    if rest:
        inner = msgspec.structs.replace(getattr(layer, first), **{rest: value})
        return msgspec.structs.replace(layer, **{first: inner})
    return msgspec.structs.replace(layer, **{first: getattr(layer, str(value))})
