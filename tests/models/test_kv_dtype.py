"""Models whose keys and values are kept in another data type than their own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import PagedModel, load_folder
from msgspec.structs import replace

from quire import LLM, SamplingParams
from quire.config import EngineConfig
from quire.core.layer_spec import KVLayerSpec
from quire.engine.startup.footprint import footprint_of
from quire.engine.startup.resolved_config import resolve
from quire.errors import ConfigError
from quire.hub import resolve_model
from quire.kernels.dispatch import kernels_for
from quire.kernels.torch_dtypes import torch_dtype
from quire.kvcache import kv_storage
from quire.kvcache.kv_sizes import block_bytes, kv_name, layers_with_types

PROMPT = [5, 60, 700, 8, 90, 1000] * 8


@pytest.mark.parametrize("setting", ["fp8", "fp8_e4m3", "int8"])
def test_a_cache_in_8_bits_changes_little(setting: str) -> None:
    """Logits of a whole prompt, chunk by chunk, so that most keys are read back."""
    model, model_config = load_folder(resolve_model("quire-tiny"))
    exact, ours = (
        PagedModel(model, model_config, dtype=torch_dtype(kv_name(name, "float32"))).prefill(
            PROMPT, chunk=7
        )
        for name in ("auto", setting)
    )
    assert not torch.equal(ours, exact)
    assert F.cosine_similarity(ours, exact, dim=1).min() > (0.999 if setting == "int8" else 0.99)


def test_scales_in_tensors_of_their_own_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, by the plain operations: logits are those of scales in rows."""
    monkeypatch.setattr("quire.models.loading.loader.kernels_for", lambda _: kernels_for("meta"))
    loaded = load_folder(resolve_model("quire-tiny"), prepared_weights="none")
    in_rows = PagedModel(*loaded, dtype=torch.int8).prefill(PROMPT, chunk=7)
    monkeypatch.setattr(kv_storage, "_WITH_SCALES_IN_ROWS", frozenset())
    assert torch.equal(PagedModel(*loaded, dtype=torch.int8).prefill(PROMPT, chunk=7), in_rows)


def test_layers_may_be_left_out() -> None:
    """All of them: nothing is rounded. All but one: less is lost than with none."""
    model, config = load_folder(resolve_model("quire-tiny"))
    layers, found = config.spec.kv_layers, {}
    for skipped in ("", "1,2,3,4,5", "0,1,2,3,4,5"):
        paged = PagedModel(model, config, dtype=torch.int8)
        own = layers_with_types(layers, skipped, "float32")
        paged.kv = kv_storage.allocate_kv(own, 128, 16, torch.int8, "cpu")
        assert sum(t.nbytes for pair in paged.kv for t in pair) == 128 * block_bytes(
            own, 16, "int8"
        )
        found[skipped] = paged.prefill(PROMPT, chunk=7)
    exact = PagedModel(model, config).prefill(PROMPT, chunk=7)
    assert torch.equal(found["0,1,2,3,4,5"], exact)
    assert 0 < 1.5 * (found["1,2,3,4,5"] - exact).norm() < (found[""] - exact).norm()


def test_layers_with_a_window_are_left_out_by_name() -> None:
    plain = KVLayerSpec(num_heads=2, key_dim=8, value_dim=8)
    windowed = replace(plain, window=5)
    own = layers_with_types([plain, windowed, plain, windowed], "02, sliding_window", "bfloat16")
    assert [layer.dtype for layer in own] == [None, "bfloat16", "bfloat16", "bfloat16"]
    for wrong in ("4", "-1", "windows", "0-2"):
        with pytest.raises(ConfigError, match=f"skip_layers must hold .* up to 3, not '{wrong}'"):
            layers_with_types([plain] * 4, wrong, "bfloat16")


def test_the_plan_counts_each_layer_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    """Footprint and resolved config agree; the compiled decoder leaves it to PyTorch."""
    options = {"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": "1,5", "num_blocks": 10}
    config = EngineConfig.from_options(model="quire-tiny", dtype="bfloat16", **options)
    resolved = resolve(config, "cpu")
    sizes = [2 * 2 * 32 * (2 if index in (1, 5) else 1) for index in range(6)]
    assert block_bytes(resolved.kv_layers, 16, resolved.kv_dtype) == 16 * sum(sizes)
    assert footprint_of(config).kv_cache == 10 * 16 * sum(sizes)
    assert len(set(resolved.kinds_of_layers)) == 2
    resolved.log_weights()
    assert "has no effect" not in caplog.text
    options["kv_cache_dtype"] = "auto"
    config = EngineConfig.from_options(model="quire-tiny", dtype="bfloat16", **options)
    resolve(config, "cpu").log_weights()
    assert "skip_layers has no effect: the whole KV cache is in bfloat16; set kv_" in caplog.text
    llm = LLM(model="quire-tiny", dtype="float32", **options | {"kv_cache_dtype": "int8"})
    (output,) = llm.generate(["Once upon a time"], SamplingParams(max_tokens=4), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4
