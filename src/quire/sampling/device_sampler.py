"""The sampler of a GPU: sampling params on the device, and draws without waiting.

Owns the device's copy of the sampling params. The draw is a kernel
(`quire.kernels.triton.sampling.draw_kernels`); logits processors are in
device_logits_processors.py. It draws the same tokens as the host's Sampler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quire.array_types import Ints
from quire.kernels import sampling_math
from quire.kernels.triton.sampling.draw_kernels import PARAM_WORDS, Cut, Scratch, sample
from quire.sampling.sampling_state import Need, SamplingState

_DRAW = int(Need.RANDOM | Need.FILTER)
_BUFFERS = 4  # uploads in flight
_UNKNOWN = -1  # as words: what the device has, while an upload may be interrupted
_PLAIN_SLOPE = np.float32(np.log2(np.e))  # of temperature 1


class DeviceSampler:
    """Draws tokens for the rows of a SamplingState by temperature, top-k, top-p and min-p.

    state: the host's table; `upload` copies its rows to the device. max_num_seqs: the number of
    rows of the table, and the most of one `sample`. Calls must be on one stream at a time.
    """

    def __init__(
        self,
        state: SamplingState,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device | str,
        cut: Cut | None = None,
    ) -> None:
        self._state = state
        self._params = torch.zeros(max_num_seqs, PARAM_WORDS, dtype=torch.int64, device=device)
        self._sent = np.zeros((max_num_seqs, PARAM_WORDS), np.int64)  # what the device has
        self._scratch = Scratch(max_num_seqs, vocab_size, self._params.device, cut or Cut())
        self._buffers = deque(_Buffer(max_num_seqs, self._params.device) for _ in range(_BUFFERS))

    def upload(self, rows: Sequence[int]) -> None:
        """Copy the params of changed rows to the device, in the stream's order.

        Rows whose params are there already cost nothing, as for most greedy rows. The host does not
        wait, unless several earlier uploads are still in flight.
        """
        if not rows:
            return
        index = np.array(rows, np.int64)
        words = self._words(index)
        is_new = (words != self._sent[index]).any(axis=1)
        if is_new.any():
            self._send(index[is_new], words[is_new])

    def _send(self, index: Ints, words: Ints) -> None:
        self._sent[index] = _UNKNOWN
        self._buffers.rotate(-1)
        sent = self._buffers[-1].send(np.column_stack([index, words]))
        self._params.index_copy_(0, sent[:, 0], sent[:, 1:])
        self._sent[index] = words

    def sample(self, logits: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a token for each row of logits [S, V], float32 or bfloat16: ids, status, int32 [S].

        rows int32 [S]: of the table, -1 for none, which gives token 0. positions int32 [S]: where
        the tokens will stand. status 1: the logits held NaN or +inf, or nothing but -inf; the
        token means nothing. All arguments are on the device, and so are the results; the launches
        depend on the shapes alone, so that a CUDA graph may hold them.
        """
        return sample(logits, rows, positions, self._params, self._scratch)

    def _words(self, rows: Ints) -> Ints:
        """The params of rows [N] as the kernels read them: int64 [N, PARAM_WORDS].

        All greedy rows have the same words, as their numbers are not read.
        """
        words = np.zeros((len(rows), PARAM_WORDS), np.int64)
        words.view(np.float32)[:, 2] = _PLAIN_SLOPE
        drawn = np.flatnonzero(self._state.needs[rows] & _DRAW)
        if len(drawn):
            words[drawn] = self._drawn_words(rows[drawn])
        return words

    def _drawn_words(self, rows: Ints) -> Ints:
        params = self._state.gather(rows)
        words = np.zeros((len(rows), PARAM_WORDS), np.int64)
        halves = words.view(np.int32)  # the lower half of each word first
        halves[:, 0] = self._state.needs[rows] & _DRAW
        halves[:, 1] = params.top_k
        words.view(np.float32)[:, 2] = sampling_math.slope(params.temperature)
        words.view(np.float32)[:, 3] = sampling_math.min_p_depth(params.min_p)
        shares = np.where(params.top_p < 1.0, params.top_p, 0.0)
        words[:, 2] = sampling_math.share_bits(shares).view(np.int64)
        words[:, 3] = self._state.seeds[rows]
        return words


class _Buffer:
    """Pinned host memory of one upload, and its device memory."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        shape = (num_rows, 1 + PARAM_WORDS)
        self._host = torch.zeros(shape, dtype=torch.int64, pin_memory=on_gpu)
        self._device = torch.zeros(shape, dtype=torch.int64, device=device)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def send(self, words: Ints) -> Tensor:
        """Copy words [N, 1 + PARAM_WORDS] to the device, in the stream's order."""
        if self._copied is not None:
            self._copied.synchronize()  # the previous copy from this buffer, usually long finished
        count = len(words)
        self._host.numpy()[:count] = words
        sent = self._device[:count].copy_(self._host[:count], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return sent
