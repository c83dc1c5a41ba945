"""A checkpoint of random weights in a model's shape, as `transformers` would have saved it.

Speed does not depend on the values, and nothing has to be fetched.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from workloads.vocabulary import make_folder

_STD = 0.02  # of the weights, as models are initialised


def write_checkpoint(shape: Path, folder: Path) -> Path:
    """Write config, tokenizer and bfloat16 weights of a Llama with tied embeddings."""
    folder.mkdir(parents=True, exist_ok=True)
    make_folder(shape, folder)
    config = json.loads((shape / "config.json").read_text())
    save_file(_weights(config), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(config: dict[str, Any]) -> dict[str, Tensor]:
    sizes = _sizes(config)
    with ThreadPoolExecutor() as pool:  # drawing numbers takes one thread, and minutes of them
        return dict(zip(sizes, pool.map(_weight, range(len(sizes)), sizes.values()), strict=True))


def _weight(seed: int, size: tuple[int, ...]) -> Tensor:
    weight = torch.ones(size, dtype=torch.bfloat16)
    if len(size) > 1:
        weight.normal_(0.0, _STD, generator=torch.Generator().manual_seed(seed))
    return weight


def _sizes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    of_layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, size in of_layer.items():
            sizes[f"model.layers.{layer}.{name}.weight"] = size
    return sizes
