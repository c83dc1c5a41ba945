"""Orphans: processes that the first process of a container inherits, and has to reap.

Where an API process is killed, what it has started (such as grammar subprocesses) ends too, but
stays in the table of processes until its new parent asks for its status.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

SECONDS = 1.0  # between two looks


async def reap_forever() -> None:
    """Reap processes that nobody waits for: they are there at two looks. Runs until cancelled."""
    before = 0
    while True:
        await asyncio.sleep(SECONDS)
        ended = _first_ended()
        if ended and ended == before:
            with suppress(ChildProcessError):  # somebody waited for it after all
                os.waitpid(ended, os.WNOHANG)
        before = ended


def _first_ended() -> int:
    """The id of a child that has ended and is not reaped; 0 if there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are no children
        return 0
    return 0 if found is None else found.si_pid
