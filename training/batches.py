"""Owns the text's way to the GPU: worker processes make shards, shards become packed batches."""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from chat_format import MAX_TOKENS, Weighted, tokenize
from data import MIX, plain_chat
from tokenizers import Tokenizer
from torch import Tensor

SHORT = 512  # shorter and longer documents go to different batches: attention pays for the longest
SHARD_TOKENS = 1_500_000

Shard = tuple[np.ndarray, np.ndarray, np.ndarray]  # tokens, weights, document lengths


def make_shards(seed: int, folder: str, size: int, results: mp.Queue[Shard]) -> None:
    """A worker's life: shards of about `size` tokens in the mix of all tasks, without end."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    rng = random.Random(seed)
    while True:
        results.put(make_shard(tokenizer, size, rng))


def make_shard(tokenizer: Tokenizer, size: int, rng: random.Random) -> Shard:
    documents: list[Weighted] = []
    for task, share in MIX.items():
        made = 0
        while made < share * size:
            batch = list(tokenize(tokenizer, [plain_chat(task, rng) for _ in range(64)]))
            documents += batch
            made += sum(len(ids) for ids, _ in batch)
    documents = [document for document in documents if len(document[0]) > 4]
    tokens = np.fromiter((token for ids, _ in documents for token in ids), np.uint16)
    weights = np.fromiter((weight for _, tenths in documents for weight in tenths), np.uint8)
    return tokens, weights, np.array([len(ids) for ids, _ in documents], np.int32)


@dataclass
class Batch:
    """Documents one after another; what follows a document's last token is not learnt."""

    ids: Tensor  # [1, T]
    positions: Tensor  # [1, T], from 0 in each document
    labels: Tensor  # [T]
    weights: Tensor  # [T]
    bounds: Tensor  # [documents + 1], padded with T
    longest: int  # upper bound of a document's length


class Stream:
    """Batches of packed documents: new shards as workers finish them, old ones in between."""

    def __init__(self, folder: Path, workers: int, tokens: int, seed: int, device: str) -> None:
        size = SHARD_TOKENS if device == "cuda" else 12 * tokens
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
        self.fresh = 0  # tokens of all shards so far

    def next(self) -> Batch:
        if not self.ready:
            added = self.take(wait=not self.shards)
            shard = self.shards[-1 if added else self.rng.integers(len(self.shards))]
            self.ready = list(self.split(shard))
            self.rng.shuffle(self.ready)
        return self.ready.pop()

    def take(self, wait: bool) -> bool:
        """Fetch a shard if one is finished; True if there was one."""
        try:
            shard = self.results.get(block=wait)
        except queue.Empty:
            return False
        self.shards.append(shard)
        self.fresh += len(shard[0])
        return True

    def split(self, shard: Shard) -> Iterator[Batch]:
        """Cut a shard into full batches of documents in random order; a rest is left over."""
        tokens, weights, lengths = shard
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        flat = torch.from_numpy(tokens.astype(np.int32)).to(self.device).long()
        scale = torch.from_numpy(weights).to(self.device).float() / 10
        for longest, members in ((SHORT, lengths <= SHORT), (MAX_TOKENS, lengths > SHORT)):
            order = self.rng.permutation(np.flatnonzero(members))
            for picked, sizes in self.fill(order, lengths):
                yield self.pack(flat, scale, starts[picked], sizes, longest)

    def fill(
        self, order: np.ndarray, lengths: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The documents of one batch after the other, and the length of each that is taken."""
        ends = np.cumsum(lengths[order])
        first, base = 0, 0
        while (last := int(np.searchsorted(ends, base + self.tokens))) < len(ends):
            picked = order[first : last + 1]
            sizes = lengths[picked].copy()
            sizes[-1] -= ends[last] - base - self.tokens  # the last document is cut to fit
            yield picked, sizes
            first, base = last + 1, int(ends[last])

    def pack(
        self, flat: Tensor, scale: Tensor, starts: np.ndarray, sizes: np.ndarray, longest: int
    ) -> Batch:
        """Gather documents on the device: one copy of their starts and sizes, no loop."""
        total, ends = self.tokens, np.cumsum(sizes)
        bounds = np.full(total // 24 + 1, total, np.int32)  # one shape for all batches
        bounds[0] = 0
        bounds[1 : len(sizes) + 1] = ends
        length = self.on_device(sizes)
        begin = self.on_device(ends - sizes).repeat_interleave(length, output_size=total)
        position = torch.arange(total, device=self.device) - begin
        index = self.on_device(starts).repeat_interleave(length, output_size=total) + position
        ids = flat[index]
        weights = F.pad(scale[index][1:], (0, 1))
        weights[self.on_device(ends) - 1] = 0
        labels = F.pad(ids[1:], (0, 1))
        bounds_there = torch.from_numpy(bounds).to(self.device)
        return Batch(ids[None], position[None], labels, weights, bounds_there, longest)

    def on_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device)

    def close(self) -> None:
        for worker in self.workers:
            worker.terminate()
