"""`--served-model-name a b`: several names after one option, as vLLM takes them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from quire.errors import ConfigError

FLAG = "--served-model-name"
_NAME_MODELS = ("--model", "--config")  # options that may name the model


def with_joined_names(words: Sequence[str], flags: Mapping[str, argparse.Action]) -> list[str]:
    """A command line with all names of the option as one word, with commas between.

    flags: the command's own. Raises ConfigError for several words where nothing else names the
    model: vLLM reads the last one as a name, and a person may mean it as the model.
    """
    before, names, after = _split(words, flags)
    if len(names) < 2:
        return list(words)
    if not _has_model([*before, *after], flags):
        raise ConfigError(
            f"{FLAG} {' '.join(names)} leaves open whether {names[-1]!r} is a name or the model; "
            f"write the model first: MODEL {FLAG} {names[0]}"
        )
    return [*before, FLAG, ",".join(names), *after]


def _split(
    words: Sequence[str], flags: Mapping[str, argparse.Action]
) -> tuple[Sequence[str], list[str], Sequence[str]]:
    """The arguments before the option, its names, and the arguments after them."""
    if FLAG not in flags or FLAG not in words:
        return words, [], []
    begin = words.index(FLAG) + 1
    end = next((i for i in range(begin, len(words)) if words[i].startswith("-")), len(words))
    return words[: begin - 1], list(words[begin:end]), words[end:]


def _has_model(words: Sequence[str], flags: Mapping[str, argparse.Action]) -> bool:
    """Whether a word is neither an option nor the value of one, or an option names models."""
    is_value = False
    for word in words:
        flag, sign, _ = word.partition("=")
        if flag in _NAME_MODELS or not (is_value or word.startswith("-")):
            return True
        takes_value = flag in flags and flags[flag].nargs is None
        is_value = takes_value and not sign and not is_value
    return False
