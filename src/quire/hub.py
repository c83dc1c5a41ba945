"""From a model's name to a folder on this machine. No torch, and no look at what is in the folder.

A name is, in this order: the name of a bundled model, a local folder or GGUF file, a repository on
the hub.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from quire.config import EngineConfig
from quire.errors import CheckpointError
from quire.model_folder import (
    BUNDLED_FOLDER,
    POOLING_FILES,
    QUANTIZATION_FILES,
    check_kind,
    check_model_file,
    check_model_folder,
    gguf_file,
    gguf_models,
    is_gguf,
    shown_names,
)

BUNDLED = ("quire-tiny", "quire-tiny-draft")
# of weights: a name that ends so is meant as a file
_FILE_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ggml", ".onnx")
# a page of the hub: of a model, or of what is in it at a revision
_PAGE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<name>[^?#]*?)/*"
    r"(?:/(?:tree|blob|resolve)/(?P<revision>[^/?#]+)[^?#]*)?(?:[?#].*)?"
)
_NO_HOME = "home directory"  # of pathlib's RuntimeError for a user who has none
_OWNERS = "; a name on the hub begins with its owner, as in meta-llama/Llama-3.2-1B-Instruct"
_LONGEST_NAME = 255  # characters that a message has of one
_LIST_SECONDS = 10  # for the names of a repository's files, which only a message has
# what a model needs to run; no pickles, no other frameworks' weights, no original checkpoints
_NEEDED = ("config.json", "tokenizer.json")
# AutoGPTQ called its files gptq_model-4bit-128g.safetensors and the like
_WEIGHTS = [
    f"{name}{ending}"
    for name in ("model*", "gptq_model*")
    for ending in (".safetensors", ".safetensors.index.json")
]
_SMALL = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "modules.json",
    POOLING_FILES,
    "quire_quality.json",
    *QUANTIZATION_FILES,
]


def resolve_model(
    name: str,
    revision: str | None = None,
    *,
    weights: bool = True,
    is_tokenizer: bool = False,
) -> Path:
    """The folder with the model's files, downloaded if need be.

    revision: branch, tag or commit on the hub; only for hub names. weights: False: those files are
    not downloaded, as for what the others decide. is_tokenizer: a repository with a tokenizer alone
    will do. With HF_HUB_OFFLINE=1 only what was downloaded before is used. Raises CheckpointError,
    with the fix, when nothing is found.
    """
    if name in BUNDLED:
        _refuse_revision(name, revision, "comes with this version of quire")
        return _bundled(name)
    local = _local(name, revision)
    return local if local is not None else _of_hub(name, revision, weights, is_tokenizer)


def _local(name: str, revision: str | None) -> Path | None:
    """The folder of a local folder or GGUF file; None if it is neither. Raises CheckpointError."""
    try:
        return _found(name, revision)
    except OSError as error:  # no permission, a name that is too long
        raise CheckpointError(
            f"{name[:_LONGEST_NAME]!r} cannot be read ({error.strerror}); check its permissions, "
            "or name another model"
        ) from error


def _found(name: str, revision: str | None) -> Path | None:
    folder = Path(os.path.expanduser(name))  # unlike Path's, leaves an unknown ~user as it is
    if name.strip() and folder.is_dir():
        _refuse_revision(name, revision, "is a local folder")
        check_model_folder(folder)
        gguf = gguf_file(folder)
        return folder if gguf is None else _of_gguf(gguf)
    if folder.is_file():
        if is_gguf(folder):
            _refuse_revision(name, revision, "is a local file")
            return _of_gguf(folder)
        check_model_file(folder)
    return None


def _of_hub(given: str, revision: str | None, weights: bool, is_tokenizer: bool) -> Path:
    """The snapshot of a repository, given by its name or a page of it."""
    name = given
    if page := _PAGE.fullmatch(given):
        name = page["name"]
        revision = revision or (page["revision"] and unquote(page["revision"]))
    if near := difflib.get_close_matches(name, BUNDLED, n=1, cutoff=0.8):
        raise CheckpointError(f"there is no model {name!r}; did you mean {near[0]!r}?")
    if given.lower().endswith(_FILE_SUFFIXES):
        raise CheckpointError(f"there is no file {given!r}; use a file, a folder or a hub name")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name.strip():
        raise CheckpointError(f"there is no folder {name!r}; use a folder or a hub name")
    folder = _download(name, revision, is_small=True)
    commit = _commit(folder) or revision
    is_enough = is_tokenizer and any(folder.glob("tokenizer*"))
    if not is_enough and not all((folder / each).is_file() for each in _NEEDED):
        _refuse_by_files(name, commit, folder)
    if not weights:
        return folder
    folder = _download(name, commit, is_small=False)
    if not any(folder.glob("*.safetensors")):
        _refuse_by_files(name, commit, folder)
    return folder


def _refuse_by_files(name: str, revision: str | None, folder: Path) -> None:
    """Raise CheckpointError for a repository that lacks files, by those that the hub lists.

    What may still be a model is left to who reads its folder.
    """
    files = _files_of(name, revision)
    found = gguf_models(files)
    if found and not any(file.endswith(".safetensors") for file in files):
        raise CheckpointError(
            f"{name} has GGUF files ({shown_names(found)}); download one (`hf download {name} "
            "FILE`, or all with -of- in their names) and name that file"
        )
    if not (folder / "config.json").is_file():
        check_kind(name, files)
        text = f"{name} has no config.json; name a repository with a model's files"
        raise CheckpointError(text)


def _files_of(name: str, revision: str | None) -> Sequence[str]:
    """Names of a repository's files; none where the hub does not list them now."""
    with suppress(Exception):  # whatever fails, as the network: it only says more
        return _listed_files(name, revision)
    return ()


