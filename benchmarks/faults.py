"""Eight well-behaved streams while something else goes wrong: their answers and delays.

    python benchmarks/faults.py [--only storm,malformed] [--save]

Each fault runs beside them on a `quire serve` of the bundled model, after a few quiet seconds.
Their answers must be the quiet server's, byte for byte, and their tokens come in time; what the
fault took (KV blocks, file descriptors, threads, tasks) must be given back. The answers are greedy
and in float32, since a 16-bit product may change its last bits with the batch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import record
import uvloop
from reliability import trouble
from reliability.bystanders import LENGTH, PROMPTS, Bystanders, Watch
from reliability.model import write_poisoned_model
from reliability.served import Census, Server, serve, small_folder
from rich.console import Console
from rich.table import Table

COMMON = ("--dtype", "float32", "--threads", "1", "--max-num-seqs", "16", "--log-level", "warning")
QUIET_SECONDS = 6.0
MAX_RATIO = 3.0  # of the p99 time between tokens, against quiet


@dataclass(frozen=True, slots=True)
class Case:
    """One fault. options: of its server; may_refuse: newcomers may get 503 meanwhile.

    unread_log: nobody reads the server's standard error. folder: size of the file system of its
    temporary folder, if that is one of its own. linger: seconds for which its connections may
    outlive it.
    """

    name: str
    what: str
    options: tuple[str, ...] = ()
    may_refuse: bool = False
    unread_log: bool = False
    folder: str = ""
    linger: float = 0.0


CASES = (
    Case("engine_killed", "`kill -9` of the engine", may_refuse=True),
    Case("engine_hung", "engine that hangs (SIGSTOP)", ("--engine-hang-timeout", "5"), True),
    Case("api_killed", "`kill -9` of another API process", ("--api-server-count", "2")),
    Case(
        "api_hung",
        "another API process that hangs (SIGSTOP)",
        ("--api-server-count", "2", "--engine-hang-timeout", "5"),
    ),
    Case("storm", "400 clients leave at random moments"),
    Case(
        "slow_readers", "16 clients ask for much and read nothing", ("--slow-reader-timeout", "5")
    ),
    Case("nan_logits", "10 requests with NaN logits"),
    Case("kv_exhaustion", "answers that do not fit the KV cache", ("--num-blocks", "240")),
    Case("malformed", "2,000 malformed requests"),
    Case("idle", "2,000 idle connections"),
    Case("slow_loris", "200 clients send a byte a second"),
    Case(
        "unread_log",
        "2,000 requests, standard error unread",
        ("--log-level", "info"),
        unread_log=True,
    ),
    Case("full_folder", "full temporary folder", ("--api-server-count", "2"), folder="1m"),
    Case("costly_grammars", "8 clients with costly schemas"),
    Case("costly_masks", "4 clients of one caller with ambiguous grammars"),
    Case("tokenize_bodies", "4 clients with 4 MB at /tokenize"),
    Case("large_bodies", "8 clients with bodies over the limit", linger=5.0),
    Case("template_bombs", "bombs in the chat template"),
)


def cause(name: str, server: Server) -> dict[str, Any]:
    """Run one fault, in a process of its own."""
    try:
        return uvloop.run(getattr(trouble, name)(server))  # type: ignore[no-any-return]
    except (OSError, EOFError) as error:  # TimeoutError is an OSError
        return {"ok": False, "why": repr(error)}


async def run_case(
    case: Case, server: Server, pool: ProcessPoolExecutor, quiet: Watch
) -> dict[str, Any]:
    """One row of the table."""
    blocks = await server.at_rest()
    before = await server.census()
    loop = asyncio.get_running_loop()
    async with Bystanders.connected(server) as bystanders, bystanders.watching() as watch:
        found = await loop.run_in_executor(pool, cause, case.name, server)
    await asyncio.sleep(case.linger)
    left = await server.at_rest()
    after = await server.census()
    return _row(case, quiet, watch, found) | {
        "leaked_blocks": left.used - blocks.used,
        "after": asdict(after),
        "leaked": _leaks(before, after),
    }


def _row(case: Case, quiet: Watch, watch: Watch, found: dict[str, Any]) -> dict[str, Any]:
    known = quiet.contents()
    whole = [(index, answer) for index, answer in watch.answers if answer.status == 200]
    identical = all(answer.is_whole and {answer.content} == known[index] for index, answer in whole)
    errors = [a.error for _, a in watch.answers if a.status == 200 and a.error]
    failures = sum(n for status, n in watch.statuses.items() if status >= 500)
    failures += sum(a.status >= 500 for _, a in watch.answers)
    return {
        "fault": case.name,
        "what": case.what,
        "answers": len(whole),
        "identical": identical,
        "errors": errors,
        "quiet_p99_itl_ms": round(quiet.p99() * 1e3, 2),
        "p99_itl_ms": round(watch.p99() * 1e3, 2),
        "p99_ratio": round(watch.p99() / quiet.p99(), 2),
        "longest_gap_seconds": round(max(watch.gaps), 2),
        "others": {str(status): n for status, n in sorted(watch.statuses.items())},
        "5xx_to_others": failures,
        "may_refuse": case.may_refuse,
        "unready_seconds": round(watch.unready_seconds, 2),
        "found": found,
    }


def _leaks(before: Census, after: Census) -> dict[str, int]:
    """Increase of what the processes that lived through it hold."""
    found = {"tasks": after.tasks - before.tasks}
    for kind in ("fds", "threads"):
        old, new = getattr(before, kind), getattr(after, kind)
        found[kind] = sum(new[name] - old.get(name, 0) for name in new)
    return found


def is_met(row: dict[str, Any]) -> bool:
    """Whether the server kept what it promises; times are judged by who reads the table."""
    refused = row["5xx_to_others"] and not row["may_refuse"]
    return bool(
        row["identical"]
        and row["found"]["ok"]
        and not (refused or row["leaked_blocks"] or row["leaked"]["tasks"] > 0)
    )


def is_in_time(row: dict[str, Any]) -> bool:
    """Whether the bystanders' tokens come as quickly as is the aim."""
    return bool(row["p99_ratio"] < MAX_RATIO)


