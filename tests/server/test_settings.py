"""The server's settings are checked at birth."""

from __future__ import annotations

from typing import Any

import pytest

from quire.cli.options import CommandParser, add_engine_options, engine_config
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


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"kv_cache_memory_bytes": "32M"}, {"kv_cache_memory_bytes": 32 << 20}),
        ({"max_model_len": "4_096"}, {"max_model_len": 4096}),
        (
            {"dtype": "BFloat16", "quantization": "INT8"},
            {"dtype": "bfloat16", "quantization": "int8"},
        ),
    ],
)
def test_texts_mean_in_python_what_they_do_on_the_command_line(
    given: dict[str, str], meant: dict[str, Any]
) -> None:
    assert EngineConfig.from_options(**given) == EngineConfig.from_options(**meant)
    words = [word for n, text in given.items() for word in (f"--{n.replace('_', '-')}", text)]
    parser = CommandParser("x", "", ())
    add_engine_options(parser)
    assert engine_config(parser.parse(words)) == EngineConfig.from_options(**meant)


def test_what_is_no_integer_is_named() -> None:
    with pytest.raises(ConfigError, match=r"num_blocks must be an integer such as 4096, 4K or"):
        EngineConfig.from_options(num_blocks="many")


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
