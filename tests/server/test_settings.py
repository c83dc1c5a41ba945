"""The server's settings are checked at birth."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import ConfigError
from quire.server.settings import ServerSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"port": 65536},
        {"api_key": ""},
        {"api_key": " \n"},
        {"api_key": "schlüssel"},
        {"api_key": "two\nlines"},
        {"max_body_bytes": 0},
        {"shutdown_timeout": -1},
        {"api_server_count": 0},
        {"engine_hang_timeout": -1},
    ],
)
def test_wrong_values_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        ServerSettings(**wrong)


def test_space_around_a_key_is_no_part_of_it() -> None:
    assert ServerSettings(api_key=" a key\n").api_key == "a key"
