"""How log lines look, the same in each process."""

from __future__ import annotations

import logging
import sys


def configure_logging(level: str) -> None:
    """Log to stderr from `level` ("debug", "info", ...) upwards."""
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("uvicorn").setLevel("WARNING")  # what it says at start and end, we say
