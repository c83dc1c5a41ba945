"""Models whose keys and values are kept in another data type than their own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import PagedModel, load_folder

from quire.hub import resolve_model
from quire.kvcache.kv_storage import kv_dtype


@pytest.mark.parametrize("setting", ["fp8", "fp8_e4m3", "int8"])
def test_a_cache_in_8_bits_changes_little(setting: str) -> None:
    """Logits of a whole prompt, chunk by chunk, so that most keys are read back."""
    model, model_config = load_folder(resolve_model("quire-tiny"))
    prompt = [5, 60, 700, 8, 90, 1000] * 8
    exact, ours = (
        PagedModel(model, model_config, dtype=kv_dtype(name, torch.float32)).prefill(
            prompt, chunk=7
        )
        for name in ("auto", setting)
    )
    assert not torch.equal(ours, exact)
    assert F.cosine_similarity(ours, exact, dim=1).min() > (0.999 if setting == "int8" else 0.99)
