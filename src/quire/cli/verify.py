"""`quire verify`: what a quantized model loses against its base."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from quire.cli.options import CommandParser
from quire.cli.verification import (
    add_verification_options,
    device_of,
    folder_of,
    limits_of,
    show_report,
    tasks_of,
    tokenizer_of,
)
from quire.errors import ConfigError
from quire.model_folder import named_path

EXAMPLES = (
    "quire verify quire-tiny ./tiny-awq",
    "quire verify ./my-model ./my-model-gptq --quality-limits perplexity=0.01,cosine=0.99",
)


def make_parser() -> CommandParser:
    """The parser of the options of `quire verify`."""
    parser = CommandParser(
        "verify", "Measure what a quantized model loses against its base.", EXAMPLES,
        words="BASE QUANTIZED ",
    )  # fmt: skip
    parser.add_argument("base", nargs="?", metavar="BASE", help="the 16-bit model")
    parser.add_argument("quantized", nargs="?", metavar="QUANTIZED", help="its quantized copy")
    add_verification_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Measure, store the report with the quantized weights, and print it."""
    args = make_parser().parse(argv)
    for name in ("base", "quantized"):
        if name not in args:
            raise ConfigError(f"{name.upper()} is missing; as in `{EXAMPLES[0]}`")
    limits, (base, quantized) = limits_of(args), map(folder_of, (args.base, args.quantized))
    note_quantized(base)
    device, (tokenizer, samples) = device_of(args), tokenizer_of(args, base)
    tasks = tasks_of(args, tokenizer, base)
    return show_report(args, base, quantized, tasks, samples, limits, device)


def note_quantized(base: Path) -> None:
    """Say that losses are those beside a base which has lost something itself, if it has."""
    from quire.models.config.model_config import ModelConfig

    if (stored := ModelConfig.from_folder(base).checkpoint_format) is not None:
        text = f"{named_path(base)} is quantized itself ({stored.name}); for all that is lost"
        print(f"note: {text} take the 16-bit model as base", file=sys.stderr)
