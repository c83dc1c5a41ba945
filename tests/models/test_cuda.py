"""The same model on a GPU: the reference twins serve there, and give the CPU's scores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import PagedModel, load_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ["llama_llama3", "mistral", "qwen2_tied", "qwen3", "phi3_partial"])
def test_scores_equal_those_of_the_cpu(checkpoint: Callable, name: str) -> None:
    folder, _ = checkpoint(name)
    prompt = torch.randint(509, (90,), generator=torch.Generator().manual_seed(0)).tolist()
    cpu = PagedModel(*load_folder(folder)).prefill(prompt)
    cuda = PagedModel(*load_folder(folder, device="cuda"), device="cuda")
    for chunk in (None, 13, 1):
        assert (cuda.prefill(prompt, chunk) - cpu).abs().max() <= 1e-4 * cpu.abs().max()
