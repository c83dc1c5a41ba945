"""Half an hour at saturation: does the server keep anything that it should have given back?

    python benchmarks/soak.py --minutes 30 [--save]

A crowd asks in all dialects, streamed or whole, with forms, tools, bad requests and NaN, and leaves
in the middle of a third of its answers. Every ten seconds memory, file descriptors, threads, tasks
and KV blocks of all processes are noted. Before and after, at rest, descriptors and tasks must be
as many and no block in use. What is kept up to a bound is filled before (reliability/filling.py);
then memory may grow by 50 MB from the end of the warm-up, a tenth of the time, to the end.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import record
import uvloop
from reliability.crowd import Crowd, Tally
from reliability.filling import fill
from reliability.model import write_poisoned_model
from reliability.served import Census, Server, serve

OPTIONS = (
    *("--dtype", "float32", "--threads", "1", "--log-level", "warning"),
    *("--max-num-seqs", "16", "--num-blocks", "600", "--slow-reader-timeout", "5"),
    *("--served-model-name", "quire-tiny", "--max-queued-requests", "64"),
)
LANES = 32
SAMPLE_SECONDS = 10.0
WARM_UP = 0.1  # of the time
MAX_GROWTH_MB = 50.0
PLOT = Path(__file__).parents[1] / "docs" / "images" / "soak.png"

Sample = dict[str, Any]


async def sample(server: Server, begin: float) -> Sample:
    """Everything that can leak, now."""
    census, figures = await server.census(), await server.figures()
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "running": figures["vllm:num_requests_running"],
        "waiting": figures["vllm:num_requests_waiting"],
        "generated": figures["vllm:generation_tokens_total"],
        "preemptions": figures["vllm:num_preemptions_total"],
        "blocks": {
            state: figures[f'quire:kv_blocks{{state="{state}"}}']
            for state in ("free", "cached", "used")
        },
    } | asdict(census)


async def keep_sampling(server: Server, begin: float, samples: list[Sample]) -> None:
    """Note a sample now and then, until cancelled."""
    while True:
        samples.append(await sample(server, begin))
        await asyncio.sleep(SAMPLE_SECONDS)


async def run(minutes: float, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = write_poisoned_model(Path(folder, "quire-tiny"))
        async with serve(str(model), *OPTIONS) as server:
            await fill(server.url)
            await Crowd(server.url, seed).act(LANES, 20.0)  # makes threads and caches
            await server.at_rest()
            before = await server.census()
            crowd, samples, begin = Crowd(server.url, seed + 1), [], time.monotonic()
            sampling = asyncio.create_task(keep_sampling(server, begin, samples))
            await crowd.act(LANES, 60.0 * minutes)
            sampling.cancel()
            blocks = await server.at_rest()
            after = await server.census()
    return verdict(samples, before, after, crowd.tally) | {
        "minutes": minutes,
        "lanes": LANES,
        "used_blocks_at_rest": blocks.used,
        "at_rest": {"before": asdict(before), "after": asdict(after)},
        "samples": samples,
    }


def verdict(samples: list[Sample], before: Census, after: Census, tally: Tally) -> dict[str, Any]:
    """The figures that count."""
    total = sum(tally.answers.values())
    aborted = sum(n for (_, status), n in tally.answers.items() if status == 0)
    return {
        "requests": total,
        "left_early": aborted,
        "generated_tokens": samples[-1]["generated"] - samples[0]["generated"],
        "answers": {f"{path} {status}": n for (path, status), n in sorted(tally.answers.items())},
        "unexplained": tally.unexplained(),
        "growth_mb": {name: growth(samples, name) for name in after.rss_mib},
        "leaked": {
            "fds": sum(after.fds.values()) - sum(before.fds.values()),
            "threads": sum(after.threads.values()) - sum(before.threads.values()),
            "tasks": after.tasks - before.tasks,
        },
    }


def growth(samples: list[Sample], name: str) -> float:
    """Megabytes from the end of the warm-up to the end: medians of a tenth of the time each."""
    sizes = [sample["rss_mib"][name] for sample in samples]
    span = max(1, len(sizes) // 10)
    first = int(len(sizes) * WARM_UP)
    early, late = sizes[first : first + span], sizes[-span:]
    return round((statistics.median(late) - statistics.median(early)) * 2**20 / 1e6, 1)


def shortfalls(found: dict[str, Any]) -> list[str]:
    """Broken promises, in words."""
    grown = sum(found["growth_mb"].values())
    checks = {
        f"memory grew by {grown:.0f} MB": grown > MAX_GROWTH_MB,
        f"{found['used_blocks_at_rest']} blocks leaked": found["used_blocks_at_rest"] > 0,
    } | {f"{count} {what} leaked": count > 0 for what, count in found["leaked"].items()}
    return found["unexplained"] + [text for text, failed in checks.items() if failed]


def plot(samples: list[Sample], path: Path) -> None:
    """Memory of each process, and blocks by state, over the time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    minutes = [sample["seconds"] / 60 for sample in samples]
    figure, (memory, blocks) = pyplot.subplots(1, 2, figsize=(9, 3.2), dpi=90)
    for name in samples[-1]["rss_mib"]:
        memory.plot(minutes, [s["rss_mib"].get(name) for s in samples], label=name, linewidth=1.2)
    memory.set(xlabel="minutes", ylabel="resident MiB", ylim=(0, None), title="Memory")
    memory.legend()
    states = ("used", "cached", "free")
    blocks.stackplot(minutes, [[s["blocks"][state] for s in samples] for state in states])
    blocks.set(xlabel="minutes", ylabel="KV blocks", title="KV cache")
    blocks.legend(states, loc="lower right")
    memory.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = record.parser(__doc__, "soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    if args.save:
        record.require("matplotlib")  # better now than after half an hour
    found = uvloop.run(run(args.minutes, args.seed))
    samples = found.pop("samples")
    print(json.dumps(found, indent=1))
    record.save(args.name, found, args.out)
    if args.save:
        plot(samples, PLOT)
    if short := shortfalls(found):
        sys.exit("; ".join(short))


if __name__ == "__main__":
    main()
