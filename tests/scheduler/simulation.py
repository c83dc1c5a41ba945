"""The scheduler with a model that is no model: a step reads and writes a pretended KV cache.

Each slot remembers which tokens its content depends on. A request that reads its own history
through its block table must find exactly that history, whatever was shared, reused, preempted or
chunked on the way; and its answer must be what it would have been alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from kv_usage import block_table, num_allocated_slots, num_stored_tokens

from quire.config import SchedulerConfig
from quire.core.messages import AddRequest, RequestDelta, TokenLogprobs
from quire.core.pooling_params import PoolingParams
from quire.core.request import Request, RequestStatus
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import (
    ModelRunnerOutput,
    SampleResult,
    ScheduledRequest,
    SchedulerOutput,
)
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.scheduler_batch import MAX_PREEMPTIONS

VOCAB_SIZE = 5
EOS = 0
DAMAGED = (-1, "damaged")


def history_after(history: int, token_id: int) -> int:
    """A number that represents all tokens so far."""
    return hash((history, token_id))


def histories(token_ids: list[int]) -> list[int]:
    found, history = [], 0
    for token_id in token_ids:
        history = history_after(history, token_id)
        found.append(history)
    return found


def next_token(history: int) -> int:
    """The "model": any token, but always the same one after the same tokens."""
    return (history >> 7) % VOCAB_SIZE


def pooled(states: list[int], pooling: PoolingParams) -> bytes:
    """An "embedding": a number that represents the hidden states."""
    return repr(sum(states) if pooling.pooling == "mean" else states[-1]).encode()


def answer_alone(message: AddRequest, max_model_len: int) -> list[int]:
    """What a request answers when it is the only one, with nothing cached."""
    if message.pooling is not None:
        return []
    request = Request(message, arrival_number=0, max_model_len=max_model_len)
    while request.append(next_token(histories(request.token_ids)[-1])) is None:
        pass
    return request.token_ids[request.num_prompt_tokens :]


@dataclass
class Row:
    """What the device knows of a request in the batch."""

    token_ids: list[int]
    num_prompt_tokens: int
    wants_prompt_logprobs: bool
    pooling: PoolingParams | None
    states: list[int] = field(default_factory=list)  # seen since it entered the batch
    num_computed: int | None = None  # None before its first step
    block_table: list[int] = field(default_factory=list)
    is_damaged: bool = False
    is_exhausted: bool = False


def shape(plan: SchedulerOutput | None) -> list[tuple[str, int, int]]:
    """(request, first token, number of tokens) of each entry of a plan."""
    assert plan is not None
    return [(entry.request_id, entry.start, entry.num_tokens) for entry in plan.scheduled]


class FakeModel:
    """Runs plans in order, and asserts that each of them makes sense to a device."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.salts: dict[str, str] = {}
        self.rows: dict[str, Row] = {}
        self.slots: dict[int, tuple[int, str]] = {}  # slot → (history, salt)

    def run(
        self, plan: SchedulerOutput, failing: Collection[str], exhausted: Collection[str]
    ) -> ModelRunnerOutput:
        for request_id in plan.removed_ids:
            del self.rows[request_id]
        for new in plan.new_requests:
            assert new.request_id not in self.rows
            wants = new.sampling.prompt_logprobs is not None
            row = Row(list(new.token_ids), new.num_prompt_tokens, wants, new.pooling)
            self.rows[new.request_id] = row
        ids = [entry.request_id for entry in plan.scheduled]
        assert len(set(ids)) == len(ids)
        assert {new.request_id for new in plan.new_requests} <= set(ids)
        written: set[int] = set()
        for entry in plan.scheduled:
            row = self.rows[entry.request_id]
            row.is_damaged |= entry.request_id in failing
            row.is_exhausted |= entry.request_id in exhausted
            self._write(entry, row, written)
        return ModelRunnerOutput(
            results=[self._result(e, self.rows[e.request_id]) for e in plan.scheduled]
        )

    def _slot(self, row: Row, position: int) -> int:
        block_id = row.block_table[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def _write(self, entry: ScheduledRequest, row: Row, written: set[int]) -> None:
        row.block_table += entry.new_block_ids
        assert entry.num_tokens > 0
        assert entry.start == row.num_computed or row.num_computed is None
        row.num_computed = entry.start + entry.num_tokens
        assert row.num_computed <= len(row.token_ids)
        assert entry.samples == (row.num_computed == len(row.token_ids))
        history = histories(row.token_ids)
        for position in range(entry.start, row.num_computed):
            slot = self._slot(row, position)
            assert slot not in written, "two tokens of a step are written to one slot"
            written.add(slot)
            content = (history[position], self.salts[entry.request_id])
            self.slots[slot] = DAMAGED if row.is_damaged else content

    def _result(self, entry: ScheduledRequest, row: Row) -> SampleResult:
        if row.is_damaged:
            row.token_ids += [0] * entry.samples  # a step that is in flight already will read it
            return SampleResult(failed=True)
        assert row.num_computed is not None
        history = histories(row.token_ids)
        for position in range(row.num_computed):
            expected = (history[position], self.salts[entry.request_id])
            assert self.slots[self._slot(row, position)] == expected, (
                f"{entry.request_id} reads foreign KV at position {position}"
            )
        result = SampleResult()
        if row.pooling is not None:
            row.states += history[entry.start : row.num_computed]
            if entry.samples:
                result.embedding = pooled(row.states, row.pooling)
            return result
        if row.wants_prompt_logprobs:
            targets = row.token_ids[entry.start + 1 : row.num_prompt_tokens]
            result.prompt_logprobs = [
                TokenLogprobs(token_ids=[t], logprobs=[0.0], rank=1)
                for t in targets[: entry.num_tokens]
            ]
        if entry.samples and row.is_exhausted:
            result.exhausted = True
            row.token_ids.append(0)  # a step that is in flight already will read it
        elif entry.samples:
            result.token_id = next_token(history[-1])
            row.token_ids.append(result.token_id)
        return result


class Simulation:
    """Scheduler and FakeModel joined as the engine joins them, with a queue of steps in flight."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 128,
        depth: int = 1,
        enable_prefix_caching: bool = True,
        step_sizes: Sequence[int] = (),
        full_step: int = 1 << 20,
        **config: object,
    ) -> None:
        self.config = SchedulerConfig(
            **{"max_num_seqs": 8, "max_num_batched_tokens": 64} | config  # type: ignore[arg-type]
        )
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching, hash_seed=b"test")
        self.scheduler = Scheduler(
            self.config, self.kv, max_model_len, full_step=full_step, step_sizes=step_sizes
        )
        self.model = FakeModel(block_size)
        self.max_model_len = max_model_len
        self.full_step = full_step
        self.depth = depth
        self.now = 0.0  # seconds; a step takes a millisecond for each of its tokens
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput | None]] = deque()
        self.messages: dict[str, AddRequest] = {}
        self.requests: dict[str, Request] = {}
        self.deltas: dict[str, list[RequestDelta]] = {}
        self.alone: dict[str, list[int]] = {}  # what each request must answer
        self.unchecked: set[str] = set()  # those that were told something since the last check

    def add(
        self,
        prompt: list[int] | int,
        max_tokens: int | None = 8,
        *,
        priority: int = 0,
        salt: str = "",
        ignore_eos: bool = True,
        prompt_logprobs: int | None = None,
        pooling: PoolingParams | None = None,
        stream: bool = True,
    ) -> Request:
        """Add a request with these prompt tokens, or with this number of tokens of its own."""
        number = len(self.requests)
        request_id = f"r{number}"
        if isinstance(prompt, int):
            prompt = [number + VOCAB_SIZE] * prompt
        sampling = SamplingParams(
            max_tokens=max_tokens, ignore_eos=ignore_eos, prompt_logprobs=prompt_logprobs
        )
        message = AddRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            eos_token_ids=[EOS],
            priority=priority,
            cache_salt=salt,
            pooling=pooling,
            stream=stream,
        )
        request = Request(
            message, arrival_number=number, max_model_len=self.max_model_len, queued=self.now
        )
        self.messages[request_id] = message
        self.requests[request_id] = request
        self.deltas[request_id] = []
        self.alone[request_id] = answer_alone(message, self.max_model_len)
        self.model.salts[request_id] = salt
        self.scheduler.add(request)
        return request

    def schedule(
        self,
        failing: Collection[str] = (),
        raises: bool = False,
        exhausted: Collection[str] = (),
    ) -> SchedulerOutput | None:
        """Plan a step and start it, as far as the depth allows."""
        assert len(self.in_flight) < self.depth
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            self._check_order(plan)
            assert sum(plan.count_tokens()) <= self.config.max_num_batched_tokens
            self._check_threshold(plan)
            everyone = {entry.request_id for entry in plan.scheduled}
            output = self.model.run(plan, everyone if raises else failing, exhausted)
            self.in_flight.append((plan, None if raises else output))
        return plan

    def _check_threshold(self, plan: SchedulerOutput) -> None:
        threshold = self.config.long_prefill_token_threshold
        stats = self.scheduler.stats()
        crowded = stats.num_running + stats.num_waiting > 1
        if threshold and crowded and self.config.enable_chunked_prefill:
            assert all(entry.num_tokens <= threshold for entry in plan.scheduled)

    def _check_order(self, plan: SchedulerOutput) -> None:
        """The budget cuts no prompt that precedes another which gets tokens."""
        if not self.config.enable_chunked_prefill:
            return
        planned = {entry.request_id: entry for entry in plan.scheduled}
        limit = self.config.long_prefill_token_threshold or self.config.max_num_batched_tokens
        by_priority = self.config.scheduling_policy == "priority"
        prompts = [
            request
            for request in self.requests.values()
            if request.status is RequestStatus.RUNNING
            and (
                request.num_uncomputed_tokens > 1
                or ((entry := planned.get(request.request_id)) and entry.num_tokens > 1)
            )
        ]
        prompts.sort(key=lambda r: (r.priority if by_priority else 0, r.due_time, r.arrival_number))
        cut = False
        for request in prompts:
            entry = planned.get(request.request_id)
            assert not (cut and entry), f"{request.request_id} got its turn too early"
            cut = cut or entry is None or (entry.num_tokens < limit and not entry.samples)

    def finish_step(self) -> list[RequestDelta]:
        """Take the result of the oldest step in flight."""
        plan, output = self.in_flight.popleft()
        self.now += 0.001 * sum(plan.count_tokens())
        self.scheduler.observe(plan, 0.001 * sum(plan.count_tokens()))
        if output is None:
            return self._note(self.scheduler.fail(plan, "the step failed; send it again"))
        return self._note(self.scheduler.update(plan, output))

    def step(self) -> SchedulerOutput | None:
        """One turn of the engine's loop."""
        plan = self.schedule() if len(self.in_flight) < self.depth else None
        if self.in_flight and (plan is None or len(self.in_flight) == self.depth):
            self.finish_step()
        self.check()
        return plan

    def abort(self, *request_ids: str) -> list[RequestDelta]:
        return self._note(self.scheduler.abort(request_ids))

    def drain(self, max_steps: int = 10_000) -> int:
        """Run until everything has ended; returns the number of turns."""
        for turn in range(max_steps):
            if not self.scheduler.has_unfinished and not self.in_flight:
                return turn
            self.step()
        raise AssertionError(f"not idle after {max_steps} steps")

    def answer(self, request: Request) -> list[int]:
        """The tokens that the caller has received so far."""
        return [t for delta in self.deltas[request.request_id] for t in delta.token_ids]

    def finish_reason(self, request: Request) -> str | None:
        deltas = self.deltas[request.request_id]
        return deltas[-1].finish_reason if deltas else None

    def _note(self, deltas: list[RequestDelta]) -> list[RequestDelta]:
        for delta in deltas:
            sent = self.deltas[delta.request_id]
            assert not sent or sent[-1].finish_reason is None, "told after its end"
            sent.append(delta)
            self.unchecked.add(delta.request_id)
        return deltas

    # ------------------------------------------------------------------ what must always hold

    def check(self) -> None:
        pool = self.kv.pool
        pool.check()
        running = [r for r in self.requests.values() if r.status is RequestStatus.RUNNING]
        refs = Counter(b for r in running for b in block_table(self.kv, r))
        assert all(pool._ref_counts[b] == refs[b] for b in range(pool.num_blocks))
        stats = self.scheduler.stats()
        assert stats.num_running == len(running) <= self.config.max_num_seqs
        unfinished = [r for r in self.requests.values() if not r.is_finished]
        assert stats.num_waiting == len(unfinished) - len(running)
        assert stats.num_free_blocks + stats.num_cached_blocks + len(refs) == stats.num_blocks
        hits_and_misses = stats.prefix_cache_hits + sum(stats.prefix_cache_misses.values())
        assert stats.prefix_cache_queries == hits_and_misses
        assert num_stored_tokens(self.kv) <= num_allocated_slots(self.kv)
        for request in running:
            held = len(block_table(self.kv, request)) * self.kv.block_size
            assert request.num_computed_tokens <= held
            assert request.num_computed_tokens < request.max_total_tokens
            request.check_lengths()
        for request in unfinished:
            assert request.num_preemptions <= MAX_PREEMPTIONS
            assert request.num_in_flight_tokens >= 0
        for request_id in self.unchecked:
            self._check_reported(self.requests[request_id])
        self.unchecked.clear()

    def _check_reported(self, request: Request) -> None:
        assert request.is_finished == (self.finish_reason(request) is not None)
        answer, alone = self.answer(request), self.alone[request.request_id]
        assert answer == alone[: len(answer)]
        if self.finish_reason(request) in ("stop", "length"):
            assert answer == alone
        self._check_prompt_logprobs(request)
        vectors = [d.embedding for d in self.deltas[request.request_id] if d.embedding is not None]
        if request.pooling is not None and self.finish_reason(request) == "stop":
            assert vectors == [pooled(histories(request.token_ids), request.pooling)]
        else:
            assert vectors == []

    def _check_prompt_logprobs(self, request: Request) -> None:
        scored = [
            entry.token_ids[0]
            for delta in self.deltas[request.request_id]
            for entry in delta.prompt_logprobs
        ]
        wanted = request.sampling.prompt_logprobs is not None
        prompt = request.token_ids[1 : request.num_prompt_tokens] if wanted else []
        assert scored == prompt[: len(scored)]
        if self.answer(request):
            assert scored == prompt

    def check_idle(self) -> None:
        """No request is left, so no block may be held."""
        self.check()
        assert not self.scheduler.has_unfinished
        assert all(self.finish_reason(request) for request in self.requests.values())
        assert self.kv.pool.num_available == self.kv.pool.num_blocks
        assert num_allocated_slots(self.kv) == 0
