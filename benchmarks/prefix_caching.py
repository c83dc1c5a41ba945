"""Effect of automatic prefix caching on the voice bot: hit rate and time to first token.

    python benchmarks/prefix_caching.py [--save]

Prompts share their first tokens (a system prompt) and differ in the rest. They are sent one after
the other, and then all at once, with caching on and off in turn, on the bundled model.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import record
from rich.console import Console
from rich.table import Table

from quire.config import EngineConfig
from quire.core.messages import AddRequest, EngineStats
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_core import EngineCore
from quire.engine.startup.start_engine import start_engine


def make_prompts(args: argparse.Namespace, vocab_size: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(16, vocab_size) for _ in range(count)]

    shared = tokens(args.shared_len)
    return [shared + tokens(args.input_len - args.shared_len) for _ in range(args.prompts)]


def run(core: EngineCore, label: str, prompts: list[list[int]]) -> list[float]:
    """Seconds to the first token of each prompt, all sent together."""
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    begin = time.perf_counter()
    for index, prompt in enumerate(prompts):
        core.handle(
            AddRequest(request_id=f"{label}/{index}", prompt_token_ids=prompt, sampling=sampling)
        )
    first: dict[str, float] = {}
    while core.has_work:
        for delta in core.step().deltas:
            if delta.token_ids:
                first.setdefault(delta.request_id, time.perf_counter() - begin)
    return list(first.values())


def hit_rates(before: EngineStats, after: EngineStats) -> tuple[float, float]:
    """Hits over the tokens in full blocks that were looked up, and over all prompt tokens."""
    hits = after.prefix_cache_hits - before.prefix_cache_hits
    queries = after.prefix_cache_queries - before.prefix_cache_queries
    prompts = after.num_prompt_tokens - before.num_prompt_tokens
    return round(hits / max(queries, 1), 4), round(hits / prompts, 4)


def measure(caching: bool, args: argparse.Namespace) -> dict[str, Any]:
    core, info = start_engine(EngineConfig.from_options(enable_prefix_caching=caching))
    run(core, "warm-up", make_prompts(args, info.limits.vocab_size, seed=0)[:2])
    before = core.stats
    one_by_one = [
        run(core, f"single-{index}", [prompt])[0]
        for index, prompt in enumerate(make_prompts(args, info.limits.vocab_size, seed=1))
    ]
    between = core.stats
    together = run(core, "together", make_prompts(args, info.limits.vocab_size, seed=2))
    after = core.stats
    single_rate, single_share = hit_rates(before, between)
    together_rate, together_share = hit_rates(between, after)
    return {
        "prefix_caching": caching,
        "one_by_one_ttft_ms": round(statistics.median(one_by_one) * 1e3, 2),
        "one_by_one_hit_rate": single_rate,
        "one_by_one_share_of_prompt_tokens": single_share,
        "together_ttft_p50_ms": round(statistics.median(together) * 1e3, 1),
        "together_ttft_max_ms": round(max(together) * 1e3, 1),
        "together_hit_rate": together_rate,
        "together_share_of_prompt_tokens": together_share,
        "misses": after.prefix_cache_misses,
    }


def main() -> None:
    parser = record.parser(__doc__, "prefix_caching")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--input-len", type=int, default=1950)
    parser.add_argument("--shared-len", type=int, default=1750)
    args = parser.parse_args()
    rows = [measure(caching, args) for caching in (True, False)]
    on, off = rows
    ratios = {
        key: round(off[key] / on[key], 2) for key in ("one_by_one_ttft_ms", "together_ttft_p50_ms")
    }
    sizes = {name: getattr(args, name) for name in ("prompts", "input_len", "shared_len")}
    record.save(args.name, sizes | {"rows": rows, "off_over_on": ratios}, args.out)
    table = Table("", "on", "off", title="prefix caching, bundled model")
    for key in on:
        if key != "prefix_caching":
            table.add_row(key.replace("_", " "), str(on[key]), str(off[key]))
    Console().print(table)
    print("off / on:", ratios)


if __name__ == "__main__":
    main()
