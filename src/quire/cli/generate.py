"""`quire generate`: prompts in, answers out, without a server."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli.options import CommandParser, add_engine_options, engine_config, engine_options
from quire.cli.sampling import add_sampling_options, sampling_params
from quire.errors import ConfigError

if TYPE_CHECKING:
    from quire.core.output import RequestOutput

EXAMPLES = (
    'quire generate --chat --prompt "red runing shoes" --temperature 0',
    "quire generate Qwen/Qwen3-0.6B --file prompts.txt --max-tokens 200 --json > answers.jsonl",
    "cat prompts.txt | quire generate --file -",
)

DEFAULT_MAX_TOKENS = 128


def make_parser() -> CommandParser:
    """All options of the command."""
    parser = CommandParser("generate", "Answer prompts, all of them at once.", EXAMPLES)
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt; may be given several times"
    )
    parser.add_argument("--file", metavar="PATH", help="one prompt per line; - is standard input")
    parser.add_argument(
        "--chat",
        action="store_true",
        default=False,
        help="send each prompt as a user's message through the model's chat template",
    )
    parser.add_argument(
        "--json", action="store_true", default=False, help="print one JSON object per prompt"
    )
    add_sampling_options(parser, max_tokens=str(DEFAULT_MAX_TOKENS))
    add_engine_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Answer all prompts and print the answers in the prompts' order."""
    args = make_parser().parse(argv)
    prompts = read_prompts(args)
    sampling = sampling_params(args, max_tokens=DEFAULT_MAX_TOKENS)
    from quire.engine.lean_import import lean_start

    with lean_start(engine_config(args)):
        from quire.llm import LLM

        llm = LLM(**engine_options(args))
    show = sys.stderr.isatty()
    if args.chat:
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        results = llm.chat(conversations, sampling, use_tqdm=show)
    else:
        results = llm.generate(prompts, sampling, use_tqdm=show)
    for line in lines(prompts, results, as_json=args.json):
        print(line)
    return 0


def read_prompts(args: Namespace) -> list[str]:
    """All prompts that were given. Raises ConfigError if there is none."""
    prompts: list[str] = list(vars(args).get("prompt", ()))
    if "file" in args:
        prompts += [line for line in _read(args.file).splitlines() if line.strip()]
    if not prompts:
        raise ConfigError("there is no prompt; give --prompt TEXT, or --file with one per line")
    return prompts


def lines(
    prompts: Sequence[str], results: Sequence[RequestOutput], *, as_json: bool
) -> Iterable[str]:
    """What is printed: JSON lines, or texts for people with the prompt above if there are many."""
    for prompt, result in zip(prompts, results, strict=True):
        if as_json:
            yield json.dumps(_record(prompt, result), ensure_ascii=False)
            continue
        if len(prompts) > 1:
            yield f"> {prompt}"
        yield from (output.text for output in result.outputs)
        if len(prompts) > 1:
            yield ""


def _record(prompt: str, result: RequestOutput) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "outputs": [
            {
                "text": output.text,
                "token_ids": output.token_ids,
                "finish_reason": output.finish_reason,
                "stop_reason": output.stop_reason,
            }
            for output in result.outputs
        ],
        "num_prompt_tokens": len(result.prompt_token_ids),
        "num_cached_tokens": result.num_cached_tokens,
    }


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"file {path!r} is not UTF-8 text; convert it") from None
    except OSError as error:
        raise ConfigError(f"file {path!r} cannot be read ({error.strerror}); check it") from None
