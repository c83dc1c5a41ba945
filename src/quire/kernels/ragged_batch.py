"""One step's ragged batch on the host: a flat list of T tokens of B requests, as arrays. No torch.

Owns where each token is, in its request and in the KV cache; see batch_layout.py for what kernels
on tensors read of it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from quire.array_types import Flags, Int32s, Ints


class FlatTokens(msgspec.Struct, frozen=True):
    """The T tokens of B requests one after the other: int64 arrays.

    The host derives positions here alone. On a device `build_inputs` does, in reference_step.py and
    triton/step/step_kernels.py, since it works on rows of the batch and on padded steps.
    """

    query_start: Ints  # [B + 1], first token of each request, then T
    rows: Ints  # [T], request of each token
    positions: Ints  # [T], position of each token in its request

    @classmethod
    def of(cls, query_lens: Ints, seq_lens: Ints) -> FlatTokens:
        """The tokens of requests that compute the last query_lens [B] of their seq_lens [B]."""
        num_requests = len(query_lens)
        num_tokens = int(query_lens.sum())
        if num_tokens == num_requests:  # one token each, as in most steps
            starts = np.arange(num_requests + 1)
            return cls(starts, starts[:-1], seq_lens - 1)
        starts = np.zeros(num_requests + 1, np.int64)
        np.cumsum(query_lens, out=starts[1:])
        # position of each token: its index in the batch, shifted to where its request continues
        positions = np.arange(num_tokens) - np.repeat(starts[1:] - seq_lens, query_lens)
        return cls(starts, np.repeat(np.arange(num_requests), query_lens), positions)


class RaggedRequests(msgspec.Struct, frozen=True):
    """Description of B requests that attention reads; see RaggedBatch."""

    query_start: Ints  # [B + 1], first token of each request, then T
    seq_lens: Ints  # [B]
    block_table: Int32s  # int32 [B, W]
    prompts: Flags | None = None  # [B], whether its only token is a prompt's; None: none is


class RaggedBatch(msgspec.Struct, frozen=True):
    """B requests, T tokens of one step on the host, those with a single token (decodes) first.

    slot = block_id * block_size + offset. prompt_lens: tokens of each request that are its prompt;
    None where each computes one token of its answer.
    """

    flat: FlatTokens
    query_lens: Ints  # [B], tokens that each request computes now
    seq_lens: Ints  # [B], its tokens in the cache after this step
    block_table: Int32s  # int32 [B, W], undefined behind the blocks in use
    slots: Ints  # [T], cache slot of each token's key and value
    prompt_lens: Ints | None = None  # [B]

    @classmethod
    def of(
        cls,
        query_lens: Ints,
        seq_lens: Ints,
        block_table: Int32s,
        block_size: int,
        prompt_lens: Ints | None = None,
    ) -> RaggedBatch:
        """The batch of requests in their order, each with at least one token."""
        flat = FlatTokens.of(query_lens, seq_lens)
        if len(flat.rows) > len(query_lens):
            num_decodes = np.count_nonzero(query_lens == 1)
            assert (query_lens[:num_decodes] == 1).all(), "decodes come first in the batch"
        blocks = block_table[flat.rows, flat.positions // block_size].astype(np.int64)
        slots = blocks * block_size + flat.positions % block_size
        return cls(flat, query_lens, seq_lens, block_table, slots, prompt_lens)

    def as_decoded(self) -> RaggedRequests:
        """The requests, with each token of an answer that is computed again as one of its own.

        A token then attends by the same arithmetic as when it was decoded, after a preemption too,
        and the last token of a prompt as where it is not alone.
        """
        if self.prompt_lens is None:
            return RaggedRequests(self.flat.query_start, self.seq_lens, self.block_table)
        before = self.seq_lens - self.query_lens
        again = np.clip(self.seq_lens - self.prompt_lens, 0, self.query_lens)
        num_prompt = self.query_lens - again  # tokens of the prompt, which stay together
        counts = again + (num_prompt > 0)
        rows = np.repeat(np.arange(len(counts)), counts)
        lens = np.ones(len(rows), np.int64)
        firsts = np.cumsum(counts) - counts
        lens[firsts[num_prompt > 0]] = num_prompt[num_prompt > 0]
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lens, out=starts[1:])
        seq_lens = starts[1:] - self.flat.query_start[rows] + before[rows]
        is_alone = (lens == 1) & (seq_lens <= self.prompt_lens[rows])
        prompts = is_alone if is_alone.any() else None
        return RaggedRequests(starts, seq_lens, self.block_table[rows], prompts)
