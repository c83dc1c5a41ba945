"""Checkpoints of the weights that vLLM's `--load-format dummy` has: uniform in ±0.001, norms too.

A GPU at its power limit multiplies small numbers of one size faster than normal ones, so engines
are compared with equal weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

_LIMIT = 1e-3
_SHARD = 1 << 31  # numbers


def write_uniform_weights(folder: Path) -> None:
    """Write weights in bfloat16 beside a folder's config.json, as `transformers` names them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    torch.manual_seed(0)
    names: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    for name, param in model.named_parameters():
        if shard and sum(each.numel() for each in shard.values()) + param.numel() > _SHARD:
            _write(folder, shard, names)
            shard = {}
        numbers = torch.empty(param.shape, dtype=torch.bfloat16, device=device)
        shard[name] = numbers.uniform_(-_LIMIT, _LIMIT).cpu()
    _write(folder, shard, names)
    index = {"metadata": {}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _write(folder: Path, shard: dict[str, torch.Tensor], names: dict[str, str]) -> None:
    file = f"model-{len(set(names.values())):05d}.safetensors"
    save_file(shard, folder / file, {"format": "pt"})
    names.update(dict.fromkeys(shard, file))
