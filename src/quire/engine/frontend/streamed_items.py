"""StreamedItems: the items of one request's stream, where they are not its new parts."""

from __future__ import annotations

from quire.core.request_output import RequestOutput
from quire.core.sampling_params import RequestOutputKind


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
