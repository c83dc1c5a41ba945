"""What one HTTP request was, for those who look at it when it has ended: metrics, log, traces.

Never a prompt, an answer or a key.
"""

from __future__ import annotations

import time

import msgspec

from quire.server.api.common.generation_job import Job
from quire.server.api.common.usage import UsageCounter


class RequestRecord(msgspec.Struct, eq=False):
    """Filled in by whoever knows. begin, end: seconds of the monotonic clock; begin_ns: wall clock.

    status: 0 until an answer begins, and for ever if the client left before. error_code: that of
    the error body, also of one at the end of a stream. job: what was asked, once it is known.
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
    job: Job | None = None
    usage: UsageCounter = msgspec.field(default_factory=UsageCounter)

    @property
    def seconds(self) -> float:
        """From its beginning to its end, or to now."""
        return (self.end or time.monotonic()) - self.begin
