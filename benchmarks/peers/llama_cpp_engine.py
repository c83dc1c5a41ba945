"""llama.cpp through the low-level functions of llama-cpp-python. Runs in its own environment.

Each measurement has a context of its own, as large as it needs: llama.cpp clears the whole KV cache
when a context is made, so a larger one would count as memory that one stream takes.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp
import numpy as np

from peers.worker import WARM_UP, Load, Prompt, serve


class LlamaCpp:
    """Options: `flash_attention`."""

    def load(self, load: Load) -> dict[str, Any]:
        self._load = load
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        path = str(load.model).encode()
        self._model = llama_cpp.llama_model_load_from_file(path, params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {load.model}")
        return {"version": llama_cpp.__version__, "settings": load.options}

    def prefill(self, prompt: Prompt) -> int:
        context = _Context(self._model, self._load, 1, len(prompt))
        try:
            self._token = context.prefill(prompt)
            self._state, self._length = context.state(), len(prompt)
        finally:
            context.close()
        return self._token

    def decode(self, streams: int, steps: int) -> tuple[float, int]:
        max_len = self._length + steps + WARM_UP
        context = _Context(self._model, self._load, streams, max_len)
        try:
            tokens = [self._token] * streams
            context.go_on_from(self._state, self._length)
            for _ in range(WARM_UP):
                tokens = context.step(tokens)
            begin = time.perf_counter()
            for _ in range(steps):
                tokens = context.step(tokens)
            return time.perf_counter() - begin, steps * streams
        finally:
            context.close()


class _Context:
    """A KV cache for some sequences of at most `room` tokens."""

    def __init__(self, model: Any, load: Load, sequences: int, max_len: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * (-(-max_len // 256) * 256)
        params.n_batch = max(2048, max_len)
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = load.threads
        params.flash_attn_type = int(load.options["flash_attention"])
        params.kv_unified = False  # a cache for each sequence
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError("llama.cpp makes no context with these settings")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self._sequences, self._length = sequences, 0

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)

    def prefill(self, prompt: Prompt) -> int:
        """First token after a prompt in sequence 0."""
        last = len(prompt) - 1
        self._run([(token, index, 0, index == last) for index, token in enumerate(prompt)])
        return self._best(last)

    def state(self) -> bytes:
        """The stored state of sequence 0."""
        size = llama_cpp.llama_state_seq_get_size(self._context, 0)
        state = (ctypes.c_uint8 * size)()
        if llama_cpp.llama_state_seq_get_data(self._context, state, size, 0) != size:
            raise RuntimeError("llama.cpp gives less than the whole state of a sequence")
        return bytes(state)

    def go_on_from(self, state: bytes, length: int) -> None:
        """Give every sequence a copy of the state of a context with one sequence."""
        mine = _for_sequences(state, self._sequences)
        for sequence in range(self._sequences):
            if not llama_cpp.llama_state_seq_set_data(self._context, mine, len(mine), sequence):
                raise RuntimeError(f"llama.cpp does not take a state for sequence {sequence}")
        self._length = length

    def step(self, tokens: list[int]) -> list[int]:
        """One more token for each sequence."""
        self._run([(token, self._length, n, True) for n, token in enumerate(tokens)])
        self._length += 1
        return [self._best(sequence) for sequence in range(self._sequences)]

    def _run(self, entries: list[tuple[int, int, int, bool]]) -> None:
        """Run one batch. entries: token, position, sequence, whether its logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _best(self, index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, index)
        floats = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(floats, (self._vocab_size,)).argmax())


def _for_sequences(state: bytes, count: int) -> Any:
    """The state of one sequence, for a context with a separate cache for each of `count`.

    Its third word is the number of caches; those after the first have a word each, their number of
    tokens, which is 0. llama.cpp refuses a state that has another number than the context.
    """
    number, empty = count.to_bytes(4, "little"), bytes(4 * (count - 1))
    data = state[:8] + number + state[12:] + empty
    return (ctypes.c_uint8 * len(data)).from_buffer_copy(data)


if __name__ == "__main__":
    serve(LlamaCpp())
