"""How long each phase of a start takes. No torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Phases:
    """Seconds by the phase's name, in their order.

    wait: until a GPU has done what it was given.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.wait: Callable[[], object] = lambda: None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Note what it takes, with all that it gave a GPU to do; without phases within it."""
        begin, before = time.monotonic(), sum(self.seconds.values())
        yield
        self.wait()
        within = sum(self.seconds.values()) - before
        self.note(phase, time.monotonic() - begin - within)

    def note(self, phase: str, spent: float) -> None:
        """Add to a phase."""
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent, 3)
        logger.info("%s: %.2f s", phase, spent)
