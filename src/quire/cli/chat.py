"""`quire chat`: a conversation in the terminal, or with whatever is piped in."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from quire.cli.chat_lines import read_messages
from quire.cli.generate import AnswerLine, could_be_model
from quire.cli.options import CommandParser, add_engine_options, engine_config
from quire.cli.prompt_texts import (
    add_prompt_options,
    piped_before,
    read_texts,
    template_variables,
    utf8,
)
from quire.cli.sampling import (
    MARKS_FIX,
    add_sampling_options,
    check_budget,
    sampling_params,
    take_defaults,
)
from quire.config import BUNDLED_MODEL
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.prompt_encoding import token_ids_of
from quire.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:  # imported on use, since it takes a while
    from quire.engine.frontend.async_engine import AsyncEngine

EXAMPLES = (
    "quire chat",
    "quire chat Qwen/Qwen3-0.6B --temperature 0.7 --system 'Answer in one sentence.'",
    "echo 'red runing shoes' | quire chat",
    "quire chat Qwen/Qwen3-0.6B 'Name three rivers.'",
)

COMMANDS_HELP = """\
/help          show these commands
/system TEXT   start again with a system message; without TEXT, with none
/reset         start again
/quit          leave (or Ctrl-D); Ctrl-C stops an answer
\"\"\"            begins and ends a message of several lines"""

# of Ollama and llama.cpp: Quire's
_ALIASES = {"/bye": "/quit", "/exit": "/quit", "/q": "/quit", "/?": "/help", "/clear": "/reset"}
_AT_START = ("/set", "/show", "/load", "/save", "/read", "/regen")

Run = Callable[[Coroutine[Any, Any, None]], None]


def make_parser() -> CommandParser:
    """The parser of the options of `quire chat`."""
    parser = CommandParser(
        "chat",
        f"Talk to a model in the terminal.\n\nin the chat:\n{COMMANDS_HELP}",
        EXAMPLES,
        words="[MODEL] [TEXT] ",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_prompt_options(parser)
    add_sampling_options(parser, max_tokens="the rest of the context", without=["n"])
    add_engine_options(parser)
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="answer this message, after piped text if there is some, and exit",
    )
    return parser


def run(argv: Sequence[str]) -> int:
    """Run `quire chat` until the input ends, or answer the message of the command line."""
    args = make_parser().parse(argv)
    read_words(args)
    read_texts(args)
    sampling, config = sampling_params(args, max_tokens=None), engine_config(args)
    variables = template_variables(args)
    words = vars(args).get("text")
    text = message(words) if words else None  # before the model is loaded
    from quire.engine.frontend.async_engine import AsyncEngine
    from quire.engine.startup.torch_import import dedicated_start

    with asyncio.Runner() as runner:
        with dedicated_start(config):
            engine = runner.run(AsyncEngine.start(config))
        try:
            if not engine.tokenizer.has_chat_template:
                problem = "this model has no chat template, so it cannot chat; use quire generate"
                raise ConfigError(problem)
            check_budget(sampling, engine.tokenizer)
            take_defaults(sampling, args, engine.info.sampling_defaults)
            system = vars(args).get("system", "")
            chat = Chat(engine, sampling, runner.run, system=system, variables=variables)
            if text is not None:
                return chat.answer(text)
            say(f"{engine.info.model_name}: /help for commands, /reset for another subject")
            return chat.run(read_messages())
        finally:
            runner.run(engine.close())


def read_words(args: argparse.Namespace) -> None:
    """Several words that are not a model are a message, for the bundled one."""
    given = vars(args)
    if len(given.get("model", "").split()) > 1 and not could_be_model(args.model):
        args.text = [utf8("text")(given.pop("model")), *given.get("text", ())]
        say(f"note: {args.text[0][:64]!r} is the message, for {BUNDLED_MODEL}")
    elif "model" in given and not given.get("text") and not could_be_model(args.model):
        word = shlex.quote(args.model[:64])
        say(f"note: {word} is read as a model; a message is `quire chat {BUNDLED_MODEL} {word}`")


def message(words: Sequence[str]) -> str:
    """The message of a command line, with what is piped in before it, as Ollama has it.

    Raises ConfigError for an empty one.
    """
    own = " ".join(word for word in words if word != "-").strip()  # - is what is piped in
    text = "\n".join(filter(None, (piped_before(words), own)))
    if not text:
        raise ConfigError("the message is empty; write it, or leave it out to type messages")
    return text


