"""RequestRecord: the facts of one HTTP request that metrics, access log and traces report; ids.

It never holds a prompt, an answer or an API key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import msgspec

_numbers = random.Random()  # seeded once; os.urandom for each id would cost a system call


def new_id() -> str:
    """A random id of a request or an answer, no secret: 128 bits as 32 hexadecimal digits."""
    return _numbers.getrandbits(128).to_bytes(16).hex()  # half the time of formatting


class RequestRecord(msgspec.Struct, eq=False):
    """Facts of one HTTP request, filled in while it is served.

    begin, end: seconds of the monotonic clock; begin_ns: wall clock, nanoseconds. status: 0 until
    the response starts, and for ever if the client disconnects before. error_code: the code of the
    error body, also of an error at the end of a stream. no_effect: a sentence for each field of the
    body that has none. generation: the GenerationRecord of a request that runs a
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
