"""A crowd that asks a server for anything, in any dialect, and often leaves before it is answered.

Lanes act one after the other without pause, so the server is full all the time. What is asked is
drawn from a seed; what comes back is only counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reliability.model import POISON
from reliability.trouble import bad_bodies, bad_requests
from reliability.wire import Connection, ask, post_bytes

ABORTED, BAD, SLOW, POISONED, LOOKS = 0.3, 0.1, 0.01, 0.01, 0.05
WORDS = (
    "red",
    "running",
    "shoes",
    "for",
    "women",
    "who",
    "learn",
    "to",
    "swim",
    "in",
    "cold",
    "sea",
)
HANG_SECONDS = 300.0

Request = tuple[str, dict[str, Any]]


@dataclass
class Tally:
    """Answers that the crowd has seen: by path and status; 0 is one that it did not wait for."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    hangs: int = 0

    def unexplained(self) -> list[str]:
        """Answers, hangs and errors that a server that keeps its word never gives."""
        found = [
            f"{count} x {status} from {path}"
            for (path, status), count in self.answers.items()
            if status >= 500 and path != "poison"
        ]
        return found + [f"{n} x {text}" for text, n in self.broken.items()] + self._others()

    def _others(self) -> list[str]:
        lucky = self.answers["poison", 200]
        texts = [f"{self.hangs} requests hung"] if self.hangs else []
        return texts + ([f"{lucky} x 200 from NaN"] if lucky else [])


class Crowd:
    """Many clients at once. Each has a lane: it sends one request after the other."""

    def __init__(self, url: str, seed: int) -> None:
        self.tally = Tally()
        self._url = url
        self._rng = random.Random(seed)

    async def act(self, num_lanes: int, seconds: float) -> None:
        """Keep the server busy."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._lane(end) for _ in range(num_lanes)))

    async def _lane(self, end: float) -> None:
        while time.monotonic() < end:
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    await self._deed()
            except TimeoutError:
                self.tally.hangs += 1
            except (OSError, EOFError) as error:
                self.tally.broken[repr(error)] += 1

    async def _deed(self) -> None:
        draw = self._rng.random()
        for share, deed in (
            (BAD, self._be_wrong),
            (SLOW, self._read_nothing),
            (POISONED, self._send_poison),
            (LOOKS, self._look),
        ):
            if draw < share:
                return await deed()
            draw -= share
        await self._ask()

    async def _ask(self) -> None:
        path, body = self._rng.choice(DIALECTS)(self._rng)
        body["stream"] = self._rng.random() < 0.6
        async with await Connection.open(self._url) as connection:
            asking = asyncio.create_task(connection.ask(path, body))
            patience = self._rng.expovariate(2.0) if self._rng.random() < ABORTED else None
            await asyncio.wait({asking}, timeout=patience)
            if asking.done():
                self.tally.answers[path, asking.result().status] += 1
                return
            connection.close(reset=self._rng.random() < 0.5)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            self.tally.answers[path, 0] += 1

    async def _be_wrong(self) -> None:
        bad = [post_bytes("/v1/completions", body) for body in bad_bodies()] + bad_requests()
        async with await Connection.open(self._url) as connection:
            connection.write(self._rng.choice(bad))
            status, _ = await connection.head()
            self.tally.answers["bad", status] += 1

    async def _read_nothing(self) -> None:
        """Wait until the server disconnects, or until buffers have taken the whole answer."""
        body = {"prompt": phrase(self._rng), "max_tokens": 200, "logprobs": 5, "stream": True}
        async with await Connection.open(self._url, receive_bytes=4096) as connection:
            connection.send("/v1/completions", body | {"ignore_eos": True})
            await asyncio.sleep(10.0)
            self.tally.answers["slow", 0] += 1

    async def _send_poison(self) -> None:
        body = {"prompt": [POISON, *range(100, 140)], "max_tokens": 5}
        reply = await ask(self._url, "/v1/completions", body)
        self.tally.answers["poison", reply.status] += 1

    async def _look(self) -> None:
        path = self._rng.choice(
            ("/metrics", "/live", "/health", "/v1/models", "/openapi.json", "/")
        )
        self.tally.answers[path, (await ask(self._url, path)).status] += 1


def phrase(rng: random.Random, most: int = 40) -> str:
    """Some words, often with a beginning that other phrases have, too."""
    shared = " ".join(WORDS) + " " if rng.random() < 0.3 else ""
    return shared + " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def _completion(rng: random.Random) -> Request:
    body = {"prompt": phrase(rng), "max_tokens": rng.randint(1, 150), "ignore_eos": True}
    body |= {"n": rng.choice((1, 1, 1, 3)), "logprobs": rng.choice((None, None, 3))}
    return "/v1/completions", body | {"seed": rng.randrange(1000), "stop": rng.choice((None, "q"))}


def _long_prompt(rng: random.Random) -> Request:
    prompt = [rng.randrange(200, 2000) for _ in range(rng.randint(200, 1500))]
    return "/v1/completions", {"prompt": prompt, "max_tokens": 4, "echo": rng.random() < 0.2}


def _chat(rng: random.Random) -> Request:
    messages = [{"role": "user", "content": phrase(rng)}]
    return "/v1/chat/completions", {"messages": messages, "max_tokens": rng.randint(1, 60)}


def _structured(rng: random.Random) -> Request:
    path, body = _chat(rng)
    names = rng.sample(WORDS, k=rng.randint(1, 3))
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    response_format = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    return path, body | {"response_format": response_format}


def _tools(rng: random.Random) -> Request:
    path, body = _chat(rng)
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "search", "parameters": parameters}}
    return path, body | {"tools": [tool], "tool_choice": rng.choice(("auto", "required"))}


def _responses(rng: random.Random) -> Request:
    return "/v1/responses", {"input": phrase(rng), "max_output_tokens": rng.randint(16, 60)}


def _messages(rng: random.Random) -> Request:
    messages = [{"role": "user", "content": phrase(rng)}]
    return "/v1/messages", {"model": "quire-tiny", "messages": messages, "max_tokens": 40}


DIALECTS: list[Callable[[random.Random], Request]] = [
    _completion, _completion, _long_prompt, _chat, _structured, _tools, _responses, _messages,
]  # fmt: skip
