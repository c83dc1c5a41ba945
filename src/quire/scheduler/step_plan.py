"""One step while it is being planned, and what is remembered of it until its result. No torch.

Owns the step's token budget and the lengths that a plan advances at once (`num_computed_tokens`,
`num_in_flight_tokens`), so that what one method adds, another takes back exactly. It does not
choose anything.
"""

from __future__ import annotations

from quire.core.request import Request
from quire.core.scheduler_output import NewRequest, ScheduledRequest

# A request's part in a step, with its num_preemptions as of the plan: if that has grown when the
# result comes, the request has lost the blocks that the step wrote into. A tuple, because one is
# made for each request in each step.
PlannedRequest = tuple[Request, ScheduledRequest, int]


class StepPlan:
    """Entries in the order in which they were added, at most one a request, within a budget.

    now: when it is planned, in seconds of the requests' clock. patience: prompt tokens of requests
    that may still be sent to wait for a prefix. chunk_limit: of one prompt's tokens in its turn.
    cut: prompts that may have more if others leave it, noted where leaves_rest allows that.
    """

    def __init__(self, budget: int, now: float = 0.0, patience: int = 0) -> None:
        self.budget = budget  # tokens that can still be given out
        self.now = now
        self.patience = patience
        self.num_decodes = 0
        self.chunk_limit = budget
        self.leaves_rest = False
        self.cut: list[Request] = []
        self.is_closed = False  # blocks or rows are short: nobody else enters the batch
        self.new_requests: list[NewRequest] = []
        self._planned: dict[str, PlannedRequest] = {}

    @property
    def planned(self) -> list[PlannedRequest]:
        """What has been added so far."""
        return list(self._planned.values())

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
                pooling=request.pooling,
            )
        )

    def add(self, request: Request, num_tokens: int, new_block_ids: list[int]) -> None:
        """Compute the request's next num_tokens tokens, besides those it has in this step."""
        request_id, start = request.request_id, request.num_computed_tokens
        samples = start + num_tokens == len(request.token_ids) + request.num_in_flight_tokens
        request.num_computed_tokens = start + num_tokens
        request.num_in_flight_tokens += samples
        self.budget -= num_tokens
        if request_id in self._planned:
            _, entry, _ = self._planned[request_id]
            entry.num_tokens += num_tokens
            entry.new_block_ids += new_block_ids
            entry.samples = samples
            return
        entry = ScheduledRequest(
            request_id=request_id,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=new_block_ids,
            samples=samples,
        )
        self._planned[request_id] = (request, entry, request.num_preemptions)

    def add_decode(self, request: Request, new_block_ids: list[int]) -> None:
        """Compute the one token that a request lacks, before anything else of it."""
        start = request.num_computed_tokens
        request.num_computed_tokens = start + 1
        request.num_in_flight_tokens += 1
        self.budget -= 1
        entry = ScheduledRequest(
            request_id=request.request_id,
            start=start,
            num_tokens=1,
            new_block_ids=new_block_ids,
            samples=True,
        )
        self._planned[request.request_id] = (request, entry, request.num_preemptions)

    def take_back(self, request: Request) -> None:
        """Undo the request's entry, if it has one."""
        if request.request_id in self._planned:
            _, entry, _ = self._planned.pop(request.request_id)
            request.num_computed_tokens = entry.start
            request.num_in_flight_tokens -= entry.samples
            self.budget += entry.num_tokens
