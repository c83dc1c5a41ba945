"""The tokenizer that the settings ask for."""

from __future__ import annotations

import os
from pathlib import Path

from quire.config import EngineConfig
from quire.errors import CheckpointError, ConfigError
from quire.hub import tokenizer_folder
from quire.tokenizer.tokenizer import Tokenizer
from quire.tokenizer.tokenizer_folder import (
    NoTokenizerError,
    check_folder,
    read_settings,
    read_templates,
)

_SETTINGS = (
    "or run the model with tokenizer='FOLDER', or with skip_tokenizer_init if prompts and answers "
    "are token ids"
)
_LONGEST_NAME = 4096
_LARGEST_TEMPLATE = 4 << 20  # bytes


def check_tokenizer(config: EngineConfig) -> None:
    """Raise CheckpointError if there is no tokenizer; reads none.

    Raise ConfigError if the setting chat_template is neither a template nor a file.
    """
    if not config.model.skip_tokenizer_init:
        _checked_folder(config)
        if config.model.chat_template is not None:
            read_template(config.model.chat_template)


def has_chat_template(config: EngineConfig) -> bool:
    """Whether chats can be rendered; reads small files alone. Raises as `load_tokenizer`."""
    if config.model.skip_tokenizer_init:
        return False
    folder = tokenizer_folder(config)
    given = config.model.chat_template is not None
    return given or bool(read_templates(folder, read_settings(folder)))


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """The model's tokenizer, or one without any token. Raises CheckpointError or ConfigError."""
    if config.model.skip_tokenizer_init:
        from quire.tokenizer.tokenless import Tokenless

        return Tokenless()
    given = config.model.chat_template
    template = None if given is None else read_template(given)
    return Tokenizer.from_folder(_checked_folder(config), template)


def _checked_folder(config: EngineConfig) -> Path:
    """The folder of `check_folder`; its error names the settings that engines have."""
    try:
        return check_folder(tokenizer_folder(config))
    except NoTokenizerError as error:
        raise CheckpointError(f"{error}, {_SETTINGS}") from None


def read_template(given: str | os.PathLike[str]) -> tuple[str, str]:
    """A template's source, and its text. given: a file, or the template itself."""
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"chat_template must be a file, or the template, not {given!r:.64}")
    given = os.fspath(given)
    if len(given) < _LONGEST_NAME and "{" not in given:
        from quire.input_file import read_text  # most models have a template

        try:
            return given, read_text(given, _LARGEST_TEMPLATE, again=True)
        except (OSError, ValueError) as error:  # or a name that no file can have
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(
                f"chat_template {given!r} cannot be read ({why}); use a file, or the template"
            ) from None
    return "chat_template", given
