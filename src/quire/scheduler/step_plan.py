"""A step while it is being planned: its entries and token budget (max_num_batched_tokens).

No torch. Owns the budget and the lengths that a plan advances at once (`num_computed_tokens`,
`num_in_flight_tokens`); `remove` exactly undoes `add`. planner.py makes the choices.
"""

from __future__ import annotations

from quire.core.request import Request
from quire.core.scheduler_output import NewRequest, ScheduledRequest

# A request, its entry, and its num_preemptions when planned: if that has grown when the result
# arrives, the request has lost the blocks that the step wrote. A tuple for speed.
PlannedRequest = tuple[Request, ScheduledRequest, int]


class StepPlan:
    """The entries of a step, in the order of addition, at most one a request, in a token budget.

    prefix_wait_tokens: prompt tokens of requests that may still be sent to wait for a prefix.
    reserved: of the step's token budget, what is not for prompts. chunk_limit: of one prompt's
    tokens.
    """

    def __init__(self, budget: int, prefix_wait_tokens: int = 0) -> None:
        self.budget = budget  # tokens not given out yet
        self.prefix_wait_tokens = prefix_wait_tokens
        self.reserved = 0
        self.chunk_limit = budget
        self.is_closed = False  # blocks or rows are short: no more admissions
        self.new_requests: list[NewRequest] = []
        self._planned: dict[str, PlannedRequest] = {}

    @property
    def planned(self) -> list[PlannedRequest]:
        """The entries that the plan has so far."""
        return list(self._planned.values())

    def enter(self, request: Request) -> None:
        """Add the full description of a request that enters the batch."""
        self.new_requests.append(
            NewRequest(
                request_id=request.request_id,
                token_ids=request.token_ids.copy(),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling=request.sampling,
                bad_words_ids=request.bad_words_ids,
                eos_token_ids=sorted(request.eos_token_ids),
                pooling=request.pooling,
                caller=request.caller,
            )
        )

    def add(self, request: Request, num_tokens: int, new_block_ids: list[int]) -> None:
        """Plan a request's next num_tokens tokens."""
        request_id, start = request.request_id, request.num_computed_tokens
        samples = start + num_tokens == len(request.token_ids) + request.num_in_flight_tokens
        request.num_computed_tokens = start + num_tokens
        request.num_in_flight_tokens += samples
        self.budget -= num_tokens
        entry = ScheduledRequest(
            request_id=request_id,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=new_block_ids,
            samples=samples,
        )
        self._planned[request_id] = (request, entry, request.num_preemptions)

    def add_decodes(self, requests: list[Request]) -> None:
        """Plan the one token of each decode; they have no entry yet and need no new block."""
        for request in requests:
            request_id, start = request.request_id, request.num_computed_tokens
            request.num_computed_tokens = start + 1
            request.num_in_flight_tokens += 1
            entry = ScheduledRequest(
                request_id=request_id, start=start, num_tokens=1, new_block_ids=[], samples=True
            )
            self._planned[request_id] = (request, entry, request.num_preemptions)
        self.budget -= len(requests)

    def remove(self, request: Request) -> None:
        """Remove a request's entry, if it has one, and restore its lengths."""
        if request.request_id in self._planned:
            _, entry, _ = self._planned.pop(request.request_id)
            request.num_computed_tokens = entry.start
            request.num_in_flight_tokens -= entry.samples
            self.budget += entry.num_tokens
