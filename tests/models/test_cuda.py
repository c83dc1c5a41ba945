"""The same model on a GPU with the reference operations gives the CPU's logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import PagedModel, load_folder
from quantized_checkpoints import write_quantized

from quire.kernels.byte_operands import ByteWords
from quire.kernels.operands import Fp8Weight, Int8Weight
from quire.layers.linear_layers import LinearBase

FAMILIES = [
    "llama_llama3",
    "mistral",
    "qwen2_tied",
    "qwen3",
    "phi3_partial",
    "gemma2",
    "gemma2_d256",
]
FEW = 60  # tokens of a step: four bits multiply activations in 16 bits
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_equal_those_of_the_cpu(checkpoint: Callable, name: str) -> None:
    folder, _ = checkpoint(name)
    prompt = torch.randint(509, (90,), generator=torch.Generator().manual_seed(0)).tolist()
    cpu = PagedModel(*load_folder(folder)).prefill(prompt)
    cuda = PagedModel(*load_folder(folder, device="cuda"), device="cuda")
    for chunk in (None, 13, 1):
        assert (cuda.prefill(prompt, chunk) - cpu).abs().max() <= 1e-4 * cpu.abs().max()


FOUR_BITS = "awq", "gptq_order", "nvfp4", "modelopt_nvfp4"
KINDS = {"int8": Int8Weight, "float_tokens": Fp8Weight, "fp8": Fp8Weight} | dict.fromkeys(
    ("fp8_block", "float_block", "float_channel", "gptq_8_order", "packed_8"), ByteWords
)


@pytest.mark.parametrize("name", [*FOUR_BITS, *KINDS])
def test_quantized_checkpoints_give_the_scores_of_their_numbers(name: str, tmp_path: Path) -> None:
    """Codes of eight bits run as they are, and activations are rounded if the checkpoint is so."""
    oracle = write_quantized(name, tmp_path)
    prompt = torch.randint(509, (90,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        theirs = oracle(torch.tensor([prompt])).logits[0]
    for dtype in ("float32", "bfloat16"):
        model, config = load_folder(tmp_path, dtype, "cuda")
        found = {type(m.method.operand) for m in model.modules() if isinstance(m, LinearBase)}
        kind = KINDS.get(name)
        is_hopper = torch.cuda.get_device_capability()[0] == 9
        if kind is ByteWords and (dtype != "bfloat16" or not is_hopper):
            kind = Fp8Weight if name == "float_channel" and not is_hopper else None
        assert found & set(KINDS.values()) == ({kind} if kind else set())
        ours = PagedModel(model, config, dtype=getattr(torch, dtype), device="cuda")
        scores = ours.prefill(prompt, FEW).float()
        is_rounded = kind is Fp8Weight and name != "float_channel" and dtype == "bfloat16"
        rounds = kind is Int8Weight or is_rounded
        limit = 0.25 if rounds else 1e-4 if dtype == "float32" else 0.04
        assert (scores - theirs).norm() <= limit * theirs.norm()
        if name in FOUR_BITS and dtype == "bfloat16":  # then many rows are in FP8
            assert (ours.prefill(prompt).float() - theirs).norm() <= 0.25 * theirs.norm()


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_in_bfloat16_are_as_near_to_float32_as_those_of_transformers(
    checkpoint: Callable, name: str
) -> None:
    """Where another token has the highest logit, the two were nearer than the error."""
    folder, theirs = checkpoint(name)
    prompt = torch.randint(509, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        exact = theirs(ids, use_cache=False).logits[0]
        rounded = copy.deepcopy(theirs).bfloat16()(ids, use_cache=False).logits[0].float()
    model, model_config = load_folder(folder, "bfloat16", "cuda")
    ours = PagedModel(model, model_config, dtype=torch.bfloat16, device="cuda")
    for chunk in (None, 37, 1):  # large products, small ones, and decodes
        scores = ours.prefill(prompt, chunk).float()
        error = scores - exact
        assert error.square().mean().sqrt() <= 1.25 * (rounded - exact).square().mean().sqrt()
        others = scores.argmax(-1) != exact.argmax(-1)
        highest = exact.topk(2).values
        gap = highest[:, 0] - highest[:, 1]
        assert (gap[others] <= 2 * error.abs().amax(-1)[others]).all()
        assert others.float().mean() <= 0.1
