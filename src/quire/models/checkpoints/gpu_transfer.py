"""From safetensors files into a GPU's memory: several threads read, one stream copies.

A file's bytes go from the page cache into page-locked buffers, which are used again and again, and
from there to the GPU without the host waiting. Owns the way of the bytes, not where they belong.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quire.background import LazyThreads
from quire.dtypes import SAFETENSORS
from quire.errors import CheckpointError
from quire.kernels.torch_dtypes import torch_dtype
from quire.models.checkpoints.safetensors_header import TensorEntry

LOAD_THREADS = 8
PART_BYTES = 16 << 20  # of one read; each thread has two buffers of this size
WINDOW_BYTES = 512 << 20  # of tensors on their way; a larger one travels alone


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of a tensor that one read brings. begins: when the memory it goes to may be written."""

    entry: TensorEntry
    start: int
    target: Tensor  # uint8, on the device
    begins: torch.cuda.Event | None


@dataclass(slots=True)
class _Buffer:
    """Page-locked memory. emptied: when its last copy has been made."""

    memory: Tensor  # uint8 [PART_BYTES]
    emptied: torch.cuda.Event | None = None


class DeviceReader:
    """Reads tensors of files into the memory of a device. Used as a context, once.

    Works on a CPU, too, where there is nothing to page-lock and copies are made at once.
    """

    def __init__(self, device: torch.device, part_bytes: int = PART_BYTES) -> None:
        self._device, self._part_bytes = device, part_bytes
        self._on_gpu = device.type == "cuda"
        self._stream = _stream(device) if self._on_gpu else None
        self._pool = LazyThreads(LOAD_THREADS, "quire-load")
        self._buffers: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        for _ in range(2 * LOAD_THREADS):
            memory = torch.empty(part_bytes, dtype=torch.uint8, pin_memory=self._on_gpu)
            self._buffers.put(_Buffer(memory))
        self._files: dict[Path, int] = {}

    def __enter__(self) -> DeviceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for file in self._files.values():
            os.close(file)

    def tensors(self, entries: Iterable[TensorEntry]) -> Iterator[tuple[TensorEntry, Tensor]]:
        """The tensors in this order, each ready for the current stream.

        Those that follow are on their way meanwhile. Raises CheckpointError.
        """
        window: deque[tuple[TensorEntry, Tensor, list[Future[None]]]] = deque()
        held = 0
        for entry in entries:
            while window and held + entry.num_bytes > WINDOW_BYTES:
                held -= window[0][0].num_bytes
                yield self._arrived(*window.popleft())
            window.append(self._begin(entry))
            held += entry.num_bytes
        while window:
            yield self._arrived(*window.popleft())

    def _begin(self, entry: TensorEntry) -> tuple[TensorEntry, Tensor, list[Future[None]]]:
        target = torch.empty(entry.num_bytes, dtype=torch.uint8, device=self._device)
        begins = None
        if self._on_gpu:  # the memory may have served a tensor that is still being read
            begins = _event()
        if entry.file not in self._files:
            try:
                self._files[entry.file] = os.open(entry.file, os.O_RDONLY)
            except OSError as error:
                raise entry.wrong(f"cannot be opened ({error.strerror})") from error
        parts = [
            _Part(entry, start, target[start : start + self._part_bytes], begins)
            for start in range(0, entry.num_bytes, self._part_bytes)
        ]
        return entry, target, [self._pool.submit(self._bring, part) for part in parts]

    def _bring(self, part: _Part) -> None:
        """Read a part and start its copy; runs in a thread of the pool."""
        buffer = self._buffers.get()
        try:
            if buffer.emptied is not None:
                buffer.emptied.synchronize()
            memory = buffer.memory[: len(part.target)]
            self._read(part, memory.numpy().data)
            with self._copying(part):
                part.target.copy_(memory, non_blocking=True)
                if self._on_gpu:
                    buffer.emptied = _event()
        finally:
            self._buffers.put(buffer)

    def _copying(self, part: _Part) -> AbstractContextManager[object]:
        if self._stream is None or part.begins is None:
            return nullcontext()
        self._stream.wait_event(part.begins)
        return torch.cuda.stream(self._stream)

    def _read(self, part: _Part, memory: memoryview) -> None:
        file, offset, done = self._files[part.entry.file], part.entry.offset + part.start, 0
        try:
            while done < len(memory):
                count = os.preadv(file, [memory[done:]], offset + done)
                if count == 0:
                    raise part.entry.wrong("the file has become shorter while it was read")
                done += count
        except OSError as error:
            raise CheckpointError(
                f"{part.entry.file} cannot be read ({error.strerror}); check the disk"
            ) from error

    def _arrived(
        self, entry: TensorEntry, target: Tensor, parts: list[Future[None]]
    ) -> tuple[TensorEntry, Tensor]:
        for part in parts:
            part.result()
        if self._stream is not None:  # what was copied so far is before all that comes now
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return entry, target.view(torch_dtype(SAFETENSORS[entry.dtype].name)).view(entry.shape)


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _event() -> torch.cuda.Event:
    """Happens when all has been done that the current stream was given."""
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