class Chat:
    """One conversation. Answers go to stdout, everything about them to stderr."""

    def __init__(
        self,
        engine: AsyncEngine,
        sampling: SamplingParams,
        run: Run,
        *,
        system: str = "",
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """A conversation without messages yet. variables: of the chat template."""
        self._variables = variables or {}
        self._engine = engine
        self._sampling = sampling
        self._run = run
        self._num_failures = 0
        self._prompt: list[int] = []  # of the latest answer
        self.messages: list[dict[str, str]] = []
        self._begin(system)

    def answer(self, text: str) -> int:
        """Answer one message; returns the exit status. Raises what ends the answer."""
        self.messages.append({"role": "user", "content": text})
        self._run(self._answer([]))
        return 0

    def run(self, messages: Iterator[str]) -> int:
        """Answer each message; returns the exit status: 1 for input that ends after a failure."""
        for text in messages:
            word, _, rest = text.rstrip().partition(" ")
            word = _ALIASES.get(word, word)
            if word == "/quit":
                return 0
            if word.startswith("/"):
                self._command(word, rest.strip())
            elif text.strip():
                self._send_request(text.strip())
        return 1 if self._num_failures and not sys.stdin.isatty() else 0

    def _command(self, word: str, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if (word, name) == ("/set", "system"):  # as in Ollama, which takes quotes
            word, rest = "/system", text.strip(' "')
        match word:
            case "/help":
                say(COMMANDS_HELP)
            case "/system":
                self._begin(rest)
            case "/reset":
                self._begin(self._system)
            case _ if word in _AT_START:
                say(f"there is no {word} here; use options of `quire chat`")
            case _:
                fix = "/help lists them; a space before it makes it a message"
                say(f"unknown command {word}; {fix}")
                self._num_failures += 1

    def _begin(self, system: str) -> None:
        self._system = system
        self.messages = [{"role": "system", "content": system}] if system else []

    def _send_request(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            self._run(self._answer(answer))
        except InvalidRequestError as error:
            hint = "; /reset starts again" if len(self.messages) > 2 else ""
            say(f"error: {error}{hint}")
            self._num_failures += 1
            self.messages.pop()
            return
        except KeyboardInterrupt:
            say("[stopped]" if answer else "\n[stopped]")
        self.messages.append({"role": "assistant", "content": self._said("".join(answer))})

    def _said(self, text: str) -> str:
        """The part of an answer behind its reasoning, which later prompts are without."""
        # not while a model loads
        from quire.server.parsing.answer_sampling import reasoning_config
        from quire.server.parsing.output_events import join
        from quire.server.parsing.output_parser import OutputParser
        from quire.server.parsing.reasoning_parser import reasoning_of

        tokenizer = self._engine.tokenizer
        reasoning = reasoning_of(tokenizer.chat_template_text)
        parser = OutputParser(reasoning_config(reasoning, self._prompt, tokenizer))
        said = join([*parser.push(text), *parser.finish()]).text
        return said or text  # where it was stopped before that, what there is

    async def _answer(self, answer: list[str]) -> None:
        """Print an answer as it comes, and append its parts to `answer`."""
        from quire.server.parsing.answer_sampling import chat_sampling  # not while a model loads

        speed = Speed()
        tokenizer, limits = self._engine.tokenizer, self._engine.info.limits
        rendered = tokenizer.chat_prompt(list(self.messages), **self._variables)
        self._prompt = prompt = token_ids_of(rendered, tokenizer, limits, is_rendered=True)
        sampling = chat_sampling(self._sampling, prompt, tokenizer, fix=MARKS_FIX)
        parts = self._engine.generate(prompt, sampling)
        with AnswerLine() as line:
            async with aclosing(parts) as outputs:
                async for output in outputs:
                    speed.count(sum(len(part.token_ids) for part in output.outputs))
                    answer += [part.text for part in output.outputs]
                    line.take(output)
        say(dim(str(speed)))


class Speed:
    """Number of tokens and duration of one answer."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._first = self._last = self._begin
        self._num_first = self._num_tokens = 0

    def count(self, num_tokens: int) -> None:
        """Count tokens that have just arrived."""
        self._last = time.perf_counter()
        if not self._num_tokens:
            self._first, self._num_first = self._last, num_tokens
        self._num_tokens += num_tokens

    def __str__(self) -> str:
        first = f"first token after {(self._first - self._begin) * 1000:.0f} ms"
        if self._last > self._first:
            rate = (self._num_tokens - self._num_first) / (self._last - self._first)
            return f"[{self._num_tokens} tokens, {rate:.1f} tokens/s, {first}]"
        return f"[{self._num_tokens} tokens, {first}]"


def say(text: str) -> None:
    """Print a message to the user on stderr."""
    print(text, file=sys.stderr, flush=True)


def dim(text: str) -> str:
    """The text in grey, on a terminal that has colours, unless NO_COLOR is set."""
    is_plain = os.environ.get("TERM", "dumb") in ("", "dumb") or os.environ.get("NO_COLOR")
    return text if is_plain or not sys.stderr.isatty() else f"\x1b[2m{text}\x1b[0m"
