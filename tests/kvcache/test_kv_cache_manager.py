from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_usage import block_table, num_allocated_slots, num_stored_tokens

from quire.core.messages import AddRequest
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.kvcache.kv_cache_manager import KVCacheManager

SIZE = 4  # tokens in a block
PROMPT = list(range(100, 110))  # two full blocks and two tokens


def make_manager(num_blocks: int = 16, *, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks, SIZE, caching, hash_seed=b"test")


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    salt: str = "",
    prompt_logprobs: int | None = None,
) -> Request:
    sampling = SamplingParams(max_tokens=100, prompt_logprobs=prompt_logprobs)
    message = AddRequest(
        request_id=request_id, prompt_token_ids=prompt, sampling=sampling, cache_salt=salt
    )
    return Request(message, arrival_number=0, max_model_len=1000)


def start(kv: KVCacheManager, request: Request) -> list[int]:
    """Admit a request with its whole prompt; returns its hits."""
    hits = kv.get_computed_blocks(request)
    assert kv.admit(request, hits, request.num_tokens) is not None
    request.num_computed_tokens = request.num_tokens
    return hits


def compute(kv: KVCacheManager, request: Request) -> list[int]:
    """Run a request's prompt in one successful step; returns its hits."""
    hits = start(kv, request)
    kv.cache_blocks(request, request.num_tokens)
    return hits


# ---------------------------------------------------------------------- finding prefixes


def test_equal_prefixes_share_their_full_blocks() -> None:
    kv = make_manager()
    first, second = make_request("a", PROMPT), make_request("b", [*PROMPT[:8], 1, 2, 3, 4, 5])
    assert compute(kv, first) == []
    assert compute(kv, second) == block_table(kv, first)[:2]
    assert block_table(kv, second)[:2] == block_table(kv, first)[:2]
    assert set(block_table(kv, second)[2:]).isdisjoint(block_table(kv, first))


def test_a_prefix_is_found_after_its_request_has_left() -> None:
    kv = make_manager()
    first = make_request("a", PROMPT)
    compute(kv, first)
    blocks = block_table(kv, first).copy()
    kv.free(first)
    assert compute(kv, make_request("b", PROMPT)) == blocks[:2]


@pytest.mark.parametrize(
    ("num_tokens", "num_hits"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (10, 2)]
)
def test_at_least_one_token_is_left_to_compute(num_tokens: int, num_hits: int) -> None:
    kv = make_manager()
    compute(kv, make_request("a", PROMPT))
    assert len(kv.get_computed_blocks(make_request("b", PROMPT[:num_tokens]))) == num_hits


def test_a_block_stands_for_all_that_comes_before_it() -> None:
    kv = make_manager()
    compute(kv, make_request("a", PROMPT))
    moved = make_request("b", [*PROMPT[4:8], *PROMPT[4:8], 1])
    assert kv.get_computed_blocks(moved) == []


def test_tenants_never_share() -> None:
    kv = make_manager()
    compute(kv, make_request("a", PROMPT, salt="one"))
    assert kv.get_computed_blocks(make_request("b", PROMPT, salt="two")) == []
    assert kv.get_computed_blocks(make_request("c", PROMPT)) == []
    assert len(kv.get_computed_blocks(make_request("d", PROMPT, salt="one"))) == 2
    assert kv.get_computed_blocks(make_request("e", PROMPT, salt="\ud83d")) == []  # any string


def test_hashes_cannot_be_foreseen_unless_the_seed_is_given() -> None:
    def hashes(seed: bytes | None) -> list[bytes]:
        kv, request = KVCacheManager(4, SIZE, hash_seed=seed), make_request("a", PROMPT)
        kv.get_computed_blocks(request)
        return request.block_hashes

    assert hashes(None) != hashes(None)
    assert hashes(b"") == hashes(b"") != hashes(b"s")
    assert [len(h) for h in hashes(b"s")] == [32, 32]


def test_hashes_grow_with_the_known_tokens() -> None:
    kv = make_manager()
    request = make_request("a", PROMPT)
    compute(kv, request)
    before = request.block_hashes.copy()
    request.token_ids += [1, 2]
    request.num_computed_tokens = 12
    kv.cache_blocks(request, 12)
    assert request.block_hashes[:2] == before
    assert len(request.block_hashes) == 3
    longer = make_request("b", [*PROMPT, 1, 2, 3])
    assert kv.get_computed_blocks(longer) == block_table(kv, request)


