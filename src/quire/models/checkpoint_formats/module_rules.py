"""A checkpoint format that stores all weights alike, but for modules that rules name. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from quire.models.checkpoint_formats.checkpoint_format import (
    CheckpointFormat,
    StoredLinear,
    names_module,
)
from quire.models.checkpoints.config_file import ConfigFile

Rule = tuple[str, StoredLinear | None]  # a pattern of whole names, or of their beginnings


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRules(CheckpointFormat):
    """One layout for the linear layers of decoder layers, and exceptions.

    rules: the first whose pattern matches a module's name decides; None for not quantized.
    ignored: words of names of modules that are not quantized; only: of those that are, empty for
    all. has_head: whether the head is.
    """

    name: str
    linear: StoredLinear
    rules: tuple[Rule, ...] = ()
    ignored: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    has_head: bool = False
    otherwise: str = "none"

    def stored_linear(self, module: str) -> StoredLinear | None:
        """See `CheckpointFormat`."""
        for pattern, linear in self.rules:
            if re.match(pattern, module):
                return linear
        is_listed = any(names_module(words, module) for words in self.ignored)
        if is_listed or (module == "lm_head" and not self.has_head):
            return None
        is_chosen = not self.only or any(names_module(words, module) for words in self.only)
        return self.linear if is_chosen or module == "lm_head" else None


def check_patterns(config: ConfigFile, key: str, patterns: Iterable[str]) -> None:
    """Raise CheckpointError for what is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise config.wrong(
                key, f"holds {pattern!r}, which is no regular expression ({error}); correct it"
            ) from error
