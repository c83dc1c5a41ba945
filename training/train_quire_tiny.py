# ruff: noqa: E501
"""Owns the making of quire-tiny and its draft: tokenizer, training, scores, files, model card.

    python training/train_quire_tiny.py --out src/quire/bundled

Stages: tokenizer -> target -> draft -> eval -> card. Worker processes make the training text of
`data.py` while the GPU trains, so most of it is seen only once. Needs one GPU, torch,
transformers, tokenizers and matplotlib; without a GPU it runs, slowly, for debugging.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import os
import platform
import queue
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import lexicon
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

PAD, END, SYSTEM, USER, ASSISTANT = range(5)
SPECIALS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
ROLE = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] in ['system', 'developer'] -%}{{- '<|system|>' -}}"
    "{%- elif message['role'] in ['user', 'tool'] -%}{{- '<|user|>' -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '<|assistant|>' -}}"
    "{%- else -%}{{- raise_exception('unknown role ' + message['role']) -}}{%- endif -%}"
    "{{- message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
MIX = {"rewrite": 0.38, "talk": 0.15, "facts": 0.22, "json": 0.13, "text": 0.12}  # share of tokens
SHORT, LONG = 512, 4096
VOCAB = 2048
TARGET: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
DRAFT: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

# ---------------------------------------------------------------- tokenizer and token shards


def build_tokenizer() -> Tokenizer:
    """Byte-level BPE: any UTF-8 text survives encode and decode."""
    rng = random.Random(11)
    texts = [c for task in MIX for _ in range(1200) for _, c in data.plain_chat(task, rng)]
    texts += [data.make_query(rng).text for _ in range(40000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    sample = "naïve café — 東京 🚲\n\ttabs  and\r\nspaces"
    assert tokenizer.decode(tokenizer.encode(sample).ids) == sample
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def tokenize(
    tokenizer: Tokenizer, chats: list[list[data.Message]]
) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids and loss weights (tenths) of each chat: what the model says counts most."""
    encoded = iter(tokenizer.encode_batch_fast([c for chat in chats for _, c in chat]))
    for chat in chats:
        ids: list[int] = []
        weights: list[int] = []
        for role, _ in chat:
            body = next(encoded).ids
            if role == "text":
                ids, weights = body, [5] * len(body)
                continue
            ids += [ROLE[role], *body, END]
            weights += [1, *[10 if role == "assistant" else 1] * (len(body) + 1)]
        yield ids[:LONG], weights[:LONG]


Shard = tuple[np.ndarray, np.ndarray, np.ndarray]  # tokens, weights, document lengths


