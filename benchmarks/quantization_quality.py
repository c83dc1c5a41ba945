"""Change of the bundled model's answers by weights and KV caches with fewer bits.

python benchmarks/quantization_quality.py

Held-out text and chats of the model's training, which it has not seen, are scored token by token
with float32 weights and, in turns, with each scheme and each KV cache. Prompts are computed in
chunks, so that most keys are read back from the cache. int8 and int4 round activations as they do
when they serve; for FP8 rows that say "activations" do so as a GPU does, since a CPU leaves them:
with a scale for each token, or for each token and stretch of columns as on Hopper with few tokens.
Rows of queries round these to the cache's type, as prompts on Hopper do.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import record
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.config import ModelSettings
from quire.hub import resolve_model
from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu.native import set_num_threads
from quire.kernels.dispatch import Kernels, kernels_for
from quire.kernels.operands import LinearWeight
from quire.kernels.torch_dtypes import dtype_name, torch_dtype
from quire.kvcache.kv_sizes import block_bytes, kv_name
from quire.kvcache.kv_storage import allocate_kv
from quire.layers.forward_context import ForwardContext
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading.loader import load_model
from quire.tokenizer.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from data.held_out import held_out
from data.library import held_windows

CHUNK = 64  # tokens of a step
BLOCK_SIZE = 16
DRAWS = 2000  # of samples anew, for an interval
STRETCH = 128  # columns


def main() -> None:
    parser = record.parser(__doc__, "quantization_quality")
    parser.add_argument("--model", default="quire-tiny")
    parser.add_argument("--texts", type=int, default=24, help="windows of text")
    parser.add_argument("--chats", type=int, default=60, help="of each kind")
    parser.add_argument(
        "--only", help="rows that begin so; others stay as the result file has them"
    )
    args = parser.parse_args()
    set_num_threads(1)
    torch.set_grad_enabled(False)
    folder = resolve_model(args.model)
    model_config = ModelConfig.from_folder(folder)
    samples = read_samples(folder, args.texts, args.chats)
    own = kernels_for("cpu")
    by_rows, by_stretches = (
        replace(kernels_for("meta"), linear=partial(rounded_fp8, rounded))
        for rounded in (rounded_rows, rounded_stretches)
    )
    plain, fp8, on_gpu, on_hopper, int8, w8a16, int4 = (
        load(folder, model_config, scheme, kernels)
        for scheme, kernels in (
            ("none", own), ("fp8", own), ("fp8", by_rows), ("fp8", by_stretches), ("int8", own),
            ("w8a16", own), ("int4", own),
        )
    )  # fmt: skip
    bfloat16 = load(folder, model_config, "none", own, torch.bfloat16)
    fp8_queries, int8_queries = (
        load(folder, model_config, "none", replace(own, attention=partial(attend, rounded)))
        for rounded in (queries_fp8, queries_int8)
    )
    earlier = record.earlier_rows(args.out / "quantization_quality.json")
    stored = {row["what"]: row for row in earlier}
    exact = [score(plain, model_config, ids, "auto") for ids in samples]
    rows = []
    for name, model, cache in (
        ("bfloat16", bfloat16, "auto"),
        ("INT8 weights and activations", int8, "auto"),
        ("INT8 weights, activations in 16 bits", w8a16, "auto"),
        ("INT4 weights, INT8 activations and head", int4, "auto"),
        ("FP8 weights", fp8, "auto"),
        ("FP8 weights and activations", on_gpu, "auto"),
        ("FP8 weights, activations by stretches", on_hopper, "auto"),
        ("FP8 KV cache", plain, "fp8"),
        ("INT8 KV cache", plain, "int8"),
        ("Queries and KV cache in FP8", fp8_queries, "fp8"),
        ("Queries and KV cache in INT8", int8_queries, "int8"),
        ("INT8 weights, activations and KV cache", int8, "int8"),
        ("FP8 weights, activations and KV cache", on_gpu, "fp8"),
    ):
        if args.only is not None and not name.startswith(args.only):
            rows += [stored[name]] if name in stored else []
            continue
        found = [score(model, model_config, ids, cache) for ids in samples]
        rows.append({"what": name, **compare(samples, exact, found)})
        print(rows[-1], flush=True)
    if all(row is stored.get(row["what"]) for row in rows):
        sys.exit(f"--only: no row begins with {args.only!r}")
    sizes = [
        block_bytes(model_config.spec.kv_layers, BLOCK_SIZE, dtype)
        for dtype in (kv_name(stored, "bfloat16") for stored in ("auto", "fp8", "int8"))
    ]
    tokens = sum(len(ids) - 1 for ids in samples)
    measured: dict[str, Any] = {"model": args.model, "tokens": tokens, "rows": rows}
    measured["kv_capacity"] = {"fp8": sizes[0] / sizes[1], "int8": sizes[0] / sizes[2]}
    print(record.save(args.name, measured, args.out))


def read_samples(folder: Path, num_texts: int, num_chats: int) -> list[list[int]]:
    """Token ids of held-out texts, and of held-out chats with their right answers."""
    tokenizer = Tokenizer.from_folder(folder)
    texts = [tokenizer.encode(text)[:512] for text in held_windows(num_texts, Random(5))]
    kinds = ("rewrite", "json", "talk", "facts")
    chats = []
    for conversation in held_out(dict.fromkeys(kinds, num_chats)).values():
        for turn in conversation:
            messages = [{"role": role, "content": text} for role, text in turn.prompt]
            prompt = tokenizer.encode_chat(messages)
            chats.append((prompt + tokenizer.encode(turn.answer))[-512:])
    return texts + chats


def load(
    folder: Path,
    model_config: ModelConfig,
    quantization: Any,
    kernels: Kernels,
    dtype: torch.dtype = torch.float32,
) -> LlamaForCausalLM:
    config = ModelSettings(model=str(folder), quantization=quantization)
    return load_model(config, model_config, folder, torch.device("cpu"), dtype, kernels)


def rounded_fp8(
    rounded: Callable[[Tensor], Tensor],
    x: Tensor,
    weight: LinearWeight,
    bias: Tensor | None,
) -> Tensor:
    """The linear operation as GPUs make it that multiply FP8 by FP8."""
    return reference.linear(rounded(x), weight, bias)


def rounded_rows(x: Tensor) -> Tensor:
    """Activations as FP8 holds them."""
    codes, scale = reference.quantize_rows(x)
    return codes.float() * scale


def rounded_stretches(x: Tensor) -> Tensor:
    """Activations as FP8 holds them with scales for stretches of 512 columns or more, as Hopper's
    product of up to 16 rows rounds."""
    stretches = range(0, x.shape[1], STRETCH)
    return torch.cat([rounded_rows(x[:, at : at + STRETCH]) for at in stretches], dim=1)


def attend(rounded: Callable[[Tensor], Tensor], query: Tensor, *others: Any) -> Tensor:
    """Attention of rounded queries."""
    return kernels_for("cpu").attention(rounded(query), *others)


def queries_fp8(query: Tensor) -> Tensor:
    """Queries [T, H, D] as FP8 holds them, with a power of two for each row."""
    factor = torch.exp2(query.abs().amax(-1, keepdim=True).log2().floor() - 7)
    return (query / factor).to(reference.FP8).float() * factor


def queries_int8(query: Tensor) -> Tensor:
    """Queries [T, H, D] as bytes, with a factor for each row."""
    factor = query.abs().amax(-1, keepdim=True) / 127
    return (query / factor).round() * factor


def score(
    model: LlamaForCausalLM, model_config: ModelConfig, ids: list[int], cache: str
) -> tuple[Tensor, Tensor]:
    """(hidden states [T, H], log-probabilities [T, V]), computed chunk by chunk over a KV cache."""
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    stored = torch_dtype(kv_name(cache, dtype_name(next(model.parameters()).dtype)))
    kv = allocate_kv(model_config.spec.kv_layers, num_blocks, BLOCK_SIZE, stored, "cpu")
    table = np.arange(num_blocks, dtype=np.int32)[None]
    parts = []
    for start in range(0, len(ids), CHUNK):
        end = min(start + CHUNK, len(ids))
        layout = BatchLayout.build([end - start], [end], table, BLOCK_SIZE)
        positions = torch.arange(start, end)
        context = ForwardContext(layout, kv)
        parts.append(model.forward(torch.tensor(ids[start:end]), positions, context))
    hidden = torch.cat(parts)
    return hidden.float(), model.compute_logits(hidden).float().log_softmax(-1)


def compare(
    samples: list[list[int]],
    exact: list[tuple[Tensor, Tensor]],
    found: list[tuple[Tensor, Tensor]],
) -> dict[str, Any]:
    """Perplexity, divergence, agreement of the first choice and likeness of hidden states."""
    losses, divergences, same, cosines = [], [], [], []
    for ids, (hidden, right), (our_hidden, ours) in zip(samples, exact, found, strict=True):
        following = torch.tensor(ids[1:])[:, None]
        losses.append([-logprobs[:-1].gather(1, following) for logprobs in (right, ours)])
        divergences.append((right.exp() * (right - ours)).sum(-1))
        same.append((right.argmax(-1) == ours.argmax(-1)).float())
        cosines.append(F.cosine_similarity(hidden, our_hidden, dim=-1))
    before, after = (math.exp(torch.cat(part).mean()) for part in zip(*losses, strict=True))
    divergence = torch.cat(divergences)
    return {
        "perplexity_exact": before,
        "perplexity": after,
        "perplexity_change": after / before - 1,
        "mean_kl": divergence.mean().item(),
        "p99_kl": divergence.quantile(0.99).item(),
        "same_top_1": torch.cat(same).mean().item(),
        "same_top_1_95": interval(same),
        "mean_cosine": torch.cat(cosines).mean().item(),
        "p1_cosine": torch.cat(cosines).quantile(0.01).item(),
    }


def interval(parts: list[Tensor]) -> tuple[float, float]:
    """Between what 95 % of means lie if samples are drawn anew from these, with repetition."""
    sums, counts = (torch.tensor([float(f(part)) for part in parts]) for f in (torch.sum, len))
    drawn = torch.randint(len(parts), (DRAWS, len(parts)), generator=torch.manual_seed(0))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


if __name__ == "__main__":
    main()