def test_nothing_is_found_before_its_step_succeeded() -> None:
    kv = make_manager()
    first, second = make_request("a", PROMPT), make_request("b", PROMPT)
    start(kv, first)
    assert kv.get_computed_blocks(second) == []
    kv.cache_blocks(first, 7)  # the second block lacks a token
    assert kv.get_computed_blocks(second) == block_table(kv, first)[:1]


def test_prompt_logprobs_need_every_position_computed() -> None:
    kv = make_manager()
    compute(kv, make_request("a", PROMPT))
    assert kv.get_computed_blocks(make_request("b", PROMPT, prompt_logprobs=0)) == []


def test_without_prefix_caching_nothing_is_found_or_stored() -> None:
    kv = make_manager(caching=False)
    request = make_request("a", PROMPT)
    compute(kv, request)
    assert compute(kv, make_request("b", PROMPT)) == []
    kv.free(request)
    assert kv.pool.num_evictable == 0
    assert kv.prefix_stats.queries == 0


# ---------------------------------------------------------------------- holding blocks


def test_blocks_are_taken_on_demand() -> None:
    kv = make_manager()
    request = make_request("a", PROMPT)
    assert len(kv.admit(request, [], 3) or ()) == 1
    request.num_computed_tokens = 3
    assert kv.allocate_slots(request, 1) == []
    assert len(kv.allocate_slots(request, 2) or ()) == 1
    assert kv.num_missing_blocks(request) == 1
    assert len(block_table(kv, request)) == 2


def test_when_blocks_are_short_nothing_changes() -> None:
    kv = make_manager(num_blocks=3)
    first, second = make_request("a", PROMPT[:8]), make_request("b", PROMPT)
    compute(kv, first)
    kv.free(first)
    hits = kv.get_computed_blocks(second)
    assert len(hits) == 2
    assert kv.pool.num_available_beside(hits) == 1  # the hits are not there to be evicted
    assert kv.admit(second, hits, 13) is None
    assert kv.pool.num_evictable == 2
    assert kv.prefix_stats.queries == 4  # the first request's
    assert kv.admit(second, hits, 10) is not None
    request = second
    request.num_computed_tokens = 12
    table = block_table(kv, request).copy()
    assert kv.allocate_slots(request, 1) is None
    assert block_table(kv, request) == table


def test_tails_are_evicted_before_heads() -> None:
    kv = make_manager(num_blocks=3)
    request = make_request("a", PROMPT)
    compute(kv, request)
    kv.free(request)
    other = make_request("b", [1] * 8)
    compute(kv, other)
    kv.free(other)
    assert len(kv.get_computed_blocks(make_request("c", PROMPT))) == 1


def test_waste_is_below_four_percent_on_ordinary_prompts() -> None:
    kv = KVCacheManager(4096, 16)
    for number, length in enumerate(range(100, 900, 20)):
        compute(kv, make_request(f"r{number}", [number] * length))
    assert num_stored_tokens(kv) == sum(range(100, 900, 20))
    assert 1 - num_stored_tokens(kv) / num_allocated_slots(kv) < 0.04


# ---------------------------------------------------------------------- forgetting


def test_a_failed_request_takes_its_prefix_out_of_the_cache() -> None:
    kv = make_manager()
    failed, other = make_request("a", PROMPT), make_request("b", [1] * 9)
    compute(kv, failed)
    compute(kv, other)
    kv.forget(failed)
    kv.free(failed)
    assert kv.get_computed_blocks(make_request("c", PROMPT)) == []
    assert len(kv.get_computed_blocks(make_request("d", [1] * 9))) == 2


def test_after_a_reset_running_requests_cache_nothing() -> None:
    kv = make_manager()
    running = make_request("a", PROMPT)
    start(kv, running)
    kv.cache_blocks(running, 4)
    kv.reset_prefix_cache()
    kv.cache_blocks(running, 10)
    assert kv.get_computed_blocks(make_request("b", PROMPT)) == []
    kv.free(running)
    assert kv.pool.num_free == kv.pool.num_blocks
    assert compute(kv, make_request("c", PROMPT)) == []
    assert len(kv.get_computed_blocks(make_request("d", PROMPT))) == 2


# ---------------------------------------------------------------------- figures


def test_misses_have_reasons() -> None:
    kv = make_manager(num_blocks=3)
    first = make_request("a", PROMPT)
    compute(kv, first)
    kv.free(first)
    stats = kv.prefix_stats
    assert (stats.queries, stats.hits) == (8, 0)
    assert stats.misses == {"cold": 8, "evicted": 0, "bypassed": 0}
    again = make_request("b", PROMPT)
    compute(kv, again)
    kv.free(again)
    assert (stats.queries, stats.hits) == (16, 8)
    other = make_request("c", [1] * 12)
    compute(kv, other)
    kv.free(other)
    assert stats.misses == {"cold": 16, "evicted": 0, "bypassed": 0}
    compute(kv, again)
    kv.free(again)
    assert stats.misses == {"cold": 16, "evicted": 8, "bypassed": 0}
    compute(kv, make_request("d", PROMPT, prompt_logprobs=1))
    assert stats.misses == {"cold": 16, "evicted": 8, "bypassed": 8}
    assert stats.queries == stats.hits + sum(stats.misses.values())


