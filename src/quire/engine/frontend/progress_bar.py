"""ProgressBar: finished requests, and tokens a second, on standard error."""

from __future__ import annotations

import time
from typing import Any

from quire.core.messages import EngineStats


class ProgressBar:
    """A progress bar: finished requests, and tokens generated or embedded per second."""

    def __init__(self, what: str, total: int, *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} tokens/s"),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bar.add_task(what, total=total, rate=0.0)
        self._begin = time.monotonic()
        self._embeds = what == "embeddings"
        self._tokens_before: int | None = None

    def __enter__(self) -> ProgressBar:
        self._bar.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._bar.__exit__(*details)

    def show(self, finished: int, stats: EngineStats) -> None:
        """Draw the number of finished requests, and the rate by the engine's counters."""
        tokens = stats.num_prompt_tokens if self._embeds else stats.num_generation_tokens
        if self._tokens_before is None:
            self._tokens_before = tokens
        tokens -= self._tokens_before
        rate = tokens / max(time.monotonic() - self._begin, 1e-9)
        self._bar.update(self._task, completed=finished, rate=rate)
