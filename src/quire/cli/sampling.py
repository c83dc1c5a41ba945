"""SamplingParams as command-line options, for the commands that ask the model directly."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quire.cli.options import CommandParser, chosen, human_int
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import ConfigError, InvalidRequestError
from quire.options import MOST, flag_of

if TYPE_CHECKING:
    from quire.tokenizer.tokenizer import Tokenizer

# The engine's --seed serves requests as well; log-probabilities and biases are for programs.
HELP = {
    "n": "answers per prompt",
    "temperature": "0 is greedy",
    "top_p": "keep the most probable tokens that make up this share",
    "top_k": "keep this many of the most probable tokens; 0 keeps all",
    "min_p": "keep tokens at least this probable, relative to the best one",
    "presence_penalty": "subtracted from logits of tokens already in the answer",
    "frequency_penalty": "the same, for each time that the token is in the answer",
    "repetition_penalty": "divides logits of tokens in prompt or answer",
    "stop": "text that ends the answer; may be given several times",
    "stop_token_ids": "token id that ends the answer; may be given several times",
    "include_stop_str_in_output": "keep the text that ended the answer",
    "max_tokens": "longest answer in tokens; -1: the rest of the context",
    "min_tokens": "shortest answer in tokens",
    "thinking_token_budget": "tokens of reasoning after which its end is forced; -1: any number",
    "ignore_eos": "continue past the model's end token",
    "bad_words": "text that is never produced; may be given several times",
    "skip_special_tokens": "leave special tokens out of the text",
}

MARKS_FIX = "use a model or a chat_template that shows it"

# options that constrain the answer: field of StructuredOutputs, help
CONSTRAINTS = {
    "json_schema": ("json", "JSON schema that the answer matches"),
    "regex": ("regex", "regular expression that the whole answer matches"),
    "grammar": ("grammar", "grammar that the answer matches, in GBNF or Lark"),
    "choice": ("choice", "text that the answer may be; may be given several times"),
}


def add_sampling_options(
    parser: CommandParser, *, max_tokens: str, without: Sequence[str] = ()
) -> None:
    """Add an option for each sampling param except `without`. max_tokens: its default as text."""
    group = parser.add_argument_group("sampling")
    defaults = msgspec.structs.asdict(SamplingParams())
    for name, text in HELP.items():
        if name in without:
            continue
        default = defaults[name]
        shown = max_tokens if name == "max_tokens" else -1 if default is None else default
        flag = flag_of(name)
        if isinstance(default, bool):
            shown = "on" if default else "off"
            action: Any = argparse.BooleanOptionalAction
            group.add_argument(
                flag, action=action, help=f"{text} (default: {shown})", default=argparse.SUPPRESS
            )
        elif isinstance(default, list):
            kind: Any = _token_id if name == "stop_token_ids" else str
            group.add_argument(flag, action="append", type=kind, metavar="X", help=text)
        else:
            kind = float if isinstance(default, float) else human_int
            metavar = "X" if kind is float else "N"
            kind = _token_limit if name == "max_tokens" else kind
            group.add_argument(flag, type=kind, metavar=metavar, help=f"{text} (default: {shown})")
    for name, (field, text) in CONSTRAINTS.items():
        action = "append" if field == "choice" else "store"
        flag = flag_of(name)
        group.add_argument(flag, action=action, metavar="TEXT", help=text)


def _token_limit(text: str) -> int | None:
    """A number of tokens; None for -1 and -2, as in llama.cpp, and for none."""
    limit = None if text.lower() == "none" else human_int(text)
    if limit in (-1, -2):
        return None
    if limit == 0:
        problem = f"must be between 1 and {MOST}, or -1 (until the answer ends), not 0"
        raise argparse.ArgumentTypeError(problem)
    return limit


def _token_id(text: str) -> int:
    """A token id. Raises ArgumentTypeError."""
    if "," in text:
        problem = f"must be one token id, not {text[:64]!r}; use the option once for each"
        raise argparse.ArgumentTypeError(problem)
    return human_int(text, "")


def take_defaults(
    sampling: SamplingParams, args: argparse.Namespace, defaults: Mapping[str, float]
) -> None:
    """Set the params that the command line leaves out to the model's defaults.

    Of max_tokens only to that of an override: the command has a default itself.
    """
    overrides = chosen(args, ["override_generation_config"]).values()
    is_limited = any("max_new_tokens" in text for text in overrides)
    for name, value in defaults.items():
        if name not in vars(args) and (is_limited or name != "max_tokens"):
            setattr(sampling, name, value)


def check_budget(sampling: SamplingParams, tokenizer: Tokenizer) -> None:
    """Refuse a thinking budget for a model whose reasoning has no known marks, before any prompt.

    Raises InvalidRequestError.
    """
    if sampling.thinking_token_budget is None:
        return
    from quire.server.parsing.reasoning_parser import reasoning_of, with_reasoning_marks

    reasoning = reasoning_of(tokenizer.chat_template_text)
    with_reasoning_marks(sampling, reasoning, tokenizer, fix=MARKS_FIX)


def _constraint(given: Mapping[str, Any]) -> StructuredOutputs:
    """The constraint that options ask for; its errors name the option. Raises ConfigError."""
    for name, text in given.items():
        flag = flag_of(name)
        if name in ("json_schema", "grammar") and os.path.isfile(text):
            fix = f'use {flag} "$(cat {shlex.quote(text)})"'
            raise ConfigError(
                f"{flag} {text[:64]!r} is a file, but the option takes its text; {fix}"
            )
    fields = {CONSTRAINTS[name][0]: value for name, value in given.items()}
    return StructuredOutputs(**fields, field=flag if len(given) == 1 else None)


def sampling_params(args: argparse.Namespace, *, max_tokens: int | None) -> SamplingParams:
    """The sampling params of the command line. Raises ConfigError."""
    given: dict[str, Any] = {"max_tokens": max_tokens} | chosen(args, HELP)
    constraints = chosen(args, CONSTRAINTS)
    try:
        if constraints:
            given["structured_outputs"] = _constraint(constraints)
        return SamplingParams(**given)
    except InvalidRequestError as error:
        raise ConfigError(str(error)) from None
