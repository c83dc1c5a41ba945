"""Why a test of another project fails here: by the test's name and by the failure's message.

A reason holds only for the message that it was written for: a test that fails in another way counts
as missing. Two of llama.cpp's hold for every test: other numbers of tokens, and a first chunk with
empty content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

# "missing": none of the following. "choice": Quire refuses the field, option or path by its name;
# "differs": it answers in another way; "model": only another model could pass; "internals": it
# tests the project's own classes
Kind = Literal["choice", "differs", "model", "internals", "missing"]


class Reason(NamedTuple):
    """Why tests fail whose name contains `test` and whose message has `message`, an expression."""

    test: str
    message: str
    kind: Kind
    why: str


def reason_of(test: str, message: str, reasons: Iterable[Reason]) -> Reason | None:
    """The first reason that holds for a failure; None: nobody's choice, the test simply fails."""
    for reason in reasons:
        if reason.test in test and re.search(reason.message, message):
            return reason
    return None
