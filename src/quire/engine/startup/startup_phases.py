"""Duration of each phase of a start. No torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Phases:
    """Seconds by the phase's name, in their order.

    wait: waits until a GPU has done its work.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.wait: Callable[[], object] = lambda: None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Note the seconds of a phase, its work on a GPU included, phases inside it excluded."""
        begin, before = time.monotonic(), sum(self.seconds.values())
        yield
        self.wait()
        within = sum(self.seconds.values()) - before
        self.note(phase, time.monotonic() - begin - within)

    def note(self, phase: str, spent: float) -> None:
        """Add seconds to a phase of the start."""
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent, 3)
        logger.info("%s: %.2f s", phase, spent)