@functools.cache  # which stores no failure
def _listed_files(name: str, revision: str | None) -> Sequence[str]:
    from huggingface_hub import HfApi

    about = HfApi().model_info(name, revision=revision, timeout=_LIST_SECONDS)
    return sorted(each.rfilename for each in about.siblings or ())


def hub_name(given: str) -> str:
    """The name of a repository that is given by its name or a page of it."""
    page = _PAGE.fullmatch(given)
    return given if page is None else page["name"]


def pinned(config: EngineConfig) -> EngineConfig:
    """The settings with the commits that the names of the hub in them stand for now.

    Else a process that starts later, in place of one that has died, would load what has been
    uploaded meanwhile. Downloads what is not there. Raises CheckpointError.
    """
    model, folder = config.model, model_folder(config)
    revision, tokenizer = model.revision, model.tokenizer
    if model.model not in BUNDLED and _local(model.model, revision) is None:
        revision = _commit(folder) or revision
    if tokenizer is not None:
        tokenizer = str(tokenizer_folder(config))
    model = dataclasses.replace(model, revision=revision, tokenizer=tokenizer)
    return dataclasses.replace(config, model=model)


def _commit(folder: Path) -> str | None:
    """The commit of a snapshot, whose folder has that name; None for another folder."""
    return folder.name if folder.parent.name == "snapshots" else None


def config_folder(config: EngineConfig) -> Path:
    """The folder with the model's config files; weights are not downloaded for them."""
    return resolve_model(config.model.model, config.model.revision, weights=False)


def model_folder(config: EngineConfig) -> Path:
    """The folder with the model's files; without weights where none are loaded."""
    model = config.model
    return resolve_model(model.model, model.revision, weights=model.load_format == "auto")


def tokenizer_folder(config: EngineConfig) -> Path:
    """The folder with the tokenizer: the model's, unless another is named."""
    if config.model.tokenizer is not None:
        return resolve_model(config.model.tokenizer, weights=False, is_tokenizer=True)
    return config_folder(config)


def _of_gguf(file: Path) -> Path:
    """The folder with config files made of a GGUF file's metadata."""
    from quire.gguf.gguf_folder import gguf_folder  # most models need none

    return gguf_folder(file)


def _refuse_revision(name: str, revision: str | None, why: str) -> None:
    if revision is not None:
        raise CheckpointError(f"revision is {revision!r}, but {name} {why}; leave revision out")


def _bundled(name: str) -> Path:
    folder = BUNDLED_FOLDER / name
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"the bundled model {name} is not in this installation ({folder}); install quire again "
            "or name another model"
        )
    return folder


def hub_client() -> Any:
    """The module of the hub's client.

    Raises CheckpointError where it cannot read a variable of the environment, as HF_ENDPOINT.
    """
    import huggingface_hub  # takes half a second to import

    try:
        huggingface_hub.snapshot_download  # noqa: B018  # which imports what reads them
    except ValueError as error:
        raise CheckpointError(
            f"the hub's client cannot be loaded ({error}); correct HF_ENDPOINT, or the other "
            "variables HF_... of the environment"
        ) from error
    return huggingface_hub


@functools.cache  # a process asks the hub once, and has one snapshot from then on
def _download(name: str, revision: str | None, is_small: bool) -> Path:
    """Fetch a snapshot from the hub, or find it in the local cache. is_small: no weights."""
    client = hub_client()
    patterns = _SMALL if is_small else _SMALL + _WEIGHTS
    try:
        return Path(client.snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # of a dozen kinds, some of which (InvalidURL) have no other base
        raise CheckpointError(f"{name!r} {_problem(error, name, revision)}") from error


def _problem(error: Exception, name: str, revision: str | None) -> str:
    """The rest of a message that begins with the name: why it cannot be downloaded, and the fix."""
    from huggingface_hub import errors

    match error:
        case errors.HFValidationError() if ":" in name:
            return (
                "is not a name on the hub, which has no tags; leave the tag out, or download a "
                "GGUF file (hf download REPO FILE) and name it as the model"
            )
        case errors.HFValidationError():
            return (
                "is neither a folder nor a name that the hub could have; use a folder, or a hub "
                "name such as 'meta-llama/Llama-3.2-1B-Instruct'"
            )
        case errors.GatedRepoError():
            return "needs its owner's permission; ask for it on its page, then set HF_TOKEN"
        case errors.RevisionNotFoundError():
            return f"has no revision {revision!r} on the hub; leave revision out for the newest"
        case errors.RepositoryNotFoundError():
            return (
                "is not a folder here, and the hub does not know it; check the spelling, or set "
                f"HF_TOKEN if it is private{_owner_hint(name)}"
            )
        case errors.LocalEntryNotFoundError():
            return (
                "is not a folder here, was not downloaded before, and the hub cannot be reached; "
                f"check the network (and HF_HUB_OFFLINE), or use a folder{_owner_hint(name)}"
            )
    fix = "check HF_ENDPOINT and the proxies in the environment"
    if _NO_HOME in str(error):
        fix = "set HF_HOME to a folder for downloads"
    elif isinstance(error, errors.HfHubHTTPError | OSError | RuntimeError):
        fix = "try again"
    return f"cannot be downloaded ({error}); {fix}"


def _owner_hint(name: str) -> str:
    """For names such as Ollama's, which are not the hub's."""
    return "" if "/" in name else _OWNERS
