"""`quire generate`: prompts in, answers out, without a server."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from quire.cli.options import CommandParser, add_engine_options, engine_config, engine_options
from quire.cli.prompt_texts import (
    MOST_BYTES,
    add_prompt_options,
    piped_before,
    piped_text,
    read_texts,
    template_variables,
    utf8,
)
from quire.cli.sampling import (
    add_sampling_options,
    check_budget,
    sampling_params,
    take_defaults,
)
from quire.config import BUNDLED_MODEL
from quire.errors import ConfigError, QuireError, UserError
from quire.hub import BUNDLED

if TYPE_CHECKING:
    from quire.core.request_output import RequestOutput
    from quire.core.sampling_params import SamplingParams
    from quire.engine.frontend.offline_engine import OnOutput
    from quire.llm import LLM

EXAMPLES = (
    'quire generate --chat --prompt "red runing shoes" --temperature 0',
    'quire generate "A list is"',
    'quire generate Qwen/Qwen3-0.6B "Name three rivers." --chat',
    "quire generate Qwen/Qwen3-0.6B --file prompts.txt --max-tokens 200 --json > answers.jsonl",
    "cat prompts.txt | quire generate --file -",
)

DEFAULT_MAX_TOKENS = 128
_PARAM = re.compile(r"\A(prompt|messages): ")  # by which errors tell of a field of a request


class Given(NamedTuple):
    """A prompt and where it comes from, for error messages."""

    text: str
    source: str


def make_parser() -> CommandParser:
    """The parser of the options of `quire generate`."""
    parser = CommandParser(
        "generate",
        "Answer prompts in one batch, without a server.",
        EXAMPLES,
        words="[MODEL] [TEXT] ",
        instead="put quotes around a prompt of several words",
    )
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt; may be given several times"
    )
    parser.add_argument("--file", metavar="PATH", help="one prompt per line; - is standard input")
    parser.add_switch(
        "--chat", "send each prompt as a user's message through the model's chat template"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message; implies --chat")
    parser.add_switch("--json", "print one JSON object per prompt")
    add_prompt_options(parser, "; implies --chat")
    add_sampling_options(parser, max_tokens=str(DEFAULT_MAX_TOKENS))
    add_engine_options(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="a prompt")
    return parser


def run(argv: Sequence[str]) -> int:
    """Answer all prompts and print the answers in the prompts' order, each as soon as it ends.

    Returns 1 if there are prompts without an answer, and 2 if that is all of them, by the caller's
    mistake.
    """
    parser = make_parser()
    args = parser.parse(argv)
    read_words(args)
    read_texts(args)
    prompts = read_prompts(args)
    sampling = sampling_params(args, max_tokens=DEFAULT_MAX_TOKENS)
    variables = template_variables(args)
    from quire.engine.startup.torch_import import dedicated_start

    with dedicated_start(engine_config(args)):
        from quire.llm import LLM

        llm = LLM(**engine_options(args))
    check_budget(sampling, llm.tokenizer)
    take_defaults(sampling, args, llm.info.sampling_defaults)
    texts = [prompt.text for prompt in prompts]
    streams = len(texts) == sampling.n == 1 and not args.json
    with AnswerLine() as line:
        take: dict[str, OnOutput]
        take = {"on_output": line.take} if streams else {"on_answer": printer(texts, args.json)}
        results = _answers(llm, args, texts, sampling, variables, take)
    for prompt, result in zip(prompts, results, strict=True):
        if result.error is not None:
            text = parser.in_flags(_PARAM.sub("", str(result.error)), argv)
            print(f"error: {prompt.source}: {text}", file=sys.stderr)
    return _status([result.error for result in results])


def _answers(
    llm: LLM,
    args: Namespace,
    texts: list[str],
    sampling: SamplingParams,
    variables: dict[str, Any],
    take: dict[str, OnOutput],
) -> list[RequestOutput]:
    """The answers to texts, or to messages where an option asks for it. Raises ConfigError.

    take: what gets them as they come, by its name; in a terminal they take a progress bar's place.
    """
    show, has_template = sys.stderr.isatty(), llm.tokenizer.has_chat_template
    has_bar = show and not sys.stdout.isatty()
    how: dict[str, Any] = {"use_tqdm": has_bar, "raise_errors": False, **take}
    if not (args.chat or variables or vars(args).keys() & {"system", "chat_template"}):
        if show and has_template:
            print("note: prompts are plain text; --chat sends them as messages", file=sys.stderr)
        return llm.generate(texts, sampling, **how)
    if not has_template:
        options = "--chat, --system and --default-chat-template-kwargs"
        raise ConfigError(f"this model has no chat template; leave {options} out")
    system = [{"role": "system", "content": args.system}] if "system" in args else []
    conversations = [[*system, {"role": "user", "content": text}] for text in texts]
    how["chat_template_kwargs"] = variables
    return llm.chat(conversations, sampling, **how)


class AnswerLine:
    """Prints an answer as it comes; as a context manager it ends the line, whatever ends them."""

    def __init__(self) -> None:
        self.is_open = False  # something has come, which may have no text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_open:
            print(flush=True)

    def take(self, output: RequestOutput) -> None:
        """Print a part of the answer."""
        self.is_open = True
        print("".join(part.text for part in output.outputs), end="", flush=True)


def read_words(args: Namespace) -> None:
    """A single word that is not a model is the only prompt, for the bundled model."""
    given = vars(args)
    if " " in given.get("model", "").strip() and "text" in given and not could_be_model(args.model):
        several = "for several prompts use --prompt TEXT for each, or --file"
        raise ConfigError(f"{args.model[:64]!r} is not a model; {several}")
    is_alone = "model" in given and not given.keys() & {"text", "prompt", "file"}
    if is_alone and not could_be_model(args.model):
        args.text = utf8("text")(given.pop("model"))
        shown = "standard input" if args.text == "-" else repr(args.text[:64])
        print(f"note: {shown} is the prompt, for {BUNDLED_MODEL}", file=sys.stderr)


def could_be_model(word: str) -> bool:
    """Whether a word names a folder, a file, a bundled model, or a repository of the hub."""
    is_repository = re.fullmatch(r"[\w.-]+/[\w.-]+", word) is not None
    return word in BUNDLED or is_repository or os.path.exists(os.path.expanduser(word))


def read_prompts(args: Namespace) -> list[Given]:
    """All prompts that were given. Raises ConfigError if there is none."""
    found, given = list[Given](), vars(args)
    if "text" in given:
        found.append(Given(args.text, "TEXT"))
    for number, text in enumerate(given.get("prompt", ()), 1):
        found.append(Given(text, f"--prompt {number}" if len(given["prompt"]) > 1 else "--prompt"))
    if "file" in args:
        name = "standard input" if args.file == "-" else args.file
        for number, line in enumerate(_read(args.file).split("\n"), 1):
            if line.strip():
                found.append(Given(line, f"{name}, line {number}"))
    elif found:
        found = _with_piped(found)
    if not found:
        raise ConfigError(
            "no prompt is given; use `quire generate MODEL TEXT`, --prompt TEXT, or --file with "
            "one per line (--file -: standard input)"
        )
    return found


def _with_piped(prompts: list[Given]) -> list[Given]:
    """The prompts with what is piped in before each, as in a chat; - is that alone."""
    words = [prompt.text for prompt in prompts]
    piped = piped_before(words)
    if "-" in words and not piped:
        raise ConfigError("standard input is empty; write a prompt instead of -")
    texts = (piped if word == "-" else "\n".join(filter(None, (piped, word))) for word in words)
    return [Given(text, prompt.source) for text, prompt in zip(texts, prompts, strict=True)]


def printer(prompts: Sequence[str], as_json: bool) -> OnOutput:
    """A function that prints the results of these prompts, which it gets one after another."""
    rest = iter(prompts)

    def show(result: RequestOutput) -> None:
        for text in lines(next(rest), result, as_json=as_json, is_one=len(prompts) == 1):
            print(text, flush=True)

    return show


def lines(prompt: str, result: RequestOutput, *, as_json: bool, is_one: bool) -> Iterable[str]:
    """The lines to print: JSON, or texts for people, below the prompt unless it is the only one."""
    if as_json:
        is_unicode = (sys.stdout.encoding or "utf-8").lower() == "utf-8"
        yield json.dumps(_record(prompt, result), ensure_ascii=not is_unicode)
        return
    if not is_one:
        yield f"> {prompt}"
    yield from (output.text for output in result.outputs)
    if not is_one:
        yield ""


def _status(errors: Sequence[QuireError | None]) -> int:
    if None in errors:
        return int(any(errors))
    return 2 if all(isinstance(error, UserError) for error in errors) else 1


def _record(prompt: str, result: RequestOutput) -> dict[str, Any]:
    record: dict[str, Any] = {
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
    if result.error is not None:
        record["error"] = _PARAM.sub("", str(result.error))
    return record


def _read(path: str) -> str:
    if path == "-":
        return piped_text()
    from quire.input_file import read_text  # usually not needed

    try:
        return read_text(path, MOST_BYTES, waits=True)
    except UnicodeDecodeError:
        raise ConfigError(f"file {path!r} is not UTF-8 text; convert it") from None
    except OSError as error:
        raise ConfigError(f"file {path!r} cannot be read ({error.strerror}); check it") from None
