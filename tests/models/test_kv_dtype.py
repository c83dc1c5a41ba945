"""Models whose keys and values are kept in another data type than their own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import PagedModel, load_folder

from quire.hub import resolve_model
from quire.kernels.dispatch import kernels_for
from quire.kvcache import kv_storage
from quire.kvcache.kv_storage import kv_dtype

PROMPT = [5, 60, 700, 8, 90, 1000] * 8


@pytest.mark.parametrize("setting", ["fp8", "fp8_e4m3", "int8"])
def test_a_cache_in_8_bits_changes_little(setting: str) -> None:
    """Logits of a whole prompt, chunk by chunk, so that most keys are read back."""
    model, model_config = load_folder(resolve_model("quire-tiny"))
    exact, ours = (
        PagedModel(model, model_config, dtype=kv_dtype(name, torch.float32)).prefill(
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
