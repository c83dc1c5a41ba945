"""Five times as many requests as the server can answer: who is refused, how fast, and at what cost.

    python benchmarks/overload.py [--seconds 30] [--rounds 3] [--save]

In turns the capacity is measured, by clients that wait for their answers, and requests come at
random moments whether or not others were answered. Refusals must be quick and say when to come
back, accepted requests must all be completed, and as many as without the overload: medians of the
rounds are compared. Times are those of the client's socket, from sending to the answer. The client
takes precedence over the server's processes where that is permitted: it stands for many that have
machines of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import record
import uvloop
from reliability.served import Server, serve
from reliability.wire import Connection
from workloads.figures import percentile

PATH = "/v1/completions"
ROWS, QUEUE, TOKENS = 16, 16, 16
OPTIONS = (
    *("--dtype", "float32", "--threads", "1", "--log-level", "warning"),
    *("--max-num-seqs", str(ROWS), "--max-queued-requests", str(QUEUE)),
)
OVERLOAD = 5
MIN_SECONDS = 15
REFUSALS = (429, 503)
MAX_REFUSAL_MS, MIN_GOODPUT = 50.0, 0.9
PRECEDENCE = -10  # the client's niceness


@dataclass
class Seen:
    """Answers and errors that clients saw.

    seconds: from sending a request to its answer, by status; lateness: from when it was due to its
    sending, which is the client's own.
    """

    seconds: dict[int, list[float]] = field(default_factory=dict)
    lateness: list[float] = field(default_factory=list)
    num_whole: int = 0
    num_without_advice: int = 0  # refusals that do not say when to come back
    failures: Counter[str] = field(default_factory=Counter)


class Clients:
    """Connections that are free, and what came back over them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[Connection] = []
        self._number = 0
        self.seen = Seen()

    async def request(self, due: float) -> None:
        """Send one request that was due then, and note what comes back."""
        seen, self._number = self.seen, self._number + 1
        body = {"prompt": f"request {self._number} asks for", "max_tokens": TOKENS}
        try:
            connection = self._free.pop() if self._free else await Connection.open(self._url)
            sent = time.perf_counter()
            seen.lateness.append(sent - due)
            reply = await connection.ask(PATH, body | {"ignore_eos": True})
        except (OSError, EOFError) as error:
            seen.failures[repr(error)] += 1
            return
        self._free.append(connection)
        seen.seconds.setdefault(reply.status, []).append(time.perf_counter() - sent)
        if reply.status == 200:
            tokens = json.loads(reply.body)["usage"]["completion_tokens"]
            seen.num_whole += tokens == TOKENS
        elif reply.status in REFUSALS:
            seen.num_without_advice += "retry-after" not in reply.headers


async def best_goodput(url: str, seconds: float) -> float:
    """Requests per second, by as many clients as there are rows and half the queue."""
    clients, end = Clients(url), time.perf_counter() + seconds

    async def lane() -> None:
        while time.perf_counter() < end:
            await clients.request(time.perf_counter())

    found, *_ = await asyncio.gather(
        goodput(clients.seen, seconds), *(lane() for _ in range(ROWS + QUEUE // 2))
    )
    return found


async def flood(clients: Clients, rate: float, seconds: float) -> float:
    """Requests at random moments, `rate` a second; returns how many were completed a second."""
    rng, begin = random.Random(7), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        found = group.create_task(goodput(clients.seen, seconds))
        due = begin
        while due < begin + seconds:
            due += rng.expovariate(rate)
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            group.create_task(clients.request(due))
    return found.result()


async def goodput(seen: Seen, seconds: float) -> float:
    """Requests completed a second, from now on.

    The first sixth is not counted, in which the first answers come; nor is the time after the last
    request was sent, in which the rows run empty.
    """
    await asyncio.sleep(seconds / 6)
    before, begin = seen.num_whole, time.perf_counter()
    await asyncio.sleep(seconds * 5 / 6)
    return (seen.num_whole - before) / (time.perf_counter() - begin)


async def run(seconds: float, rounds: int) -> dict[str, Any]:
    """Measure capacity and overload in turns, and the capacity once more at the end."""
    best, goodputs = [], []
    async with serve("quire-tiny", *OPTIONS) as server:
        with suppress(PermissionError):  # after the server's start, which would inherit it
            os.setpriority(os.PRIO_PROCESS, 0, PRECEDENCE)
        await best_goodput(server.url, 5.0)  # warms up
        clients = Clients(server.url)
        for number in range(rounds):
            best.append(await best_goodput(server.url, seconds / 2))
            goodputs.append(await flood(clients, OVERLOAD * best[-1], seconds))
            print(
                f"round {number + 1} of {rounds}: {goodputs[-1]:.1f} of {best[-1]:.1f} requests/s"
            )
        best.append(await best_goodput(server.url, seconds / 2))
        return summary(best, goodputs, clients.seen) | await leftovers(server)


async def leftovers(server: Server) -> dict[str, Any]:
    """Resources that the server holds when all is over."""
    return {"leaked_blocks": (await server.at_rest()).used}


def summary(best: list[float], goodputs: list[float], seen: Seen) -> dict[str, Any]:
    refused = sorted(s for status in REFUSALS for s in seen.seconds.get(status, []))
    accepted = sorted(seen.seconds.get(200, []))
    return {
        "rows": ROWS,
        "queue": QUEUE,
        "client_niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "best_requests_per_second": [round(figure, 1) for figure in best],
        "offered_requests_per_second": round(OVERLOAD * statistics.median(best), 1),
        "statuses": {str(status): len(found) for status, found in sorted(seen.seconds.items())},
        "failures": dict(seen.failures),
        "accepted": len(accepted),
        "accepted_and_whole": seen.num_whole,
        "accepted_p99_seconds": round(percentile(accepted, 99), 2),
        "refused_p50_ms": round(percentile(refused, 50) * 1e3, 2),
        "refused_p99_ms": round(percentile(refused, 99) * 1e3, 2),
        "refused_without_retry_after": seen.num_without_advice,
        "client_lateness_p99_ms": round(percentile(sorted(seen.lateness), 99) * 1e3, 2),
        "goodput_of_each_round": [round(figure, 1) for figure in goodputs],
        "goodput_requests_per_second": round(statistics.median(goodputs), 1),
        "goodput_over_best": round(statistics.median(goodputs) / statistics.median(best), 3),
    }


def shortfalls(found: dict[str, Any]) -> list[str]:
    """Broken promises, in words."""
    checks = {
        "refusals are slow": found["refused_p99_ms"] > MAX_REFUSAL_MS,
        "goodput fell": found["goodput_over_best"] < MIN_GOODPUT,
        "refusals without Retry-After": found["refused_without_retry_after"] > 0,
        "accepted requests were not completed": found["accepted"] != found["accepted_and_whole"],
        "connections broke": bool(found["failures"]),
        "other statuses": bool(set(found["statuses"]) - {"200", *map(str, REFUSALS)}),
        "blocks leaked": found["leaked_blocks"] > 0,
    }
    return [text for text, failed in checks.items() if failed]


def main() -> None:
    parser = record.parser(__doc__, "overload")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each overload")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.seconds < MIN_SECONDS:
        parser.error(f"--seconds: {MIN_SECONDS} at least, since answers come {ROWS} at a time")
    found = uvloop.run(run(args.seconds, args.rounds))
    print(json.dumps(found, indent=1))
    record.save(args.name, found, args.out)
    if short := shortfalls(found):
        sys.exit("; ".join(short))


if __name__ == "__main__":
    main()
