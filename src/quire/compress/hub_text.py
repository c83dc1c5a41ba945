"""Text for calibration by its name: a file here, or one of a data set on the hub. No torch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from quire.compress import parquet_text
from quire.errors import ConfigError
from quire.hub import hub_client

_NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<file>.+))?")
_ENDS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".txt", ".txt.gz")


def text_file(name: str) -> Path:
    """The file of a text: a path, or `owner/name` or `owner/name:file` of a data set on the hub.

    Without a file's name it is the data set's first one of JSON lines or text, else of parquet; of
    those for training if it has some. Raises ConfigError.
    """
    path, found = Path(os.path.expanduser(name)), _NAME.fullmatch(name)
    if found is None or path.exists():
        return path
    return _downloaded(found["repository"], found["file"])


def _downloaded(repository: str, file: str | None) -> Path:
    client = hub_client()
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    client_error: Any = HfHubHTTPError.__mro__[1]  # of the HTTP client, whichever the hub's uses
    where = f"calibration: {repository}"
    try:
        chosen = file or _first_text(repository)
        if chosen.endswith(parquet_text.ENDING):
            parquet_text.pyarrow_for(f"{repository}:{chosen}")  # before it is downloaded
        return Path(client.hf_hub_download(repository, chosen, repo_type="dataset"))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError) as error:
        raise ConfigError(
            f"{where} is not a file here, and the hub cannot be reached; check the network (and "
            "HF_HUB_OFFLINE), name a file that was downloaded before as owner/name:file, or a "
            "file here"
        ) from error
    except EntryNotFoundError as error:
        raise ConfigError(f"{where} has no file {file!r}; see its list of files") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{where} is neither a file here nor a data set that the hub knows; check the "
            "spelling, or set HF_TOKEN if it is private"
        ) from error
    except (client_error, OSError) as error:
        raise ConfigError(
            f"{where} is not a file here and cannot be downloaded ({error}); check the network, or "
            "name a file here"
        ) from error


def _first_text(repository: str) -> str:
    files: list[str] = sorted(hub_client().HfApi().list_repo_files(repository, repo_type="dataset"))
    texts = [file for file in files if file.endswith(_ENDS)]
    # parquet last: it takes a library that is optional
    texts = texts or [file for file in files if file.endswith(parquet_text.ENDING)]
    if not texts:
        raise ConfigError(
            f"calibration: {repository} has no file of JSON lines, text or parquet "
            f"({', '.join((*_ENDS, parquet_text.ENDING))}); take another data set, or convert a "
            "file of it"
        )
    return next((file for file in texts if "train" in file), texts[0])
