"""Quantized heads, and what is said where config files and tensors differ in what is quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harmed_checkpoints import configure, refusals
from harness import PagedModel, load_folder
from quantized_checkpoints import DOWN, METHODS, Change, write_quantized
from torch import Tensor

PROMPT = torch.randint(3, 500, (12,), generator=torch.Generator().manual_seed(1)).tolist()


def quantize_head(name: str, **settings: Any) -> Change:
    """The head's numbers as codes of the named method."""

    def change(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        stored, _ = METHODS[name].pack(tensors.pop("lm_head.weight"))
        tensors |= {f"lm_head.{leaf}": tensor.contiguous() for leaf, tensor in stored.items()}
        config |= {key: settings.pop(key) for key in ("tie_word_embeddings",) if key in settings}
        configure(**settings)(tensors, config)

    return change


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gptq", {"lm_head": True}),
        ("awq_g128", {"lm_head": True}),
        ("fp8", {"lm_head": True}),
        ("fp8_block", {"lm_head": True, "modules_to_not_convert": []}),
        ("packed", {"ignore": ["re:.*layers.1.mlp.down_proj"]}),
        ("nf4_nested", {"llm_int8_skip_modules": ["score"]}),  # a list without the head
        ("modelopt", {"ignore": ["*1.mlp.down*"]}),
        ("auto_round_zeros", {"extra_config": {"lm_head": {"bits": 4}}}),
    ],
)
def test_a_quantized_head_is_read(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    oracle = write_quantized(name, tmp_path, quantize_head(name, **settings))
    oracle.lm_head.weight.data = METHODS[name].pack(oracle.lm_head.weight.detach())[1]
    model = PagedModel(*load_folder(tmp_path, prepared_weights="none"))
    with torch.inference_mode():
        theirs = oracle(torch.tensor([PROMPT])).logits[0]
    assert (model.prefill(PROMPT) - theirs).norm() / theirs.norm() < 0.06


def plain_down(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
    name = DOWN.replace("1", "0")
    for key in [key for key in tensors if key.startswith(name)]:
        del tensors[key]
    tensors[f"{name}.weight"] = torch.zeros(128, 256)


test_the_fix_names_the_settings_that_differ_from_the_files = refusals(
    ("gptq", quantize_head("gptq"), r"codes of lm_head, unlike dynamic and lm_head of quant"),
    ("fp8", quantize_head("fp8"), r"lm_head, unlike modules_to_n.*layers, dynamic and lm_head of"),
    *(
        (name, quantize_head(name, ignore=[], tie_word_embeddings=True), r"tie_word_embed.*lse")
        for name in ("packed", "modelopt")
    ),
    ("gptq", configure(lm_head=True), r"16-bit numbers of lm_head, unlike dynamic and lm_head"),
    *(
        (name, plain_down, r"16-bit numbers of .*0.mlp.down_proj, unlike .*: correct that")
        for name in ("awq", "packed", "nf4", "fp8_block", "modelopt", "auto_round", "llm_int8")
    ),
)
