"""GenerationRecord: what a request asked of a model and how many tokens it took, for observers."""

from __future__ import annotations

import msgspec

from quire.server.api.common.generation_job import Job
from quire.server.api.common.usage import UsageCounter
from quire.server.http.request_record import RequestRecord


class GenerationRecord(msgspec.Struct, eq=False):
    """The job of one request, and the tokens counted so far."""

    job: Job
    usage: UsageCounter = msgspec.field(default_factory=UsageCounter)

    def finish_reason(self, error_code: str | None) -> str:
        """Why its answers ended, each reason once, such as "stop,length".

        Answers that did not end count as "abort", or as "error" where there is an error code.
        """
        reasons = self.usage.finish_reasons
        if len(reasons) < len(self.job.prompts) * self.job.sampling.n:
            reasons = [*reasons, "abort" if error_code is None else "error"]
        return reasons[0] if len(reasons) == 1 else ",".join(dict.fromkeys(reasons))


def generation_of(record: RequestRecord) -> GenerationRecord | None:
    """The record of the model's work for a request; None if it ran no model."""
    generation = record.generation
    return generation if isinstance(generation, GenerationRecord) else None
