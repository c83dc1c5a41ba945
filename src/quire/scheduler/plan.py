"""One step while it is being planned, and what is remembered of it until its result. No torch.

Owns the step's token budget and the lengths that a plan advances at once (`num_computed_tokens`,
`num_in_flight_tokens`), so that what one method adds, another takes back exactly. It does not
choose anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.core.request import Request
from quire.core.step import NewRequest, ScheduledRequest


@dataclass(slots=True)
class PlannedRequest:
    """A request's part in a step in flight."""

    request: Request
    entry: ScheduledRequest
    num_preemptions: int  # as of the plan

    @property
    def was_preempted(self) -> bool:
        """Whether the request has lost, since the plan, the blocks that the step writes into."""
        return self.request.num_preemptions != self.num_preemptions


class StepPlan:
    """Entries in the order in which they were added, at most one a request, within a budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that can still be given out
        self.new_requests: list[NewRequest] = []
        self._entries: dict[str, PlannedRequest] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PlannedRequest]:
        return iter(self._entries.values())

    def enter(self, request: Request) -> None:
        """Describe a request in full, because it enters the batch."""
        self.new_requests.append(
            NewRequest(
                request_id=request.request_id,
                token_ids=request.token_ids.copy(),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling=request.sampling,
                bad_words_ids=request.bad_words_ids,
                eos_token_ids=sorted(request.eos_token_ids),
            )
        )

    def add(self, request: Request, num_tokens: int, new_block_ids: list[int]) -> None:
        """Compute the request's next num_tokens tokens, besides those it has in this step."""
        start = request.num_computed_tokens
        samples = start + num_tokens == len(request.token_ids) + request.num_in_flight_tokens
        request.num_computed_tokens = start + num_tokens
        request.num_in_flight_tokens += samples
        self.budget -= num_tokens
        planned = self._entries.get(request.request_id)
        if planned is not None:
            planned.entry.num_tokens += num_tokens
            planned.entry.new_block_ids += new_block_ids
            planned.entry.samples = samples
            return
        entry = ScheduledRequest(
            request_id=request.request_id,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=new_block_ids,
            samples=samples,
        )
        self._entries[request.request_id] = PlannedRequest(request, entry, request.num_preemptions)

    def take_back(self, request: Request) -> None:
        """Undo the request's entry, if it has one."""
        planned = self._entries.pop(request.request_id, None)
        if planned is None:
            return
        request.num_computed_tokens = planned.entry.start
        request.num_in_flight_tokens -= planned.entry.samples
        self.budget += planned.entry.num_tokens
