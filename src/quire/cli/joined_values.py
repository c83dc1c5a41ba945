"""`--served-model-name a b`, `--api-key k1 k2`: several values after one option, as in vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

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
        if flag in flags and flag in joined:
            joined = _with_joined(joined, flags, flag)
    return joined


def _with_joined(
    words: Sequence[str], flags: Mapping[str, argparse.Action], flag: str
) -> list[str]:
    """A command line with the values of one such option joined at each of its places."""
    others, runs = _split(words, flag)
    several = [values for values in runs if len(values) > 1]
    has_file = any(word.partition("=")[0] == "--config" for part in others for word in part)
    model: list[str] = []  # or the one word that is it
    if several and not (_has_model(chain(*others), flags) or (has_file and flag == NAMES)):
        if flag == NAMES:
            raise ConfigError(
                f"{flag} {' '.join(several[0])} leaves open whether {several[0][-1]!r} is a name "
                f"or the model; write the model first: MODEL {flag} {several[0][0]}"
            )
        if has_file or len(several) > 1:
            raise ConfigError(
                f"{flag} with {len(several[0])} values leaves open whether the last is a key or "
                f"the model; write keys with commas between, and a model before {flag}"
            )
        model = [several[0].pop()]
    joined = list(others[0])
    for values, after in zip(runs, others[1:], strict=True):
        text = [",".join(values)] if values else []
        joined += [flag, *text, *(model if model and values is several[0] else ()), *after]
    return joined


def _split(words: Sequence[str], flag: str) -> tuple[list[list[str]], list[list[str]]]:
    """The arguments before, between and after all uses of an option, and the values of each use."""
    others, runs, is_value = [list[str]()], list[list[str]](), False
    for word in words:
        if word == flag:
            runs.append([])
            others.append([])
            is_value = True
            continue
        is_value = is_value and not word.startswith("-")
        (runs if is_value else others)[-1].append(word)
    return others, runs


def _has_model(words: Iterable[str], flags: Mapping[str, argparse.Action]) -> bool:
    """Whether a word is neither an option nor the value of one, or `--model` names models."""
    is_value = False
    for word in words:
        flag, sign, _ = word.partition("=")
        if flag == "--model" or not (is_value or word.startswith("-")):
            return True
        takes_value = flag in flags and flags[flag].nargs is None
        is_value = takes_value and not sign and not is_value
    return False
