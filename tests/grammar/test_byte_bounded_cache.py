from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.grammar.byte_bounded_cache import ByteBoundedCache


def test_what_was_used_longest_ago_goes_first() -> None:
    cache: ByteBoundedCache[str, int] = ByteBoundedCache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert cache.num_bytes == 8


def test_an_entry_may_be_replaced() -> None:
    cache: ByteBoundedCache[str, int] = ByteBoundedCache(10)
    cache.put("a", 1, 4)
    cache.put("a", 2, 9)
    assert (cache.get("a"), cache.num_bytes, len(cache)) == (2, 9, 1)


def test_what_is_too_large_is_not_stored() -> None:
    cache: ByteBoundedCache[str, int] = ByteBoundedCache(10)
    cache.put("a", 1, 11)
    assert (cache.get("a"), cache.num_bytes, len(cache)) == (None, 0, 0)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 12))))
def test_the_bound_always_holds(puts: list[tuple[str, int]]) -> None:
    cache: ByteBoundedCache[str, int] = ByteBoundedCache(10)
    sizes: dict[str, int] = {}
    for key, size in puts:
        cache.put(key, size, size)
        sizes[key] = size
        stored = [name for name in "abcdefgh" if cache.get(name) is not None]
        assert cache.num_bytes == sum(sizes[name] for name in stored) <= 10
        assert len(cache) == len(stored)
