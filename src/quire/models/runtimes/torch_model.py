"""A model of PyTorch's modules behind the interface of the model runner.

For what compiled code alone does not serve: other forms of weights, heads of odd sizes, processors
and systems that the compiled kernels were not built for, and GPUs without Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.array_types import Flags, Ints, Logits, Singles
from quire.core.layer_spec import KVLayerSpec
from quire.core.messages import TokenLogprobs
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu.row_ops import finite_rows, in_float32
from quire.kernels.cpu.tensor_ops import as_array
from quire.kernels.ragged_batch import RaggedBatch
from quire.kvcache.kv_storage import allocate_kv
from quire.layers.forward_context import ForwardContext, Heartbeat, no_heartbeat
from quire.models.families.llama import LlamaForCausalLM
from quire.sampling.device_logprobs import score
from quire.sampling.token_logprobs import prompt_logprobs

KVCaches = list[tuple[Tensor, ...]]  # of each layer, see `kv_storage.allocate_kv`


@dataclass(frozen=True, slots=True)
class TorchModel:
    """PyTorch modules with their KV cache: a `HostModel`."""

    model: LlamaForCausalLM
    kv_caches: KVCaches
    device: torch.device

    @torch.inference_mode()
    def forward(
        self,
        input_ids: Ints,
        batch: RaggedBatch,
        heartbeat: Heartbeat = no_heartbeat,
        needed: Ints | None = None,
    ) -> TorchStates:
        """See `HostModel`."""
        layout = BatchLayout.of(batch, self.device)
        context = ForwardContext(layout=layout, kv=self.kv_caches, heartbeat=heartbeat)
        ids, positions = (
            torch.from_numpy(ints).to(self.device) for ints in (input_ids, batch.flat.positions)
        )
        if needed is None:
            return TorchStates(self.model.forward(ids, positions, context), self.model)
        found = self.model.attend(ids, positions, context, len(self.kv_caches))
        rows = torch.from_numpy(needed).to(self.device)
        states = self.model.finish(*(each.index_select(0, rows) for each in found))
        return TorchStates(states, self.model, found[1])


@dataclass(frozen=True, slots=True)
class TorchStates:
    """Hidden states [T, H] on a device, see `HiddenStates`.

    heads: what the last attention found for all tokens, if these are some.
    """

    states: Tensor
    model: LlamaForCausalLM
    heads: Tensor | None = None

    def finite(self) -> Flags:
        """See `HiddenStates`."""
        rows = self.states if self.heads is None else self.heads
        if rows.device.type == "cpu":
            return finite_rows(as_array(rows.contiguous()))
        flags: Flags = rows.isfinite().all(-1).cpu().numpy()
        return flags

    def sums(self, spans: Sequence[tuple[int, int]]) -> Singles:
        """See `HiddenStates`."""
        parts = [self.states[begin:end].sum(0, dtype=torch.float32) for begin, end in spans]
        sums: Singles = torch.stack(parts).cpu().numpy()
        return sums

    @torch.inference_mode()
    def scores(self, tokens: slice, following: list[int], count: int) -> list[TokenLogprobs]:
        """See `HiddenStates`. On a GPU they are made there."""
        if self.states.device.type == "cpu":
            return prompt_logprobs(self.logits(tokens), following, count)
        logits = self.model.compute_logits(self.states[tokens])
        ids = torch.tensor(following, device=logits.device)
        made = score(logits, torch.arange(len(logits), device=logits.device), ids, count)
        return made.waited_for().report([count] * len(following))

    @torch.inference_mode()
    def logits(self, tokens: slice | Ints) -> Logits:
        """See `HiddenStates`."""
        if isinstance(tokens, slice):
            states = self.states[tokens]
        else:
            states = self.states.index_select(0, torch.from_numpy(tokens).to(self.states.device))
        logits = self.model.compute_logits(states)
        if logits.device.type == "cpu":
            return in_float32(as_array(logits.contiguous()))
        host: Logits = logits.float().cpu().numpy()
        return host


def with_cache(
    model: LlamaForCausalLM,
    layers: Sequence[KVLayerSpec],
    block_size: int,
    kv_dtype: torch.dtype,
    num_layers: int,
    num_blocks: int,
) -> TorchModel:
    """The first `num_layers` of a model on the host, with a KV cache for them. See `WithCache`."""
    host = torch.device("cpu")
    caches = allocate_kv(layers[:num_layers], num_blocks, block_size, kv_dtype, host)
    return TorchModel(model, caches, host)
