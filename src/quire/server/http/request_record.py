"""RequestRecord: the facts of one HTTP request that metrics, access log and traces report.

It never holds a prompt, an answer or an API key.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec


class RequestRecord(msgspec.Struct, eq=False):
    """Facts of one HTTP request, filled in while it is served.

    begin, end: seconds of the monotonic clock; begin_ns: wall clock, nanoseconds. status: 0 until
    the response starts, and for ever if the client disconnects before. error_code: the code of the
    error body, also of an error at the end of a stream. no_effect: a sentence for each field of the
    body that has none. generation: the api/common/generation_record.py of a request that runs a
    model; None for any other.
    """

    method: str
    path: str
    request_id: str
    traceparent: str | None = None
    begin: float = msgspec.field(default_factory=time.monotonic)
    begin_ns: int = msgspec.field(default_factory=time.time_ns)
    status: int = 0
    error_code: str | None = None
    end: float = 0.0
    no_effect: Sequence[str] = ()
    generation: object = None  # HTTP itself does not know what a model is asked for

    @property
    def seconds(self) -> float:
        """Seconds from its start to its end, or to now."""
        return (self.end or time.monotonic()) - self.begin
