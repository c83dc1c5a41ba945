"""Why a test of another project fails here: by the test's name and by the failure's message.

A reason holds only for the test and the message that it was written for: a test that fails in
another way counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

# "missing": a feature that is not there, or no reason at all. "differs": Quire answers in another
# way. "choice": it refuses the field, option or path by its name. "standard": it does what OpenAI's
# or Anthropic's API or a standard does, where the test wants something else. "model": only another
# model could pass. "internals": it tests the project's own classes and files
Kind = Literal["choice", "standard", "differs", "model", "internals", "missing"]


class Reason(NamedTuple):
    """Why tests fail whose name contains `test` and whose message has `message`, an expression."""

    test: str
    message: str
    kind: Kind
    why: str


def each(tests: str, message: str, kind: Kind, why: str) -> list[Reason]:
    """One reason for several tests. tests: their names, with spaces between."""
    return [Reason(test, message, kind, why) for test in tests.split()]


def reason_of(test: str, message: str, reasons: Iterable[Reason]) -> Reason | None:
    """The first reason that holds for a failure; None: nobody's choice, the test simply fails."""
    for reason in reasons:
        if reason.test in test and re.search(reason.message, message):
            return reason
    return None