def test_a_preempted_request_that_returns_is_not_counted_again() -> None:
    kv = make_manager()
    request = make_request("a", PROMPT)
    compute(kv, request)
    kv.free(request)
    request.num_preemptions = 1
    assert len(compute(kv, request)) == 2
    assert (kv.prefix_stats.queries, kv.prefix_stats.hits) == (8, 0)


# ---------------------------------------------------------------------- prefixes in flight


def waits(kv: KVCacheManager, request: Request) -> bool:
    return kv.wait_for_prefix(request, len(kv.get_computed_blocks(request)))


def test_a_prefix_that_is_being_computed_is_waited_for() -> None:
    kv = make_manager()
    owner, waiter = make_request("a", PROMPT), make_request("b", PROMPT)
    assert not waits(kv, owner)
    start(kv, owner)
    assert waits(kv, waiter)
    kv.cache_blocks(owner, 4)
    assert kv.take_ready() == []  # the second block is still under way
    kv.cache_blocks(owner, 10)
    assert kv.take_ready() == [waiter]
    assert kv.take_ready() == []
    assert not waits(kv, waiter)
    assert len(kv.get_computed_blocks(waiter)) == 2


def test_whoever_shares_only_the_head_waits_only_for_the_head() -> None:
    kv = make_manager()
    owner, waiter = make_request("a", PROMPT), make_request("b", [*PROMPT[:4], 1, 2])
    start(kv, owner)
    assert waits(kv, waiter)
    kv.cache_blocks(owner, 4)
    assert kv.take_ready() == [waiter]


def test_nobody_waits_for_what_nobody_will_compute() -> None:
    kv = make_manager()
    owner, waiter = make_request("a", PROMPT), make_request("b", PROMPT)
    start(kv, owner)
    assert waits(kv, waiter)
    kv.free(owner)  # ended, aborted, failed or preempted
    assert kv.take_ready() == [waiter]
    assert not waits(kv, waiter)


def test_a_waiter_that_was_aborted_does_not_come_back() -> None:
    kv = make_manager()
    owner, waiter = make_request("a", PROMPT), make_request("b", PROMPT)
    start(kv, owner)
    assert waits(kv, waiter)
    waiter.status = type(waiter.status).FINISHED
    kv.free(owner)
    assert kv.take_ready() == []


def test_who_cannot_use_the_prefix_does_not_wait_for_it() -> None:
    kv = make_manager()
    start(kv, make_request("a", PROMPT, salt="one"))
    assert not waits(kv, make_request("b", PROMPT, salt="two"))
    assert not waits(kv, make_request("c", PROMPT, salt="one", prompt_logprobs=1))
    assert not waits(kv, make_request("d", PROMPT[:4], salt="one"))


def test_the_claim_of_another_owner_outlives_the_first() -> None:
    kv = make_manager()
    first, second, waiter = (make_request(name, PROMPT) for name in "abc")
    start(kv, first)
    start(kv, second)  # computes it as well; the claim is the first one's
    kv.reset_prefix_cache()
    third = make_request("d", PROMPT)
    start(kv, third)
    assert waits(kv, waiter)
    kv.free(first)
    kv.free(second)
    assert kv.take_ready() == []
    kv.cache_blocks(third, 8)
    assert kv.take_ready() == [waiter]


# ---------------------------------------------------------------------- any order of events

PREFIXES = [[1, 2] * 8, [1, 2] * 4 + [2, 1] * 4, [2] * 7, []]


