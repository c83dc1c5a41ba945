"""ReplyFormatter: what each API of generated text does with the engine's outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from quire.core.request_output import RequestOutput
from quire.server.api.common.generation_job import Job
from quire.server.api.common.usage import Usage
from quire.server.http.http_errors import ErrorReply


class ReplyFormatter(Protocol):
    """Formats one job's outputs as the structs that an API sends. One object for each request."""

    job: Job

    def reply(
        self, results: Sequence[RequestOutput], usage: Usage
    ) -> msgspec.Struct | Sequence[msgspec.Struct]:
        """The complete answer of a request without streaming."""

    def chunks(self, index: int, output: RequestOutput, /) -> Iterable[msgspec.Struct]:
        """A stream's next chunks. index: of the prompt; output: what is new of its answers."""

    def ending(self, usage: Usage) -> Iterable[msgspec.Struct]:
        """The last chunks of a complete stream."""

    def failure(self, reply: ErrorReply) -> msgspec.Struct:
        """The last chunk of a stream that failed."""

    @property
    def end_marker(self) -> bytes:
        """The bytes after the last chunk of a complete stream."""
