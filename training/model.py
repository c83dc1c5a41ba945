"""Owns the models: their shapes, attention inside packed documents, checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from chat_format import CHAT_TEMPLATE, END, MAX_TOKENS, PAD, SPECIALS
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Recipe:
    """Settings in which models differ from one another."""

    name: str
    seed: int
    shape: dict[str, Any]


def new_model(recipe: Recipe, vocab_size: int) -> Any:
    torch.manual_seed(recipe.seed)
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "head_dim": 32,
        "max_position_embeddings": MAX_TOKENS,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attn_implementation": "packed",
    }
    return LlamaForCausalLM(LlamaConfig(**settings, **recipe.shape))


def packed_attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within packed documents: [1, heads, T, D] in, [1, T, heads, D] out."""
    bounds, longest = kwargs["cu_seq_lens_q"], kwargs["max_length_q"]
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if query.is_cuda:
        flat = [t[0].transpose(0, 1).to(torch.bfloat16).contiguous() for t in (query, key, value)]
        out = torch.ops.aten._flash_attention_forward(
            *flat, bounds, bounds, longest, longest, 0.0, True, False, scale=kwargs["scaling"]
        )[0]
        return out[None], None
    inside = torch.arange(query.shape[2])
    owner = torch.searchsorted(bounds, inside, right=True)
    allowed = (owner[:, None] == owner[None]) & (inside[:, None] >= inside[None])
    out = F.scaled_dot_product_attention(query, key, value, allowed, scale=kwargs["scaling"])
    return out.transpose(1, 2), None


AttentionInterface.register("packed", packed_attention)


def load(folder: Path, device: str, attention: str = "sdpa") -> Any:
    model: Any = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation=attention
    )
    return model.to(device).eval()


def save(model: Any, folder: Path, tokenizer: Tokenizer) -> None:
    """Write a checkpoint that `transformers` and Quire read."""
    clone: Any = LlamaForCausalLM(model.config)
    clone.load_state_dict({k: v.detach().cpu() for k, v in model.state_dict().items()})
    clone.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "rope_theta": ROPE_THETA,
        "torch_dtype": "bfloat16",
    }  # for readers of the older names
    write(folder / "config.json", config, indent=2, sort_keys=True)
    generation = {"do_sample": False, "eos_token_id": END, "pad_token_id": PAD}
    write(folder / "generation_config.json", generation, indent=2)
    vocabulary = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)
    (folder / "tokenizer.json").write_text(vocabulary)
    write(folder / "tokenizer_config.json", tokenizer_settings(), indent=2)


def tokenizer_settings() -> dict[str, Any]:
    added = {"special": True, "normalized": False, "lstrip": False, "rstrip": False}
    added["single_word"] = False
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_TOKENS,
        "eos_token": SPECIALS[END],
        "pad_token": SPECIALS[PAD],
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(i): {"content": text, **added} for i, text in enumerate(SPECIALS)
        },
        "chat_template": CHAT_TEMPLATE,
    }


def write(path: Path, content: Any, **style: Any) -> None:
    path.write_text(json.dumps(content, **style) + "\n")
