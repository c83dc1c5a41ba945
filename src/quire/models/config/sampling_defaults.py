"""The sampling params that a model's generation_config.json asks for."""

from __future__ import annotations

from pathlib import Path

from quire.config import EngineConfig
from quire.core.sampling_params import SamplingParams
from quire.errors import CheckpointError, InvalidRequestError
from quire.hub import resolve_model
from quire.models.checkpoints.config_file import ConfigFile

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
    """Sampling params by name, those of the file that `generation_config` names; mostly empty.

    Raises CheckpointError for values that no request could have.
    """
    wanted = config.model.generation_config
    if wanted == "none":
        return {}
    folder = resolve_model(config.model.model, config.model.revision) if wanted == "auto" else None
    path = (folder or Path(wanted)) / "generation_config.json"
    if wanted == "auto" and not path.is_file():
        return {}
    file = ConfigFile.read(path)
    given = {own: file.get(key) for key, own in _PARAMS.items() if file.get(key) is not None}
    try:
        SamplingParams(**given)
    except InvalidRequestError as error:
        raise CheckpointError(
            f"{path}: {error} (or set generation_config to 'none', to leave it unread)"
        ) from None
    return given