def make_shards(seed: int, folder: str, size: int, results: mp.Queue[Shard]) -> None:
    """A worker's life: mixes of all tasks, about `size` tokens each, without end."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    rng = random.Random(seed)
    while True:
        pairs: list[tuple[list[int], list[int]]] = []
        for task, share in MIX.items():
            made = 0
            while made < share * size:
                batch = list(tokenize(tokenizer, [data.plain_chat(task, rng) for _ in range(64)]))
                pairs += batch
                made += sum(len(ids) for ids, _ in batch)
        pairs = [p for p in pairs if len(p[0]) > 4]
        tokens = np.fromiter((t for ids, _ in pairs for t in ids), np.uint16)
        weights = np.fromiter((w for _, ws in pairs for w in ws), np.uint8)
        results.put((tokens, weights, np.array([len(ids) for ids, _ in pairs], np.int32)))


@dataclass
class Batch:
    ids: Tensor  # [1, T], documents one after another
    positions: Tensor  # [1, T]
    labels: Tensor  # [T]
    weights: Tensor  # [T]
    bounds: Tensor  # [documents + 1], padded with T
    longest: int  # upper bound of a document's length


class Stream:
    """Batches of packed documents: new shards as workers finish them, old ones in between."""

    def __init__(self, folder: Path, workers: int, tokens: int, seed: int, device: str) -> None:
        size = 1_500_000 if device == "cuda" else 12 * tokens
        self.tokens, self.device, self.rng = tokens, device, np.random.default_rng(seed)
        context = mp.get_context("spawn")
        self.results: mp.Queue[Shard] = context.Queue(maxsize=64)
        self.workers = [
            context.Process(
                target=make_shards,
                args=(seed * 1000 + i, str(folder), size, self.results),
                daemon=True,
            )
            for i in range(workers)
        ]
        for worker in self.workers:
            worker.start()
        self.shards: list[Shard] = []
        self.ready: list[Batch] = []
        self.fresh = 0

    def take(self, wait: bool) -> bool:
        try:
            shard = self.results.get(block=wait)
        except queue.Empty:
            return False
        self.shards.append(shard)
        self.fresh += len(shard[0])
        return True

    def next(self) -> Batch:
        if not self.ready:
            news = self.take(wait=not self.shards)
            shard = self.shards[-1 if news else self.rng.integers(len(self.shards))]
            self.ready = list(self.split(shard))
            self.rng.shuffle(self.ready)
        return self.ready.pop()

    def split(self, shard: Shard) -> Iterator[Batch]:
        tokens, weights, lengths = shard
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        flat = torch.from_numpy(tokens.astype(np.int32)).to(self.device).long()
        scale = torch.from_numpy(weights).to(self.device).float() / 10
        for longest, members in ((SHORT, lengths <= SHORT), (LONG, lengths > SHORT)):
            order = self.rng.permutation(np.flatnonzero(members))
            ends = np.cumsum(lengths[order])
            first, base = 0, 0
            while (last := int(np.searchsorted(ends, base + self.tokens))) < len(ends):
                picked = order[first : last + 1]
                sizes = lengths[picked].copy()
                sizes[-1] -= ends[last] - base - self.tokens  # the last document is cut to fit
                yield self.pack(flat, scale, starts[picked], sizes, longest)
                first, base = last + 1, int(ends[last])

    def pack(
        self, flat: Tensor, scale: Tensor, starts: np.ndarray, sizes: np.ndarray, longest: int
    ) -> Batch:
        total, device = self.tokens, self.device
        bounds = np.full(total // 24 + 1, total, np.int32)
        bounds[0] = 0
        bounds[1 : len(sizes) + 1] = np.cumsum(sizes)
        length = torch.from_numpy(sizes.astype(np.int64)).to(device)
        begin = torch.from_numpy(np.cumsum(sizes).astype(np.int64) - sizes).to(device)
        position = torch.arange(total, device=device) - begin.repeat_interleave(
            length, output_size=total
        )
        source = torch.from_numpy(starts.astype(np.int64)).to(device)
        index = source.repeat_interleave(length, output_size=total) + position
        ids = flat[index]
        weight = F.pad(scale[index][1:], (0, 1))
        weight[torch.from_numpy(bounds[1 : len(sizes) + 1].astype(np.int64)).to(device) - 1] = 0
        labels = F.pad(ids[1:], (0, 1))
        return Batch(
            ids[None], position[None], labels, weight, torch.from_numpy(bounds).to(device), longest
        )

    def close(self) -> None:
        for worker in self.workers:
            worker.terminate()


# ---------------------------------------------------------------- model and optimizer


def packed_attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each packed document."""
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


def new_model(shape: dict[str, Any], seed: int) -> Any:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "head_dim": 32,
        "max_position_embeddings": LONG,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attn_implementation": "packed",
    }
    config = LlamaConfig(**settings, **shape)
    return LlamaForCausalLM(config)


class Muon:
    """Momentum whose matrix updates are made orthogonal; equal shapes share one batched product."""

    def __init__(self, matrices: list[torch.nn.Parameter], lr: float) -> None:
        self.lr = lr
        shapes = sorted({tuple(m.shape) for m in matrices})
        self.groups = [[m for m in matrices if tuple(m.shape) == s] for s in shapes]
        self.momentum = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        for group, momentum in zip(self.groups, self.momentum, strict=True):
            grad = torch.stack([m.grad for m in group])  # type: ignore[misc]
            momentum.lerp_(grad, 0.05)
            update = orthogonal(grad.lerp(momentum, 0.95))
            rate = self.lr * scale * max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
            torch._foreach_mul_(group, 1 - 0.05 * self.lr * scale)  # type: ignore[arg-type]
            torch._foreach_add_(group, list(update.float().unbind()), alpha=-rate)  # type: ignore[arg-type]


def orthogonal(x: Tensor) -> Tensor:
    """Newton-Schulz iteration: singular values of each matrix are pushed towards 1."""
    tall = x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


