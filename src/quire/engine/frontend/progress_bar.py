"""ProgressBar: finished requests, and tokens a second, on standard error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from quire.core.messages import EngineStats

if TYPE_CHECKING:
    from rich.progress import Progress

_REFRESH_SECONDS = 0.1


class ProgressBar:
    """A progress bar: finished requests, and tokens generated or embedded per second.

    Not drawn where there is nothing to do. The caller's thread draws it, as the system may have no
    other.
    """

    def __init__(self, what: str, total: int, *, shown: bool) -> None:
        self._bar = _bar(what, total) if shown and total else None  # rich takes a while to import
        self._begin = time.monotonic()
        self._embeds = what == "embeddings"
        self._tokens_before: int | None = None
        self._due = 0.0  # when it is drawn again

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*details)

    def show(self, finished: int, stats: EngineStats) -> None:
        """Draw the number of finished requests, and the rate by the engine's counters."""
        if self._bar is None:
            return
        tokens = stats.num_prompt_tokens if self._embeds else stats.num_generation_tokens
        if self._tokens_before is None:
            self._tokens_before = tokens
        tokens -= self._tokens_before
        rate = tokens / max(time.monotonic() - self._begin, 1e-9)
        is_due = time.monotonic() >= self._due
        self._bar.update(self._bar.task_ids[0], completed=finished, rate=rate, refresh=is_due)
        if is_due:
            self._due = time.monotonic() + _REFRESH_SECONDS


def _bar(what: str, total: int) -> Progress:
    """A bar on standard error with one task."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    rate = TextColumn("{task.fields[rate]:.0f} tokens/s")
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), rate)
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, redirect_stdout=False, auto_refresh=False)
    bar.add_task(what, total=total, rate=0.0)
    return bar