@asynccontextmanager
async def quiet_server(
    model: Path, case: Case, temporary: str
) -> AsyncIterator[tuple[Server, Watch]]:
    """A server of its own for each case, and what bystanders see while nothing happens."""
    options = (*COMMON, *case.options)
    async with serve(
        str(model), *options, unread_log=case.unread_log, temporary=temporary
    ) as server:
        async with Bystanders.connected(server) as bystanders:
            async with bystanders.watching(20):  # warms everything up
                pass
            async with bystanders.watching() as quiet:
                await asyncio.sleep(QUIET_SECONDS)
        assert all(len(contents) == 1 for contents in quiet.contents()), "not even quiet is stable"
        yield server, quiet


async def run(cases: list[Case]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of the table, and why some cases could not be run here."""
    rows, left_out = [], {}
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, context, initializer=os.nice, initargs=(10,)) as pool,
    ):
        model = write_poisoned_model(Path(folder, "quire-tiny"))
        for case in cases:
            with ExitStack() as stack:
                try:
                    small = stack.enter_context(small_folder(case.folder)) if case.folder else ""
                except OSError as error:
                    left_out[case.name] = str(error)
                    continue
                async with quiet_server(model, case, small) as (server, quiet):
                    row = await run_case(case, server, pool, quiet)
            rows.append(row)
            print(f"{case.name}: {verdict(row)} {row}", flush=True)
    return rows, left_out


def verdict(row: dict[str, Any]) -> str:
    """The text of its last column."""
    return "BROKEN" if not is_met(row) else "kept" if is_in_time(row) else "kept, but SLOW"


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(
        "fault", "identical", "p99 ITL ms", "/ quiet", "gap s", "5xx", "blocks", "promises"
    )
    for row in rows:
        table.add_row(
            row["fault"],
            f"{row['identical']} ({row['answers']})",
            str(row["p99_itl_ms"]),
            str(row["p99_ratio"]),
            str(row["longest_gap_seconds"]),
            str(row["5xx_to_others"]),
            str(row["leaked_blocks"]),
            verdict(row),
        )
    Console().print(table)


def main() -> None:
    parser = record.parser(__doc__, "faults")
    known = [case.name for case in CASES]
    parser.add_argument("--only", help=f"some of {', '.join(known)}, with commas between")
    args = parser.parse_args()
    names = known if args.only is None else args.only.split(",")
    if unknown := set(names) - set(known):
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    rows, left_out = uvloop.run(run([case for case in CASES if case.name in names]))
    show(rows)
    print(*(f"{name} was left out: {why}" for name, why in left_out.items()), sep="\n")
    streams = {"streams": len(PROMPTS), "tokens_per_answer": LENGTH, "load": os.getloadavg()}
    record.save(args.name, streams | {"left_out": left_out, "rows": rows}, args.out)
    if failed := [f"{row['fault']} ({verdict(row)})" for row in rows if verdict(row) != "kept"]:
        sys.exit(f"p99 aim {MAX_RATIO:g} x quiet: {', '.join(failed)}")


if __name__ == "__main__":
    main()
