"""Random ids for requests and answers. They are not secrets."""

from __future__ import annotations

import random

_numbers = random.Random()  # seeded once; os.urandom for each id would cost a system call


def new_id() -> str:
    """128 random bits as 32 hexadecimal digits."""
    return _numbers.getrandbits(128).to_bytes(16).hex()  # half the time of formatting
