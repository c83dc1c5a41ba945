"""Disturbances of a measurement: cores that others keep busy, a machine whose pace changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

QUIET = 0.1  # cores that others, the host with them, may keep busy beside a measurement that counts
STEADY = 0.75  # the lower rate, before or after a measurement, is at least this part of the other

_IDLE, _WAITING, _STOLEN = 3, 4, 7  # fields of a core's line in /proc/stat


def busy_seconds() -> float:
    """Processor time since the machine started that was not idle; what its host took is in it.

    Of the cores that this process may use: others may be busy on a larger machine.
    """
    return sum(sum(core[:8]) - core[_IDLE] - core[_WAITING] for core in _cores())


def stolen_seconds() -> float:
    """The part of it that a virtual machine's host took."""
    return sum(core[_STOLEN] for core in _cores())


def _cores() -> list[list[float]]:
    """Seconds of each usable core by what they were spent on."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    tick = os.sysconf("SC_CLK_TCK")
    return [[int(field) / tick for field in fields] for name, *fields in lines if name in usable]


def is_disturbed(measurement: dict[str, Any]) -> bool:
    """Whether others used the machine, or its pace was another one after the measurement."""
    before, after = (measurement.get(when, {}) for when in ("rates_before", "rates_after"))
    steady = all(
        STEADY * max(rate, after[name]) <= min(rate, after[name]) for name, rate in before.items()
    )
    return bool(measurement["others_cores"] > QUIET) or not steady
