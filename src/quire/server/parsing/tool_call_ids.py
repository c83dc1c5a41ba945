"""Ids of tool calls, in OpenAI's and in Mistral's format."""

from __future__ import annotations

import re
import uuid
from hashlib import sha256

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def long_id() -> str:
    """A new id in OpenAI's format, such as "call_0a1b..."."""
    return f"call_{uuid.uuid4().hex[:24]}"


def short_id() -> str:
    """A new id in the format of Mistral's templates: nine letters and digits."""
    return uuid.uuid4().hex[:9]


def fit_short_id(given: str) -> str:
    """Convert any id to one for Mistral's templates; equal ids stay equal."""
    return given if _SHORT_ID.fullmatch(given) else sha256(given.encode()).hexdigest()[:9]
