"""Models for benchmarks of quantization: one trained on the spot, and one of random numbers.

Not a program. The text is what a machine with Python has: sources and docstrings of the standard
library and of installed packages. Files are held out by a checksum of their names.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from optimizer import Optimizer

ROOT = Path(__file__).parents[1]
END = "<|end|>"
_ATTENTION = "plain_causal"
_HELD_OUT = 40  # one file of so many
_PIECE = 60_000  # characters that are encoded as one
_TOKENIZER_CHARACTERS = 20_000_000
_COMPILING_STEPS = 8  # which count for no time


@dataclass(frozen=True)
class Shape:
    """Sizes of a model of Llama's kind. intermediate: of the MLP. context: tokens of a sample."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    context: int
    is_tied: bool = True

    def config(self) -> Any:
        """As transformers has it."""
        return LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.dim,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.context,
            tie_word_embeddings=self.is_tied,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=None,
            attn_implementation=_ATTENTION,
            architectures=["LlamaForCausalLM"],
        )


@dataclass(frozen=True)
class Text:
    """Token ids of training files and of held-out ones, one after the other."""

    tokenizer: Tokenizer
    training: np.ndarray
    held_out: np.ndarray


def read_text(characters: int, vocab: int, seed: int) -> Text:
    """Text of at most so many characters, in the tokens of a vocabulary made for it."""
    files = sorted(set(_files()))
    Random(seed).shuffle(files)
    parts: dict[bool, list[str]] = {False: [], True: []}
    seen = set[int]()
    for path in files:
        text = _read(path)
        digest = zlib.crc32(text.encode())
        if len(text) > 200 and digest not in seen:
            seen.add(digest)
            is_held = zlib.crc32("/".join(path.parts[-3:]).encode()) % _HELD_OUT == 0
            parts[is_held] += [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
            characters -= len(text)
        if characters < 0:
            break
    tokenizer = _tokenizer(parts[False], vocab)
    return Text(tokenizer, *(_encoded(tokenizer, parts[held]) for held in (False, True)))


def _files() -> Iterator[Path]:
    packages = {Path(str(module.__file__)).parents[1] for module in (torch, transformers)}
    for root in {Path(sysconfig.get_paths()["stdlib"]), *packages}:
        yield from root.rglob("*.py")
    for kind in ("*.md", "*.py"):
        yield from ROOT.rglob(kind)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts[: max(1, _TOKENIZER_CHARACTERS // _PIECE)], trainer)
    return tokenizer


def _encoded(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    found = [np.array([*each.ids, 0], np.uint16) for each in tokenizer.encode_batch_fast(texts)]
    return np.concatenate(found)


def train(
    shape: Shape, text: Text, seconds: float, batch_tokens: int, *, compiled: bool
) -> tuple[Any, dict[str, Any]]:
    """A model trained for so many seconds, and what it took. On a GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(shape.config()).to(device)
    optimizer = Optimizer(model, muon_lr=0.02, adam_lr=0.004)
    losses = torch.compile(_loss) if compiled else _loss
    tokens = torch.from_numpy(text.training.astype(np.int32)).to(device)
    count, drawn = max(1, batch_tokens // shape.context), torch.Generator().manual_seed(0)
    step, begin, done, total = 0, time.monotonic(), 0.0, torch.zeros((), device=device)
    curve: list[float] = []
    while done < 1.0:
        starts = torch.randint(len(tokens) - shape.context - 1, (count,), generator=drawn)
        index = starts[:, None] + torch.arange(shape.context + 1)
        loss = losses(model, tokens[index.to(device)].long())
        loss.backward()
        optimizer.step(min(1.0, (step + 1) / 100, (1.0 - done) / 0.5))
        step += 1
        total += loss.detach()
        if step % 20 == 0:
            curve.append(round(total.item() / 20, 4))
            total.zero_()
        if step == _COMPILING_STEPS:
            begin = time.monotonic()
        done = 0.0 if step < _COMPILING_STEPS else (time.monotonic() - begin) / seconds
    if device == "cuda":
        torch.cuda.synchronize()
    spent = time.monotonic() - begin
    seen = (step - _COMPILING_STEPS) * count * shape.context
    parameters = sum(p.numel() for p in model.parameters())
    return model.eval(), {
        "parameters": parameters,
        "steps": step,
        "tokens": seen,
        "seconds": round(spent, 1),
        "tflops": round(6 * parameters * seen / spent / 1e12, 1),
        "loss": curve,
    }


def _causal_attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """[B, heads, T, D] in, [B, T, heads, D] out; transformers' own makes a mask while compiling."""
    if query.is_cuda:
        query, key, value = (each.to(torch.bfloat16) for each in (query, key, value))
    out = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2), None


AttentionInterface.register(_ATTENTION, _causal_attention)


def _loss(model: Any, ids: Tensor) -> Tensor:
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def save_trained(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a checkpoint in bfloat16 with its tokenizer."""
    model.to("cpu", torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}\n'
    )


def save_random(shape: Shape, folder: Path) -> None:
    """Write a checkpoint of random numbers, a file for each layer and one for the rest."""
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    shape.config().save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"torch_dtype": "bfloat16"}))

    def matrix(rows: int, columns: int) -> Tensor:
        found = torch.randn(rows, columns, device=device) * columns**-0.5
        return found.bfloat16().cpu()

    ones, head = torch.ones(shape.dim, dtype=torch.bfloat16), shape.dim // shape.heads
    sizes = {
        "self_attn.q_proj": (shape.dim, shape.dim),
        "self_attn.k_proj": (shape.kv_heads * head, shape.dim),
        "self_attn.v_proj": (shape.kv_heads * head, shape.dim),
        "self_attn.o_proj": (shape.dim, shape.dim),
        "mlp.gate_proj": (shape.intermediate, shape.dim),
        "mlp.up_proj": (shape.intermediate, shape.dim),
        "mlp.down_proj": (shape.dim, shape.intermediate),
    }
    names: dict[str, str] = {}

    def write(tensors: dict[str, Tensor]) -> None:
        file = f"model-{len(set(names.values())):05d}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        names.update(dict.fromkeys(tensors, file))

    for index in range(shape.layers):
        tensors = {f"{name}.weight": matrix(*size) for name, size in sizes.items()}
        tensors |= {
            f"{name}.weight": ones.clone()
            for name in ("input_layernorm", "post_attention_layernorm")
        }
        write({f"model.layers.{index}.{name}": tensor for name, tensor in tensors.items()})
    rest = {"model.embed_tokens.weight": matrix(shape.vocab, shape.dim), "model.norm.weight": ones}
    if not shape.is_tied:
        rest["lm_head.weight"] = matrix(shape.vocab, shape.dim)
    write(rest)
    index = {"metadata": {}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
