"""Drives a model over paged requests without a scheduler, for tests that have a model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quire.array_types import Ints
from quire.config import ModelSettings
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.ragged_batch import RaggedBatch
from quire.kernels.torch_dtypes import torch_dtype
from quire.kvcache.kv_storage import allocate_kv
from quire.layers.forward_context import ForwardContext
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import LlamaForCausalLM
from quire.models.loading.loader import load_model


@dataclass
class PagedRequest:
    """Known tokens, how many of them are in the cache, and the blocks it holds."""

    token_ids: list[int]
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)


class PagedModel:
    """A model with a KV cache; blocks are allocated in random order by default."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        model_config: ModelConfig,
        *,
        num_blocks: int = 128,
        block_size: int = 16,
        scattered: bool = True,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.model, self.block_size, self.device = model, block_size, device
        self.kv = allocate_kv(model_config.spec.kv_layers, num_blocks, block_size, dtype, device)
        self.free = list(range(num_blocks))
        if scattered:
            random.Random(0).shuffle(self.free)

    @torch.inference_mode()
    def step(self, work: list[tuple[PagedRequest, int]]) -> list[Tensor]:
        """Compute the next n tokens of each request; returns logits [n, V] of each, on the CPU."""
        order = sorted(range(len(work)), key=lambda i: work[i][1] != 1)  # decodes first
        batch = [work[i] for i in order]
        ids = [i for r, n in batch for i in r.token_ids[r.num_computed : r.num_computed + n]]
        parts = self.run(np.array(ids), self._ragged(batch)).split([n for _, n in batch])
        for request, n in batch:
            request.num_computed += n
        return [part for _, part in sorted(zip(order, parts, strict=True), key=lambda p: p[0])]

    def run(self, input_ids: Ints, batch: RaggedBatch) -> Tensor:
        """input_ids [T] → logits [T, V] in float32, on the CPU."""
        hidden = self.model(
            torch.from_numpy(input_ids).to(self.device),
            torch.from_numpy(batch.flat.positions).to(self.device),
            ForwardContext(BatchLayout.of(batch, self.device), self.kv),
        )
        return self.model.compute_logits(hidden).float().cpu()

    def _ragged(self, batch: list[tuple[PagedRequest, int]]) -> RaggedBatch:
        for request, n in batch:
            needed = -(-(request.num_computed + n) // self.block_size)
            while len(request.block_ids) < needed:
                request.block_ids.append(self.free.pop(0))
        table = np.zeros((len(batch), max(len(r.block_ids) for r, _ in batch)), dtype=np.int32)
        for row, (request, _) in enumerate(batch):
            table[row, : len(request.block_ids)] = request.block_ids
        lens = np.array([(n, r.num_computed + n) for r, n in batch])
        return RaggedBatch.of(lens[:, 0], lens[:, 1], table, self.block_size)

    def prefill(self, token_ids: list[int], chunk: int | None = None) -> Tensor:
        """Logits [T, V] of a new request at all its positions, computed chunk by chunk."""
        request = PagedRequest(list(token_ids))
        return self.catch_up(request, chunk)

    def catch_up(self, request: PagedRequest, chunk: int | None = None) -> Tensor:
        """Compute what is left of a request; logits of what was computed."""
        parts = []
        while left := len(request.token_ids) - request.num_computed:
            parts += self.step([(request, min(left, chunk or left))])
        return torch.cat(parts)

    def greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """The num_tokens most probable continuations, one decode step each."""
        request = PagedRequest(list(token_ids))
        for _ in range(num_tokens):
            logits = self.catch_up(request)
            request.token_ids.append(int(logits[-1].argmax()))
        return request.token_ids[len(token_ids) :]


def load_folder(
    folder: Path, dtype: str = "float32", device: str = "cpu", **options: object
) -> tuple[LlamaForCausalLM, ModelConfig]:
    """A model and its config from a folder; options go to ModelSettings."""
    model_config = ModelConfig.from_folder(folder)
    config = ModelSettings(model=str(folder), dtype=dtype, **options)
    wanted = torch_dtype(model_config.dtype if dtype == "auto" else dtype)
    return load_model(config, model_config, folder, torch.device(device), wanted), model_config
