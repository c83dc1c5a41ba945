"""Sampling params among a server's options: the defaults of requests that leave them out.

As llama-server takes them, `--temp 0.5` is `--override-generation-config.temperature 0.5`, on the
command line and in a YAML file.
"""

from __future__ import annotations

import json
from typing import Any

from quire.cli.dotted_options import member_value
from quire.core.sampling_params import SamplingParams
from quire.errors import ConfigError, InvalidRequestError


def default_value(given_as: str, name: str, value: Any) -> Any:
    """The value of a sampling param, which may be as it is written; None asks for nothing.

    given_as: its name in the error. Raises ConfigError for what no request could have.
    """
    value = member_value(value) if isinstance(value, str) else value
    try:
        SamplingParams(**({} if value is None else {name: value}))
    except InvalidRequestError as error:
        raise ConfigError(f"{given_as}{str(error).removeprefix(name)}") from None
    return value


def joined_configs(lower: str, upper: str) -> str:
    """The two generation configs as one, in JSON; members of both are those of the upper one.

    What is not an object is returned as it is, to be refused.
    """
    below, above = member_value(lower), member_value(upper)
    if not isinstance(above, dict):
        return upper
    return json.dumps(below | above) if isinstance(below, dict) else lower
