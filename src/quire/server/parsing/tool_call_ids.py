"""Ids of tool calls, as those who read them want them."""

from __future__ import annotations

import re
import uuid
from hashlib import sha256

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def long_id() -> str:
    """A call's id as OpenAI writes it."""
    return f"call_{uuid.uuid4().hex[:24]}"


def short_id() -> str:
    """A call's id as Mistral's templates demand it: nine letters and digits."""
    return uuid.uuid4().hex[:9]


def fit_short_id(given: str) -> str:
    """An id for Mistral's templates in place of whichever a call has; equal for equal ones."""
    return given if _SHORT_ID.fullmatch(given) else sha256(given.encode()).hexdigest()[:9]
