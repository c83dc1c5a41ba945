"""`--served-model-name a b`, `--api-key k1 k2`: several values after one option, as in vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from quire.errors import ConfigError

NAMES = "--served-model-name"
FLAGS = (NAMES, "--api-key")


def with_joined_values(words: Sequence[str], flags: Mapping[str, argparse.Action]) -> list[str]:
    """A command line with all values of such an option as one word, with commas between.

    flags: the command's own. The last word after keys is the model if nothing else names it. Raises
    ConfigError where it may be either: vLLM reads it as a value, and a person may mean the model,
    which must not become a key.
    """
    joined = list(words)
    for flag in FLAGS:
        before, values, after = _split(joined, flags, flag)
        if len(values) < 2:
            continue
        others = [*before, *after]
        has_file = any(word.partition("=")[0] == "--config" for word in others)
        if _has_model(others, flags) or (has_file and flag == NAMES):
            joined = [*before, flag, ",".join(values), *after]
        elif flag == NAMES:
            raise ConfigError(
                f"{flag} {' '.join(values)} leaves open whether {values[-1]!r} is a name or the "
                f"model; write the model first: MODEL {flag} {values[0]}"
            )
        elif has_file:
            raise ConfigError(
                f"{flag} with {len(values)} values leaves open whether the last is a key or the "
                f"model; write keys with commas between, and a model before {flag}"
            )
        else:
            joined = [*before, flag, ",".join(values[:-1]), values[-1], *after]
    return joined


def _split(
    words: Sequence[str], flags: Mapping[str, argparse.Action], flag: str
) -> tuple[Sequence[str], list[str], Sequence[str]]:
    """The arguments before an option, its values, and the arguments after them."""
    if flag not in flags or flag not in words:
        return words, [], []
    begin = words.index(flag) + 1
    end = next((i for i in range(begin, len(words)) if words[i].startswith("-")), len(words))
    return words[: begin - 1], list(words[begin:end]), words[end:]


def _has_model(words: Sequence[str], flags: Mapping[str, argparse.Action]) -> bool:
    """Whether a word is neither an option nor the value of one, or `--model` names models."""
    is_value = False
    for word in words:
        flag, sign, _ = word.partition("=")
        if flag == "--model" or not (is_value or word.startswith("-")):
            return True
        takes_value = flag in flags and flags[flag].nargs is None
        is_value = takes_value and not sign and not is_value
    return False
