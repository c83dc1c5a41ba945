"""vLLM's tags of a wake-up; here each of them loads weights and KV cache again."""

from __future__ import annotations

from collections.abc import Iterable

from quire.errors import invalid_value

SLEEP_TAGS = ("weights", "kv_cache")


def check_tags(tags: Iterable[str]) -> None:
    """Raises InvalidRequestError for names of no part of a model."""
    for tag in tags:
        if tag not in SLEEP_TAGS:
            known = " or ".join(SLEEP_TAGS)
            raise invalid_value("tags", f"must be {known}, not {tag[:64]!r}")


def check_level(level: int) -> None:
    """Raise InvalidRequestError for a level of sleep that vLLM has not."""
    if level not in (1, 2):
        raise invalid_value("level", f"must be 1 or 2, not {level!r}")