def loss_of(model: Any, batch: Batch, teacher: Any | None) -> tuple[Tensor, Tensor]:
    """(what is minimised, next-token cross-entropy), both over the weighted tokens."""

    def logits(m: Any) -> Tensor:
        with torch.autocast(batch.ids.device.type, torch.bfloat16):
            hidden = m.model(
                input_ids=batch.ids,
                position_ids=batch.positions,
                use_cache=False,
                cu_seq_lens_q=batch.bounds,
                max_length_q=batch.longest,
            ).last_hidden_state
            return F.linear(hidden[0], m.get_input_embeddings().weight)

    share = batch.weights / batch.weights.sum()
    mine = logits(model).float()
    entropy = (F.cross_entropy(mine, batch.labels, reduction="none") * share).sum()
    if teacher is None:
        return entropy, entropy
    with torch.no_grad():
        target = logits(teacher).float().log_softmax(-1)
    gap = F.kl_div(mine.log_softmax(-1), target, reduction="none", log_target=True).sum(-1)
    return 0.9 * (gap * share).sum() + 0.1 * entropy, entropy


def train(
    model: Any,
    stream: Stream,
    minutes: float,
    teacher: Any | None,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Train until the time is over: short warm-up, constant rate, linear decay to zero."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = Muon(matrices, args.muon_lr)
    adam = torch.optim.AdamW(
        others, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    run: Callable[..., tuple[Tensor, Tensor]] = torch.compile(loss_of) if args.compile else loss_of
    curve: list[dict[str, float]] = []
    total = torch.zeros((), device=stream.device)
    step, since, start = 0, 0, 0.0
    while True:
        elapsed = time.time() - start if start else 0.0
        done = elapsed / (60 * minutes)
        scale = min(1.0, (step + 1) / 150, (1 - done) / 0.5)
        if scale <= 0.002:
            break
        adam.param_groups[0]["lr"] = args.adam_lr * scale
        loss, entropy = run(model, stream.next(), teacher)
        torch.autograd.backward(loss)
        muon.step(scale)
        adam.step()
        model.zero_grad(set_to_none=True)
        total += entropy.detach()
        step, since = step + 1, since + 1
        if step == 8:
            start = time.time()  # compiling is not counted
        if step % args.log_every == 0:
            point = {
                "step": step,
                "tokens": step * stream.tokens,
                "loss": round(total.item() / since, 4),
                "lr": round(scale, 3),
            }
            curve.append(point)
            total.zero_()
            since = 0
            if len(curve) % 10 == 1:
                print(
                    f"{point}  {elapsed:.0f} s, unseen text {stream.fresh / 1e6:.0f}M", flush=True
                )
    return {
        "curve": curve,
        "steps": step,
        "tokens": step * stream.tokens,
        "minutes": round((time.time() - start) / 60, 2),
        "distinct_tokens": stream.fresh,
    }


def save(model: Any, folder: Path, tokenizer: Tokenizer) -> None:
    """Write a checkpoint that `transformers` and Quire read."""
    clone: Any = LlamaForCausalLM(model.config)
    clone.load_state_dict({k: v.detach().cpu() for k, v in model.state_dict().items()})
    clone.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"rope_theta": 10000.0, "torch_dtype": "bfloat16"}  # for readers of the older names
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    generation = {"do_sample": False, "eos_token_id": END, "pad_token_id": PAD}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (folder / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)
    )
    added = {
        str(i): {
            "content": s,
            "special": True,
            "normalized": False,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
        }
        for i, s in enumerate(SPECIALS)
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": LONG,
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": added,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


# ---------------------------------------------------------------- held-out scores


def load(folder: Path, device: str) -> Any:
    model: Any = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    return model.to(device).eval()


def prompt_ids(tokenizer: Tokenizer, messages: list[data.Message]) -> list[int]:
    ids = [i for role, text in messages for i in (ROLE[role], *tokenizer.encode(text).ids, END)]
    return [*ids, ASSISTANT]


@torch.inference_mode()
def replies(model: Any, prompts: list[list[int]], limit: int = 112) -> list[list[int]]:
    """Greedy answers, padded on the left, shortest prompts first."""
    found: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        rows = order[: max(1, min(512, 200_000 // len(prompts[order[min(511, len(order) - 1)]])))]
        order = order[len(rows) :]
        width = max(len(prompts[i]) for i in rows)
        ids = torch.tensor(
            [[PAD] * (width - len(prompts[i])) + prompts[i] for i in rows], device=model.device
        )
        out = model.generate(
            ids, attention_mask=(ids != PAD).long(), max_new_tokens=limit, do_sample=False
        )
        for i, row in zip(rows, out[:, width:].tolist(), strict=True):
            found[i] = row[: row.index(END)] if END in row else row
    return found


def held_out(count: dict[str, int]) -> dict[str, list[data.Turn]]:
    """Questions that training never saw: other queries, phrases and shops."""
    rng = random.Random(2026)
    sets: dict[str, list[data.Turn]] = {k: [] for k in count}
    while len(sets["rewrite"]) < count["rewrite"]:
        sets["rewrite"].append(list(data.rewrite_chat(rng, held=True))[-1])
    while len(sets["json"]) < count["json"]:
        sets["json"].append(list(data.json_chat(rng, held=True))[-1])
    seen: set[str] = set()
    while len(sets["talk"]) < count["talk"]:
        for turn in data.talk_chat(rng, held=True):
            phrase = turn.messages[-2][1].lower().rstrip("?.!")
            if turn.rare and turn.intent in lexicon.TALK and phrase not in seen:
                seen.add(phrase)
                sets["talk"].append(turn)
    while len(sets["facts"]) < count["facts"]:
        sets["facts"] += [
            t for t in data.talk_chat(rng, held=True, facts=True) if t.intent in lexicon.FACTS
        ][-1:]
    for text, intent in lexicon.PARAPHRASES:
        turn = data.Turn(
            "paraphrases",
            [("user", text), ("assistant", "")],
            "",
            intent,
            tuple(lexicon.TALK[intent][1]),
        )
        sets["paraphrases"].append(turn)
    return sets


def share_right(pairs: list[tuple[data.Turn, str]]) -> float:
    return round(100 * sum(t.right(r) for t, r in pairs) / max(1, len(pairs)), 2)


@torch.inference_mode()
def text_loss(model: Any, tokenizer: Tokenizer, windows: list[str]) -> dict[str, float]:
    nats = tokens = size = 0.0
    for window in windows:
        ids = torch.tensor([tokenizer.encode(window).ids[:2048]], device=model.device)
        logits = model(ids).logits[0, :-1].float()
        nats += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        tokens += ids.shape[1] - 1
        size += len(tokenizer.decode(ids[0, 1:].tolist()).encode())
    return {
        "perplexity_per_token": round(math.exp(nats / tokens), 2),
        "bits_per_byte": round(nats / math.log(2) / size, 3),
        "tokens": int(tokens),
    }


@torch.inference_mode()
def agreement(target: Any, draft: Any, rows: list[tuple[list[int], list[int]]]) -> dict[str, float]:
    """How often the draft's guess would be accepted while the target answers."""
    same = overlap = entropy = count = 0.0
    for prompt, reply in rows:
        ids = torch.tensor([prompt + reply + [END]], device=target.device)
        spots = slice(len(prompt) - 1, -1)
        p, q = (m(ids).logits[0, spots].float().softmax(-1) for m in (target, draft))
        same += (p.argmax(-1) == q.argmax(-1)).sum().item()
        overlap += torch.minimum(p, q).sum().item()
        entropy += -(p * p.clamp_min(1e-9).log()).sum().item()
        count += len(p)
    return {
        "greedy_acceptance": round(100 * same / count, 1),
        "sampled_acceptance": round(100 * overlap / count, 1),
        "target_entropy_nats": round(entropy / count, 3),
    }


def evaluate(work: Path, tokenizer: Tokenizer, args: argparse.Namespace) -> dict[str, Any]:
    scale = 0.02 if args.small else 1.0
    wanted = {"rewrite": 4000, "json": 800, "talk": 300, "facts": 800, "paraphrases": 0}
    sets = held_out({k: int(v * scale) for k, v in wanted.items()})
    rng = random.Random(5)
    library = data.library(True)
    windows = []
    for document in rng.sample(library, min(len(library), int(150 * scale) + 1)):
        first = rng.randrange(max(1, len(document) - 4000))
        windows.append(document[first : first + 6000])
    both = {name: load(work / name, args.device) for name in ("quire-tiny", "quire-tiny-draft")}
    scores: dict[str, Any] = {}
    mistakes: dict[str, list[list[str]]] = {}
    for name, model in both.items():
        table: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
        accepted: dict[str, dict[str, float]] = {}
        for task, turns in sets.items():
            prompts = [prompt_ids(tokenizer, t.messages[:-1]) for t in turns]
            answers = replies(model, prompts)
            pairs = list(
                zip(turns, tokenizer.decode_batch(answers, skip_special_tokens=False), strict=True)
            )
            table[task] = {"count": len(pairs), "right": share_right(pairs)}
            if task == "rewrite":
                typed = [re.sub(r"^[a-z ]+: ", "", t.messages[-2][1]) for t in turns]
                marks = {
                    "already correct": [q == t.answer for q, t in zip(typed, turns, strict=True)],
                    "with typos": [
                        q.lower().rstrip("?.! ") != t.answer
                        for q, t in zip(typed, turns, strict=True)
                    ],
                    "no system prompt": [t.messages[0][0] == "user" for t in turns],
                    "with a misspelling kept out of training": [t.rare for t in turns],
                }
                for label, kept in marks.items():
                    chosen = [p for p, keep in zip(pairs, kept, strict=True) if keep]
                    table[task][label] = {"count": len(chosen), "right": share_right(chosen)}
            if task == "facts":
                far = [p for p, ids in zip(pairs, prompts, strict=True) if len(ids) > 1000]
                table[task]["prompt over 1000 tokens"] = {
                    "count": len(far),
                    "right": share_right(far),
                }
            if name == "quire-tiny":
                wrong = [
                    [t.intent, t.messages[-2][1], t.answer, r] for t, r in pairs if not t.right(r)
                ]
                mistakes[task] = wrong[:60]
                accepted[task] = agreement(
                    model, both["quire-tiny-draft"], list(zip(prompts, answers, strict=True))[:100]
                )
        table["text"] = text_loss(model, tokenizer, windows)
        scores[name] = table
        if accepted:
            scores["draft acceptance"] = accepted
        print(name, json.dumps(table), flush=True)
    (work / "mistakes.json").write_text(json.dumps(mistakes, indent=1))
    (work / "examples.json").write_text(
        json.dumps(examples(sets), indent=1, ensure_ascii=False) + "\n"
    )
    return scores


def examples(sets: dict[str, list[data.Turn]]) -> list[dict[str, Any]]:
    """Held-out prompts for a demonstration; the voice bot's callers all reach the same shop."""
    known = (t for t in sets["facts"] if t.must and t.accepts[0] not in lexicon.UNKNOWN)
    facts = [t for t in known if len(t.messages[0][1]) < 900][:8]
    shop = max((t.messages[0] for t in facts), key=lambda message: len(message[1]))
    chosen: list[tuple[str, list[tuple[str, str]], str | None]] = []
    chosen += [("rewrite", t.messages[:-1], t.answer) for t in sets["rewrite"][:26]]
    chosen += [("small_talk", t.messages[:-1], None) for t in sets["talk"][:8]]
    chosen += [("voice_bot", [shop, t.messages[-2]], None) for t in facts]
    return [
        {
            "task": task,
            "messages": [{"role": role, "content": content} for role, content in messages],
            "expected": expected,
        }
        for task, messages, expected in chosen
    ]


# ---------------------------------------------------------------- card


def plot(metrics: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.4), dpi=90)
    for name in ("quire-tiny", "quire-tiny-draft"):
        points = metrics["training"][name]["curve"]
        axes.plot(
            [p["tokens"] / 1e6 for p in points],
            [p["loss"] for p in points],
            label=name,
            linewidth=1.2,
        )
    axes.set(
        xlabel="million tokens",
        ylabel="cross-entropy (nats, weighted)",
        yscale="log",
        title="Training loss",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def card(metrics: dict[str, Any]) -> str:
    scores, runs, set_up = metrics["scores"], metrics["training"], metrics["set_up"]
    names = ("quire-tiny", "quire-tiny-draft")
    rows = []
    for task, label in (
        ("rewrite", "Query rewriting, exact match"),
        ("json", "JSON extraction, exact match"),
        ("facts", "Facts from the system prompt"),
        ("talk", "Small talk, phrases kept from training"),
        ("paraphrases", "Small talk, hand-written paraphrases"),
    ):
        cells = [scores[n][task] for n in names]
        rows.append(
            f"| {label} | {cells[0]['count']} | {cells[0]['right']} % | {cells[1]['right']} % |"
        )
        rows += [
            f"| - {k} | {v['count']} | {v['right']} % | {cells[1][k]['right']} % |"
            for k, v in cells[0].items()
            if isinstance(v, dict)
        ]
    text = [scores[n]["text"] for n in names]
    accepted = [
        f"| {task} | {v['greedy_acceptance']} % | {v['sampled_acceptance']} % | {v['target_entropy_nats']} |"
        for task, v in scores["draft acceptance"].items()
    ]
    shapes = [
        f"| {n} | {scores[n]['parameters']:,} | {s['num_hidden_layers']} | {s['hidden_size']} | {s['intermediate_size']} | "
        f"{s['num_attention_heads']} / {s['num_key_value_heads']} |"
        for n, s in zip(names, (TARGET, DRAFT), strict=True)
    ]
    template = (Path(__file__).parent / "card.md").read_text()
    values = {
        "shapes": "\n".join(shapes),
        "scores": "\n".join(rows),
        "accepted": "\n".join(accepted),
        "ppl": str(text[0]["perplexity_per_token"]),
        "bpb": str(text[0]["bits_per_byte"]),
        "text_tokens": f"{text[0]['tokens']:,}",
        "draft_ppl": str(text[1]["perplexity_per_token"]),
        "draft_bpb": str(text[1]["bits_per_byte"]),
        "vocab": str(VOCAB),
        "words": str(set_up["query_words"]),
        "mix": ", ".join(f"{k} {v:.0%}" for k, v in MIX.items()),
        **set_up,
        **{
            f"{n}_{k}": f"{runs[n][k]:,}"
            for n in names
            for k in ("steps", "tokens", "minutes", "distinct_tokens")
        },
    }
    return re.sub(r"<<([\w-]+)>>", lambda m: str(values[m[1]]), template)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("src/quire/bundled"))
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/quire-tiny"), help="keeps what stages hand on"
    )
    parser.add_argument("--stages", default="tokenizer,target,draft,eval,card")
    parser.add_argument("--minutes", type=float, default=9, help="training time of the target")
    parser.add_argument("--draft-minutes", type=float, default=4)
    parser.add_argument("--tokens", type=int, default=131072, help="tokens a step")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument(
        "--small", action="store_true", help="tiny held-out sets, to try the script"
    )
    args = parser.parse_args()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    work, stages = args.work, args.stages.split(",")
    work.mkdir(parents=True, exist_ok=True)
    state = work / "metrics.json"
    metrics: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {"training": {}}
    if "tokenizer" in stages:
        build_tokenizer().save(str(work / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    for name, shape, minutes, seed in (
        ("quire-tiny", TARGET, args.minutes, 1),
        ("quire-tiny-draft", DRAFT, args.draft_minutes, 2),
    ):
        if ("target" if seed == 1 else "draft") not in stages:
            continue
        teacher = None
        if seed == 2:
            teacher = load(work / "quire-tiny", args.device)
            teacher.set_attn_implementation("packed")
        stream = Stream(work, args.workers, args.tokens, seed, args.device)
        model = new_model(shape, seed).to(args.device)
        metrics["training"][name] = train(model, stream, minutes, teacher, args)
        stream.close()
        save(model, work / name, tokenizer)
        state.write_text(json.dumps(metrics))
    if "eval" in stages:
        metrics["scores"] = evaluate(work, tokenizer, args)
        metrics["set_up"] = {
            "date": args.date,
            "hardware": f"one {torch.cuda.get_device_name().replace('NVIDIA ', '')}"
            if args.device == "cuda"
            else "CPU",
            "command": "python training/train_quire_tiny.py --out src/quire/bundled --minutes "
            f"{args.minutes:g} --draft-minutes {args.draft_minutes:g}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokens_a_step": f"{args.tokens:,}",
            "muon_lr": args.muon_lr,
            "adam_lr": args.adam_lr,
            "query_words": f"{len(data.vocabulary()):,}",
        }
        state.write_text(json.dumps(metrics))
    if "card" in stages:
        args.out.mkdir(parents=True, exist_ok=True)
        for name in ("quire-tiny", "quire-tiny-draft"):
            (args.out / name).mkdir(exist_ok=True)
            for file in (work / name).iterdir():
                (args.out / name / file.name).write_bytes(file.read_bytes())
        (args.out / "examples.json").write_bytes((work / "examples.json").read_bytes())
        (args.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
        plot(metrics, args.out / "loss.png")
        (args.out / "README.md").write_text(card(metrics))
        size = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
        print(f"wrote {args.out}: {size:,} bytes")


if __name__ == "__main__":
    main()
