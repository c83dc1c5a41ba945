"""The outputs of one request between the engine's steps and its caller: unread, or as items."""

from __future__ import annotations

import asyncio

from quire.core.request_output import RequestOutput
from quire.core.sampling_params import RequestOutputKind
from quire.errors import QuireError


class OutputQueue:
    """One caller's unread output, as a single item: new output is merged into what is unread.

    So memory is bounded by the answer, however slowly the caller reads. loop: the caller's,
    on which all is called. final_only: the caller wants the complete output, and is woken once, at
    the end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, final_only: bool = False) -> None:
        self._loop = loop  # stored, because asking for it costs a system call
        self._final_only = final_only
        self._unread: RequestOutput | None = None
        self._failure: QuireError | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput | QuireError) -> None:
        """Add an output, or the error that ends the request, if it has not ended; never blocks."""
        if isinstance(output, QuireError):
            if self._unread is None or not self._unread.finished:
                self._failure = output
        elif self._unread is None:
            self._unread = output
        else:
            self._unread.append(output)
        if self._reader is not None and not self._reader.done() and self._is_ready:
            self._reader.set_result(None)

    async def take(self) -> RequestOutput:
        """Wait for output and take all of it. Raises the error that ended the request, once."""
        if not self._is_ready:
            self._reader = self._loop.create_future()
            await self._reader
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else it, its traceback and this frame would be a cycle
        assert self._unread is not None
        output, self._unread = self._unread, None
        return output

    @property
    def _is_ready(self) -> bool:
        if self._failure is not None:
            return True
        return self._unread is not None and (self._unread.finished or not self._final_only)


class StreamedItems:
    """The answers to one request so far. final_only: there is one item, at the end."""

    def __init__(self, *, final_only: bool) -> None:
        self._final_only = final_only
        self._whole: RequestOutput | None = None

    def add(self, part: RequestOutput) -> RequestOutput | None:
        """The item with all parts up to this one; None: there is none yet."""
        if self._whole is None:
            self._whole = part
        else:
            self._whole.append(part)
        if self._final_only and not part.finished:
            return None
        return self._whole.copied()


def streamed_items(kind: RequestOutputKind | None) -> StreamedItems | None:
    """The items of a stream of this kind; None: they are its parts."""
    if kind in (None, RequestOutputKind.DELTA):
        return None
    return StreamedItems(final_only=kind == RequestOutputKind.FINAL_ONLY)
