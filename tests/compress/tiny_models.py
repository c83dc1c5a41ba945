"""Tiny random models to quantize, with transformers as the reference."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from quire.compress.layer_stream import LayerRunner
from quire.compress.model_parts import ModelParts
from quire.compress.quantize_model import Quantization
from quire.compress.recipe import Recipe
from quire.compress.text_samples import TextSamples

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": {},
    "qwen2": {},  # biases of q, k and v
    "gemma2": {"query_pre_attn_scalar": 16, "sliding_window": 32},  # norms of 1 + w, and after
    "phi3": {},  # fused weights in the files
}
_CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "gemma2": "Gemma2", "phi3": "Phi3"}


def write_model(
    folder: Path, family: str = "llama", dtype: torch.dtype = torch.bfloat16
) -> transformers.PreTrainedModel:
    """Save a model of a family whose norms and biases are not trivial, with some large inputs."""
    name = _CLASSES[family]
    config = getattr(transformers, f"{name}Config")(
        **SIZES, **FAMILIES[family], attn_implementation="eager"
    )  # older versions' SDPA leaves out Gemma 2's cap
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for key, param in model.named_parameters():
        if "norm" in key:
            param.data += torch.randn_like(param).abs() * 2 * (torch.rand_like(param) < 0.1)
        elif key.endswith("bias"):
            param.data = torch.randn_like(param) * 0.1
    model.to(dtype).save_pretrained(folder)
    return model


def write_embedding_model(folder: Path) -> None:
    """Save a model without a head, whose tensors' names do not begin with "model."."""
    torch.manual_seed(3)
    model = transformers.Qwen3Model(transformers.Qwen3Config(**SIZES)).to(torch.bfloat16)
    model.save_pretrained(folder)


def text(seed: int, count: int, length: int = 48) -> list[list[int]]:
    """Random token ids in windows."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES["vocab_size"], (count, length), generator=drawn).tolist()


SAMPLES = TextSamples(text(0, 8), text(1, 4), "random")


def quantize(base: Path, out: Path, recipe: Recipe, notify=lambda *_: None) -> None:
    """Run a recipe on the CPU."""
    Quantization(base, out, recipe, SAMPLES, torch.device("cpu")).run(notify)


def logits(parts: ModelParts, ids: list[int]) -> torch.Tensor:
    """A model by its parts: float32 [T, V]."""
    hidden, head = parts.embed([ids]), parts.head()
    for index in range(len(parts.spec.layers)):
        hidden = LayerRunner(parts, index, len(ids)).each(parts.layer(index), hidden)
    assert head is not None
    return head(parts.final_norm()(hidden[0]))
