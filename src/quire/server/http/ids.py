"""Names for requests and answers, by which they are found again; they are no secrets."""

from __future__ import annotations

import random

_numbers = random.Random()  # asks the system for its seed, and then no more: that would cost a call


def new_id() -> str:
    """128 random bits, in hexadecimal digits."""
    return f"{_numbers.getrandbits(128):032x}"
