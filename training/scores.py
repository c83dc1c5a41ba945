"""Owns the held-out scores: what each model gets right, its loss on text, the draft's guesses."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from chat_format import END, PAD, prompt_ids
from data.chat import Turn
from data.held_out import examples, held_out
from data.library import held_windows
from tokenizers import Tokenizer

COUNTS = {"rewrite": 4000, "json": 800, "talk": 300, "facts": 800}
WINDOWS = 150
PROMPT_TOKENS = 200_000  # at most so many in one batch of prompts


@dataclass
class Reply:
    """A held-out question and what a model said to it."""

    turn: Turn
    prompt: list[int]
    ids: list[int]
    text: str

    @property
    def right(self) -> bool:
        return self.turn.right(self.text)


def evaluate(
    target: Any, draft: Any, tokenizer: Tokenizer, share: float, work: Path
) -> dict[str, Any]:
    """Scores on a share of the held-out sets; leaves examples and mistakes in the work folder."""
    sets = held_out({task: int(count * share) for task, count in COUNTS.items()})
    windows = held_windows(int(WINDOWS * share) + 1, Random(5))
    write(work / "examples.json", examples(sets))
    scores: dict[str, Any] = {}
    for name, model in (("quire-tiny", target), ("quire-tiny-draft", draft)):
        answered = {task: ask(model, tokenizer, turns) for task, turns in sets.items()}
        scores[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            **{task: table(task, replies) for task, replies in answered.items()},
            "text": text_loss(model, tokenizer, windows),
        }
        print(name, json.dumps(scores[name]), flush=True)
        if model is target:
            write(work / "mistakes.json", {k: mistakes(v) for k, v in answered.items()})
            scores["draft acceptance"] = {
                task: agreement(target, draft, replies[:100]) for task, replies in answered.items()
            }
    return scores


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def ask(model: Any, tokenizer: Tokenizer, turns: list[Turn]) -> list[Reply]:
    prompts = [prompt_ids(tokenizer, turn.prompt) for turn in turns]
    answers = generate(model, prompts)
    texts = tokenizer.decode_batch(answers, skip_special_tokens=False)
    return [Reply(*parts) for parts in zip(turns, prompts, answers, texts, strict=True)]


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], limit: int = 112) -> list[list[int]]:
    """Greedy answers, padded on the left, shortest prompts first."""
    found: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        longest = len(prompts[order[min(511, len(order) - 1)]])
        rows = order[: max(1, min(512, PROMPT_TOKENS // longest))]
        order = order[len(rows) :]
        width = max(len(prompts[i]) for i in rows)
        padded = [[PAD] * (width - len(prompts[i])) + prompts[i] for i in rows]
        ids = torch.tensor(padded, device=model.device)
        out = model.generate(
            ids, attention_mask=(ids != PAD).long(), max_new_tokens=limit, do_sample=False
        )
        for i, row in zip(rows, out[:, width:].tolist(), strict=True):
            found[i] = row[: row.index(END)] if END in row else row
    return found


def table(task: str, replies: list[Reply]) -> dict[str, Any]:
    """The score of a task and of the kinds of questions in it."""
    marks = [kinds(task, reply) for reply in replies]
    return score(replies) | {
        kind: score([reply for reply, mark in zip(replies, marks, strict=True) if mark[kind]])
        for kind in (marks[0] if marks else ())
    }


def score(replies: list[Reply]) -> dict[str, Any]:
    right = sum(reply.right for reply in replies)
    return {"count": len(replies), "right": round(100 * right / max(1, len(replies)), 2)}


def kinds(task: str, reply: Reply) -> dict[str, bool]:
    turn = reply.turn
    if task == "facts":
        return {"prompt over 1000 tokens": len(reply.prompt) > 1000}
    if task != "rewrite":
        return {}
    typed = re.sub(r"^[a-z ]+: ", "", turn.question)
    return {
        "already correct": typed == turn.answer,
        "with typos": typed.lower().rstrip("?.! ") != turn.answer,
        "no system prompt": turn.prompt[0][0] == "user",
        "with a misspelling kept out of training": turn.rare,
    }


def mistakes(replies: list[Reply]) -> list[list[str]]:
    """Some wrong answers to read: intent, question, right answer, reply."""
    wrong = [reply for reply in replies if not reply.right]
    return [[r.turn.intent, r.turn.question, r.turn.answer, r.text] for r in wrong[:60]]


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
def agreement(target: Any, draft: Any, replies: list[Reply]) -> dict[str, float]:
    """Rate at which the draft's guess would be accepted while the target answers."""
    same = overlap = entropy = count = 0.0
    for reply in replies:
        ids = torch.tensor([[*reply.prompt, *reply.ids, END]], device=target.device)
        spots = slice(len(reply.prompt) - 1, -1)
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
