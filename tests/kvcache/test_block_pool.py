from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.kvcache.block_pool import BlockPool, BlockState


def make_pool(num_blocks: int) -> tuple[BlockPool, list[bytes]]:
    removed: list[bytes] = []
    return BlockPool(num_blocks, on_removed=removed.append), removed


def sizes(pool: BlockPool) -> tuple[int, int, int]:
    """(free, evictable, used)"""
    pool.check()
    return (pool.num_free, pool.num_evictable, pool.num_blocks - pool.num_available)


def test_a_block_without_a_hash_returns_to_the_free_ones() -> None:
    pool, _ = make_pool(4)
    blocks = pool.allocate(3)
    assert len(set(blocks)) == 3
    assert sizes(pool) == (1, 0, 3)
    pool.release(blocks)
    assert sizes(pool) == (4, 0, 0)


def test_a_block_with_a_hash_stays_findable_when_nobody_uses_it() -> None:
    pool, _ = make_pool(4)
    [block] = pool.allocate(1)
    pool.register(block, b"h")
    pool.release([block])
    assert sizes(pool) == (3, 1, 0)
    assert pool.lookup(b"h") == block


def test_a_hit_is_shared_and_counts_its_holders() -> None:
    pool, _ = make_pool(4)
    [block] = pool.allocate(1)
    pool.register(block, b"h")
    pool.share(block)
    assert pool._ref_counts[block] == 2
    pool.release([block])
    assert sizes(pool) == (3, 0, 1)
    pool.release([block])
    pool.share(block)  # out of the evictable ones
    assert sizes(pool) == (3, 0, 1)
    assert pool._ref_counts[block] == 1


def test_free_blocks_go_before_cached_ones_and_old_ones_before_young_ones() -> None:
    pool, removed = make_pool(3)
    old, young, free = pool.allocate(3)
    pool.register(old, b"old")
    pool.register(young, b"young")
    pool.release([old, young, free])
    assert pool.allocate(2) == [free, old]
    assert removed == [b"old"]
    assert pool.lookup(b"old") is None
    assert pool.lookup(b"young") == young


def test_use_makes_a_block_young_again_but_looking_does_not() -> None:
    pool, removed = make_pool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"first")
    pool.register(second, b"second")
    pool.release([first, second])
    pool.share(first)
    pool.release([first])
    pool.lookup(b"second")
    pool.allocate(1)
    assert removed == [b"second"]


def test_the_first_writer_of_a_content_wins() -> None:
    pool, _ = make_pool(2)
    first, twin = pool.allocate(2)
    pool.register(first, b"h")
    pool.register(twin, b"h")
    assert pool.lookup(b"h") == first
    pool.release([twin, first])
    assert sizes(pool) == (1, 1, 0)  # the twin is worth nothing


def test_forgotten_content_frees_its_block_unless_somebody_holds_it() -> None:
    pool, removed = make_pool(2)
    idle, held = pool.allocate(2)
    pool.register(idle, b"idle")
    pool.register(held, b"held")
    pool.release([idle])
    for block_hash in (b"idle", b"held", b"unknown"):
        pool.forget(block_hash)
    assert removed == [b"idle", b"held"]
    assert sizes(pool) == (1, 0, 1)
    pool.release([held])
    assert sizes(pool) == (2, 0, 0)


def test_reset_leaves_users_their_blocks_and_finds_nothing_any_more() -> None:
    pool, _ = make_pool(3)
    idle, held = pool.allocate(2)
    pool.register(idle, b"idle")
    pool.register(held, b"held")
    pool.release([idle])
    pool.reset()
    assert sizes(pool) == (2, 0, 1)
    assert pool.lookup(b"idle") is pool.lookup(b"held") is None
    pool.release([held])
    assert sizes(pool) == (3, 0, 0)


def test_misuse_is_caught() -> None:
    pool, _ = make_pool(2)
    [block] = pool.allocate(1)
    with pytest.raises(AssertionError, match="2 blocks of 1 available"):
        pool.allocate(2)
    pool.release([block])
    with pytest.raises(AssertionError, match="released but not held"):
        pool.release([block])
    with pytest.raises(AssertionError, match="registered but not held"):
        pool.register(block, b"h")


class BlockPoolMachine(RuleBasedStateMachine):
    """The pool against a model so plain that it cannot be wrong: lists and linear search."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        self.pool, self.removed = make_pool(num_blocks)
        self.free = set(range(num_blocks))
        self.evictable: list[int] = []  # oldest first
        self.held: list[int] = []  # one item for each reference
        self.hashes: dict[int, bytes] = {}
        self.num_hashes = 0

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.free) + len(self.evictable)))
        num_evicted = max(0, count - len(self.free))
        evicted, self.evictable = self.evictable[:num_evicted], self.evictable[num_evicted:]
        self.removed.clear()
        blocks = self.pool.allocate(count)
        assert len(blocks) == len(set(blocks)) == count
        assert set(blocks) <= self.free | set(evicted)
        assert set(evicted) <= set(blocks)
        assert self.removed == [self.hashes.pop(block) for block in evicted]
        self.free -= set(blocks)
        self.held += blocks

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.held.remove(block)
        if block not in self.held and block in self.hashes:
            self.evictable.append(block)
        elif block not in self.held:
            self.free.add(block)
        self.pool.release([block])

    @precondition(lambda self: self.hashes)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.hashes)))
        if block in self.evictable:
            self.evictable.remove(block)
        self.held.append(block)
        self.pool.share(block)

    @precondition(lambda self: set(self.held) - set(self.hashes))
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(set(self.held) - set(self.hashes))))
        known = data.draw(st.sampled_from([None, *self.hashes.values()]))
        self.num_hashes += 1
        block_hash = known or b"%d" % self.num_hashes
        self.pool.register(block, block_hash)
        if known is None:
            self.hashes[block] = block_hash

    @precondition(lambda self: self.hashes)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.hashes)))
        self.pool.forget(self.hashes.pop(block))
        if block in self.evictable:
            self.evictable.remove(block)
            self.free.add(block)

    @rule()
    def reset(self) -> None:
        self.pool.reset()
        self.hashes.clear()
        self.free |= set(self.evictable)
        self.evictable.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check()
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_evictable == len(self.evictable)
        assert self.pool.num_available == len(self.free) + len(self.evictable)
        for block in range(self.pool.num_blocks):
            assert self.pool._ref_counts[block] == self.held.count(block)
        for block, block_hash in self.hashes.items():
            assert self.pool.lookup(block_hash) == block


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    report_multiple_bugs=False,
)


def test_states_distinguish_free_cached_used_and_shared_blocks() -> None:
    pool = BlockPool(5, on_removed=lambda _: None)
    shared, cached, used = pool.allocate(3)
    pool.register(shared, b"a")
    pool.register(cached, b"b")
    pool.share(shared)
    pool.release([cached])
    states = pool.states()
    assert states[shared] == BlockState.SHARED
    assert states[cached] == BlockState.CACHED
    assert states[used] == BlockState.USED
    assert sorted(states) == [0, 0, 1, 2, 3]
    assert pool.num_shared == 1
    pool.release([shared])
    assert pool.num_shared == 0
    assert pool.states()[shared] == BlockState.USED
