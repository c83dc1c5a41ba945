"""Fills what a server keeps up to a bound, so that what grows afterwards is a leak.

Three things are kept: compiled grammars (64 MiB, which are some 250 of them), buffers for steps of
many sizes, and the heaps of the threads that have read a long text.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from reliability.wire import Connection, Reply, ask

NUM_GRAMMARS = 300
MAX_ROWS = 2048  # of a step, see max_num_batched_tokens
LONG_TEXT = "a " * 100_000  # refused, but not before it was encoded
NUM_LONG = 16
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


async def fill(url: str) -> None:
    """Reach the bounds. Raises RuntimeError if a request was not answered as it should be."""
    async with await Connection.open(url) as connection:
        for rows in sorted({_rounded(number) for number in range(1, MAX_ROWS + 1)}):
            _expect(200, await connection.ask(COMPLETIONS, _prompt(rows)))
    await asyncio.gather(*(_ask_grammars(url, range(lane, NUM_GRAMMARS, 4)) for lane in range(4)))
    for _ in range(2):  # each of the threads must have had its turn
        texts = (ask(url, COMPLETIONS, {"prompt": LONG_TEXT}) for _ in range(NUM_LONG))
        for reply in await asyncio.gather(*texts):
            _expect(400, reply)


async def _ask_grammars(url: str, numbers: range) -> None:
    async with await Connection.open(url) as connection:
        for number in numbers:
            _expect(200, await connection.ask(CHAT, _structured(number)))


def _rounded(rows: int) -> int:
    """Rounded up by at most an eighth, which gives enough different step sizes."""
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


def _prompt(rows: int) -> dict[str, Any]:
    """A prompt of new tokens, so that all of them are computed, in one step."""
    rng = random.Random(rows)
    return {"prompt": [rng.randrange(200, 2000) for _ in range(rows)], "max_tokens": 1}


def _structured(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"field_{number}": {"type": "integer"}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    message = {"role": "user", "content": "fill it in"}
    return {"messages": [message], "max_tokens": 1, "response_format": response_format}


def _expect(status: int, reply: Reply) -> None:
    if reply.status != status:
        raise RuntimeError(f"{reply.status} instead of {status}: {reply.body[:300]!r}")
