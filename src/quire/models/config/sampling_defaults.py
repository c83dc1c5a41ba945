"""The sampling params that a model's generation_config.json asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.config import EngineConfig
from quire.config_file import ConfigFile
from quire.core.sampling_params import SamplingParams
from quire.errors import CheckpointError, ConfigError, InvalidRequestError
from quire.hub import config_folder
from quire.model_folder import named_file
from quire.options import json_object

# key of the file: sampling param; those that vLLM reads
_PARAMS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def read_sampling_defaults(config: EngineConfig) -> dict[str, float]:
    """Sampling params by name that requests get which leave them out; mostly empty.

    They are those of the file that `generation_config` names, and `override_generation_config` goes
    before it. Raises CheckpointError or ConfigError for values that no request could have.
    """
    return _of_file(config) | _overrides(config.model.override_generation_config)


def _overrides(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    found = json_object("override_generation_config", text, '{"temperature": 0.5}')
    if unknown := sorted(found.keys() - _PARAMS.keys()):
        known = ", ".join(_PARAMS)
        raise ConfigError(f"override_generation_config has {unknown[0][:64]!r}; known: {known}")
    try:
        return _checked(found)
    except InvalidRequestError as error:
        raise ConfigError(f"override_generation_config: {error}") from None


def _checked(given: dict[str, Any]) -> dict[str, float]:
    """Values by the file's keys as sampling params. Raises InvalidRequestError."""
    named = {_PARAMS[key]: value for key, value in given.items() if value is not None}
    SamplingParams(**named)
    return named


def _of_file(config: EngineConfig) -> dict[str, float]:
    wanted = config.model.generation_config
    if wanted == "none":
        return {}
    folder = config_folder(config) if wanted == "auto" else Path(wanted)
    path = folder / "generation_config.json"
    if wanted == "auto" and not path.is_file():
        return {}
    file = ConfigFile.read(path)
    try:
        return _checked({key: file.get(key) for key in _PARAMS})
    except InvalidRequestError as error:
        raise CheckpointError(
            f"{named_file(path)}: {error} (or set generation_config to 'none', to leave it unread)"
        ) from None
