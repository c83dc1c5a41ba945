"""Names that scripts for vLLM import: EngineArgs, FlexibleArgumentParser, print_embeddings."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from quire.cli.foreign_options import own_argv
from quire.cli.options import add_option
from quire.compat.missing_names import ForeignMethods
from quire.compat.names_table import rows_of
from quire.config import iter_options, unknown_setting
from quire.errors import ConfigError, warn_no_effect


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse that takes underscores for dashes, and options under the names of other engines."""

    def parse_known_args(  # type: ignore[override]  # argparse has overloads by the namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse words, sys.argv's by default. An option that is refused ends the program."""
        given = sys.argv[1:] if args is None else list(args)
        try:
            own, notices = own_argv(given, self._option_string_actions, takes_model=False)
        except ConfigError as error:
            self.error(str(error))
        warn_no_effect(notices)
        return super().parse_known_args(own, namespace)


class _EngineArgs(ForeignMethods):
    """The settings of an engine as vLLM's scripts hold them; None: the setting's default.

    `LLM(**dataclasses.asdict(engine_args))` starts the engine.
    """

    def __new__(cls, *_: Any, **options: Any) -> Any:
        """Refuse unknown names as `LLM` does, by a ConfigError; a subclass may have its own."""
        for name in options if cls is EngineArgs else ():
            if name not in EngineArgs.__dataclass_fields__:
                raise ConfigError(unknown_setting(name, [o.name for _, o in iter_options()]))
        return super().__new__(cls)

    def settings(self) -> dict[str, Any]:
        """The settings by name, without a subclass's own fields."""
        return {name: getattr(self, name) for name in EngineArgs.__dataclass_fields__}

    @staticmethod
    def add_cli_args(parser: FlexibleArgumentParser) -> FlexibleArgumentParser:
        """Add every engine setting as an option; one that is not given is None."""
        options = [option for _, option in iter_options()]
        for option in options:
            add_option(parser, option)
        parser.set_defaults(**dict.fromkeys(option.name for option in options))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Any:
        """The settings among parsed options."""
        names = [field.name for field in dataclasses.fields(EngineArgs)]
        return cls(**{name: getattr(args, name) for name in names if name in args})


def _names() -> Iterable[str]:
    foreign = (row.name for row in rows_of("engine") + rows_of("server"))
    return dict.fromkeys([*(option.name for _, option in iter_options()), *foreign])


EngineArgs: Any = dataclasses.make_dataclass(
    "EngineArgs",
    [(name, Any, dataclasses.field(default=None)) for name in _names()],
    bases=(_EngineArgs,),
)
"""Its fields: Quire's settings, and other engines' names for them."""
EngineArgs.__module__ = __name__  # which pickle looks it up in


def print_embeddings(embeds: Sequence[float], prefix: str = "Embeddings") -> None:
    """Print the first numbers of a vector, and how many it has. prefix: of the line."""
    shown = ", ".join(f"{number:.4f}" for number in embeds[:4])
    more = ", ..." if len(embeds) > 4 else ""
    print(f"{prefix}: [{shown}{more}] (size={len(embeds)})")


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:  # noqa: ARG001 - vLLM's
    """Free what deleted objects of LLM hold; nothing else of a model outlives its LLM.

    Scratch memory of kernels stays for the process's next LLM: on a GPU up to 608 MiB, most of it
    to dequantize keys and values in 8 bits (`kernels/triton/attention/kv_dequantization.py`).
    """
    gc.collect()
