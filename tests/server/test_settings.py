"""The server's settings are checked at birth."""

from __future__ import annotations

from typing import Any

import pytest

from quire.config import EngineConfig, iter_options
from quire.errors import ConfigError
from quire.options import options_of
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


def test_each_number_has_a_range() -> None:
    options = options_of(ServerSettings) + [option for _, option in iter_options()]
    numbers = {option.name: option.within for option in options if option.kind in (int, float)}
    assert None not in numbers.values(), numbers


def test_a_body_may_have_more_than_32_bits_count() -> None:
    assert ServerSettings(max_body_bytes=2 << 30).held_body_bytes == 128 << 30


def test_space_around_a_key_is_no_part_of_it() -> None:
    assert ServerSettings(api_key=" a key\n").api_key == "a key"


@pytest.mark.parametrize(
    ("settings", "name"), [(ServerSettings, "uds"), (EngineConfig.from_options, "model")]
)
def test_a_path_that_is_not_utf8_is_named(settings: Any, name: str) -> None:
    """Settings go to other processes and to libraries as UTF-8."""
    with pytest.raises(ConfigError, match=f"{name} is .* not UTF-8; rename it"):
        settings(**{name: "/tmp/m\udcff"})
    settings(**{name: "/tmp/mö"})