class ManagerMachine(RuleBasedStateMachine):
    """The real content of each block is tracked beside the manager; shared blocks must match it."""

    @initialize(num_blocks=st.integers(1, 16), caching=st.booleans())
    def begin(self, num_blocks: int, caching: bool) -> None:
        self.kv = make_manager(num_blocks, caching=caching)
        # block → salt, all tokens up to its end
        self.content: dict[int, tuple[str, list[int]]] = {}
        self.running: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.parked: list[Request] = []
        self.num_requests = 0

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(1, 2), min_size=1, max_size=6),
        salt=st.sampled_from(["", "", "tenant"]),
        prompt_logprobs=st.sampled_from([None, None, 1]),
    )
    def add(self, prefix: list[int], tail: list[int], salt: str, prompt_logprobs: int) -> None:
        self.num_requests += 1
        self.waiting.append(
            make_request(
                f"r{self.num_requests}", prefix + tail, salt=salt, prompt_logprobs=prompt_logprobs
            )
        )

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        hits = self.kv.get_computed_blocks(request)
        num_cached = len(hits) * SIZE
        assert num_cached < request.num_tokens
        for index, block in enumerate(hits):
            prefix = request.token_ids[: (index + 1) * SIZE]
            assert self.content[block] == (request.cache_salt, prefix)
        if self.kv.wait_for_prefix(request, len(hits)):
            assert any(
                self.shares_next_block(request, num_cached, r) for r in self.running.values()
            )
            self.waiting.remove(request)
            self.parked.append(request)
            return
        num_tokens = data.draw(st.integers(num_cached + 1, request.num_tokens))
        available = self.kv.pool.num_available_beside(hits)
        table = self.kv.admit(request, hits, num_tokens)
        assert (table is None) == (-(-num_tokens // SIZE) - len(hits) > available)
        if table is not None:
            self.waiting.remove(request)
            self.running[request.request_id] = request
            request.num_computed_tokens = num_tokens
            self.write(request, num_cached)
            if data.draw(st.booleans()):
                self.kv.cache_blocks(request, request.num_computed_tokens)

    def shares_next_block(self, request: Request, num_cached: int, other: Request) -> bool:
        end = num_cached + SIZE
        return (request.cache_salt, request.token_ids[:end]) == (
            other.cache_salt,
            other.token_ids[:end],
        )

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token_ids=st.lists(st.integers(1, 2), min_size=0, max_size=5))
    def advance(self, data: st.DataObject, token_ids: list[int]) -> None:
        """A step: some tokens become known, some are computed; it succeeds."""
        request = data.draw(st.sampled_from(list(self.running.values())))
        request.token_ids += token_ids
        lacking = request.num_tokens - request.num_computed_tokens
        new_blocks = self.kv.allocate_slots(request, lacking)
        if new_blocks is not None:
            request.num_computed_tokens += lacking
            self.write(request, request.num_computed_tokens - lacking)
            self.kv.cache_blocks(request, request.num_computed_tokens)

    def write(self, request: Request, begin: int) -> None:
        """Token `begin` and those after it, as far as computed."""
        table = block_table(self.kv, request)
        for index in range(begin // SIZE, -(-request.num_computed_tokens // SIZE)):
            tokens = request.token_ids[: min((index + 1) * SIZE, request.num_computed_tokens)]
            self.content[table[index]] = (request.cache_salt, tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans(), returns=st.booleans())
    def leave(self, data: st.DataObject, fails: bool, returns: bool) -> None:
        request = data.draw(st.sampled_from(list(self.running.values())))
        del self.running[request.request_id]
        if fails:
            self.kv.forget(request)
        self.kv.free(request)
        if returns:
            request.num_preemptions += 1
            request.num_computed_tokens = 0
            self.waiting.append(request)

    @rule()
    def wake(self) -> None:
        ready = self.kv.take_ready()
        assert all(ready.count(request) == 1 for request in ready)
        for request in ready:
            self.parked.remove(request)
        self.waiting += ready

    @rule()
    def reset(self) -> None:
        self.kv.reset_prefix_cache()

    @invariant()
    def blocks_are_held_by_those_who_run(self) -> None:
        self.kv.pool.check()
        refs = Counter(b for r in self.running.values() for b in block_table(self.kv, r))
        blocks = range(self.kv.pool.num_blocks)
        assert [self.kv.pool._ref_counts[b] for b in blocks] == [refs[b] for b in blocks]
        assert num_stored_tokens(self.kv) <= num_allocated_slots(self.kv)
        stats = self.kv.prefix_stats
        assert stats.queries == stats.hits + sum(stats.misses.values())

    @invariant()
    def tables_hold_what_their_requests_wrote(self) -> None:
        for request in self.running.values():
            for index, block in enumerate(block_table(self.kv, request)):
                end = min((index + 1) * SIZE, request.num_computed_tokens)
                assert self.content[block] == (request.cache_salt, request.token_ids[:end])

    def teardown(self) -> None:
        """After all requests have ended, no block is held and no request waits."""
        for request in self.running.values():
            self.kv.free(request)
        self.wake()
        assert not self.parked
        assert self.kv.pool.num_available == self.kv.pool.num_blocks
        assert num_allocated_slots(self.kv) == 0


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    report_multiple_bugs=False,
)
