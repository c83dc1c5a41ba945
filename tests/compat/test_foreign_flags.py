"""Each option of `vllm serve` and of llama-server is taken, translated, or refused by its name.

The lists are those of their sources (benchmarks/foreign_flags.py writes them).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.cli import foreign_options, serve
from quire.compat import name_homes

LISTS = {"vllm": 300, "llama_server": 250}  # how many options each has at least


def options(name: str) -> list[tuple[list[str], bool]]:
    """Each option's flags, and whether a value follows."""
    lines = (Path(__file__).parent / f"flags_of_{name}.txt").read_text().splitlines()
    return [([word.rstrip("=") for word in line.split()], "=" in line) for line in lines]


def faults(flag: str, has_value: bool) -> Iterator[str]:
    actions = serve.make_parser()._option_string_actions
    own = foreign_options.OWN_FLAGS.get(flag, flag)
    row = foreign_options._row_of(own)
    if own in actions:
        if actions[own].nargs != "?" and (actions[own].nargs != 0) != has_value:
            yield f"{flag}: {'a' if has_value else 'no'} value follows there"
    elif row is None:
        name = own.lstrip("-").replace("-", "_")
        if own != "--model" and name_homes.command_home(own, name, actions) is None:
            yield f"{flag} is unknown"
    elif row[0].arity != "optional" and (row[0].arity == "value") != has_value:
        yield f"{flag}: {'a' if has_value else 'no'} value follows there"


@pytest.mark.parametrize("name", LISTS)
def test_every_option_is_known_as_it_is_written_there(name: str) -> None:
    listed = options(name)
    assert len(listed) >= LISTS[name]
    found = [f for flags, has_value in listed for flag in flags for f in faults(flag, has_value)]
    assert not found, "\n".join(found)
