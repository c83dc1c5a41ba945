"""The demo's requests: the bundled model's three tasks, sent together, with answers and figures."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from quire.bench.client import RequestResult, closed_loop
from quire.bench.local_server import local_server
from quire.bench.report import Summary, summarize, table
from quire.errors import ConfigError

EXAMPLES = Path(__file__).parents[1] / "bundled" / "examples.json"

MAX_TOKENS = 64
MIN_EXACT = 0.9  # share of the examples with one right answer that must be answered so

NEXT = """\
what next:
  quire chat                                 talk to it
  quire serve                                the same server, on port 8000
  quire serve Qwen/Qwen3-0.6B                another model, from the hub
  quire generate --chat --file prompts.txt   many prompts, without a server"""


class Example(msgspec.Struct):
    """A conversation to be continued. expected: the one right answer, where there is one."""

    task: str
    messages: list[dict[str, str]]
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The requests of a demo, their answers and the figures of the run."""

    examples: list[Example]
    results: list[RequestResult]
    summary: Summary

    @property
    def problems(self) -> list[str]:
        """The reasons why the demonstration failed; empty if it succeeded."""
        found = []
        if self.summary.num_failed:
            failures = Counter(e.error for e in self.results if e.error is not None)
            [(text, _)] = failures.most_common(1)
            found.append(
                f"{self.summary.num_failed} of {len(self.examples)} requests failed, "
                f"most of them with: {text}"
            )
        num_exact, num_known = _count_exact(zip(self.examples, self.results, strict=True))
        if num_exact < MIN_EXACT * num_known:
            found.append(
                f"{num_exact} of {num_known} answers are exactly as expected; "
                f"at least {MIN_EXACT:.0%} should be"
            )
        return found

    def as_json(self) -> str:
        """The figures of the run as one JSON object."""
        answers = [
            {
                "task": example.task,
                "input": example.messages[-1]["content"],
                "output": result.text,
                "expected": example.expected,
                "ttft_ms": None if result.ttft is None else round(result.ttft * 1000, 3),
                "error": result.error,
            }
            for example, result in zip(self.examples, self.results, strict=True)
        ]
        found: dict[str, Any] = {"summary": dataclasses.asdict(self.summary), "answers": answers}
        return json.dumps(found, ensure_ascii=False, indent=1)


def read_examples(path: Path = EXAMPLES) -> list[Example]:
    """The examples that come with the bundled model. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Example])
    except FileNotFoundError:
        raise ConfigError(f"the examples are missing at {path}; install quire again") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"the examples at {path} are damaged ({error}); install again") from None


async def run_demo(
    examples: list[Example],
    *,
    url: str | None,
    concurrency: int,
    console: Console,
    api_key: str | None = None,
) -> DemoResult:
    """Send all examples to the server at `url`, or to one started for the occasion.

    console: where progress is shown. Raises UserError or EngineError if there is no server, or it
    wants another key.
    """
    async with AsyncExitStack() as stack:
        if url is None:
            with console.status("starting a server with the bundled model"):
                url = await stack.enter_async_context(local_server(["--log-level", "warning"]))
        else:
            await _check_reachable(url)
        endpoint = f"{url.rstrip('/')}/v1/chat/completions"
        bodies = [_body(example) for example in examples]
        with _Progress(console, len(bodies)) as progress:
            results = await closed_loop(endpoint, bodies, concurrency, progress.count, api_key)
        if all((result.error or "").startswith("HTTP 401:") for result in results):
            raise ConfigError(f"{url} needs another API key; set --api-key or $QUIRE_API_KEY")
    return DemoResult(examples, results, summarize(results))


async def _check_reachable(url: str) -> None:
    where = urlsplit(url)
    try:
        _, writer = await asyncio.open_connection(where.hostname, where.port or 80)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"no server answers at {url} ({reason}); start one with `quire serve`, "
            "or leave out --url"
        ) from None
    writer.close()


def print_result(demo: DemoResult, console: Console) -> None:
    """Show the answers, the figures, and what to try next."""
    pairs = list(zip(demo.examples, demo.results, strict=True))
    for task in dict.fromkeys(example.task for example in demo.examples):
        own = [pair for pair in pairs if pair[0].task == task]
        console.print(_heading(task, own), style="bold")
        for example, result in own:
            console.print(_answer_line(example, result), soft_wrap=not console.is_terminal)
        console.print()
    console.print(table(demo.summary))
    console.print(f"\n{NEXT}", highlight=False)


def _body(example: Example) -> bytes:
    return msgspec.json.encode(
        {
            "messages": example.messages,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def _is_exact(example: Example, result: RequestResult) -> bool:
    return example.expected is not None and result.text.strip() == example.expected.strip()


def _count_exact(pairs: Iterable[tuple[Example, RequestResult]]) -> tuple[int, int]:
    """The number of answers that are exactly as expected, and of examples that expect one."""
    known = [_is_exact(*pair) for pair in pairs if pair[0].expected is not None]
    return sum(known), len(known)


def _heading(task: str, pairs: Sequence[tuple[Example, RequestResult]]) -> str:
    num_exact, num_known = _count_exact(pairs)
    title = task.replace("_", " ")
    return f"{title}: {num_exact} of {num_known} exactly as expected" if num_known else title


def _answer_line(example: Example, result: RequestResult) -> Text:
    line = Text("  ")
    if result.error is not None:
        line.append("✗ ", "red")
    elif _is_exact(example, result):
        line.append("✓ ", "green")
    else:
        line.append("· ", "dim")
    line.append(example.messages[-1]["content"], "dim").append(" → ")
    line.append(result.error or result.text.strip())
    if example.expected is not None and not _is_exact(example, result):
        line.append(f"  (expected: {example.expected})", "dim")
    return line


class _Progress:
    """A bar of answered requests and of the tokens they brought."""

    def __init__(self, console: Console, total: int) -> None:
        bar = (TextColumn("answers"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*bar, TextColumn("{task.fields[tokens]} tokens"), console=console)
        self._task = self._bar.add_task("", total=total, tokens=0)
        self._num_tokens = 0

    def __enter__(self) -> _Progress:
        self._bar.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._bar.__exit__(*details)

    def count(self, result: RequestResult) -> None:
        self._num_tokens += result.num_tokens
        self._bar.update(self._task, advance=1, tokens=self._num_tokens)
