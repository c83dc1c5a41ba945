"""Pooling of embeddings as a checkpoint describes it: sentence-transformers' files. No torch.

modules.json lists what the states of the model pass through: one Pooling, whose folder has a
config.json, and maybe a Normalize. Without these files the last token's state is taken, which a
decoder alone has seen the whole text, and scaled to length 1, as OpenAI's API promises.
(https://sbert.net/docs/sentence_transformer/usage/custom_models.html)
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Literal

from quire.config_file import ConfigFile
from quire.core.pooling_params import POOLINGS, PoolingParams
from quire.errors import CheckpointError

MODULES_FILE = "modules.json"
DEFAULT_FOLDER = "1_Pooling"
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
_NAMES = {"mean": "mean", "lasttoken": "last"}  # newer files name the mode itself
_INSTEAD = "set pooling to one of " + " or ".join(POOLINGS) + " to have another"


def read_pooling(
    path: Path, wanted: Literal["auto", "mean", "last"], hidden_size: int
) -> PoolingParams:
    """The default pooling of embeddings.

    wanted: the setting; "auto" is as the files of the folder say. Raises CheckpointError for files
    that ask for what is not supported.
    """
    modules = _modules(path)
    normalize = modules is None or "Normalize" in modules
    if wanted != "auto":
        return PoolingParams(pooling=wanted, normalize=normalize)
    folder = DEFAULT_FOLDER if modules is None else modules.get("Pooling")
    if folder is None:
        raise CheckpointError(f"{path / MODULES_FILE} has no Pooling module; {_INSTEAD}")
    file = path / folder / "config.json"
    if modules is None and not file.exists():
        return PoolingParams(pooling="last", normalize=normalize)
    config = ConfigFile.read(file)
    size = config.integer(
        "word_embedding_dimension", config.integer("embedding_dimension", hidden_size)
    )
    if size != hidden_size:
        raise config.wrong(
            "word_embedding_dimension", f"is {size}, but the model's states have {hidden_size}"
        )
    return PoolingParams(pooling=_mode(config), normalize=normalize)


def _modules(path: Path) -> dict[str, str] | None:
    """The modules' folders by kind, or None without a list of them."""
    file = path / MODULES_FILE
    if not file.exists():
        return None
    found: dict[str, str] = {}
    for module in ConfigFile.read_list(file):
        kind = module.text("type").rpartition(".")[2]
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise module.wrong("type", f"is {kind}, which is not supported; take another model")
        folder = PurePosixPath(module.text("path", ""))
        if folder.is_absolute() or ".." in folder.parts:
            raise module.wrong("path", "leads out of the checkpoint; it must be a folder in it")
        found[kind] = str(folder)
    return found


def _mode(config: ConfigFile) -> Literal["mean", "last"]:
    """The pooling mode that the config selects; there must be one."""
    named = config.text("pooling_mode", "")
    on = [_NAMES.get(named, named)] if named else []
    on += [
        _MODES.get(key, key)
        for key, value in config.values.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    match on:
        case ["mean"]:
            return "mean"
        case ["last"]:
            return "last"
    found = " and ".join(on) or "missing"
    raise config.wrong(
        "pooling_mode", f"is {found}, but one of mean and last is needed; {_INSTEAD}"
    )
