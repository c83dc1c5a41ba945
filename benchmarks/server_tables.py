"""Tables of the server: prefix caching, reliability, and the cost of a request."""

from __future__ import annotations

import statistics
from typing import Any

from markdown_table import markdown_table

Result = dict[str, Any]


def prefix_caching(result: Result) -> str:
    """Hit rate and time to first token, caching on and off."""
    on, off = result["rows"]
    rows = []
    for key, name in (
        ("one_by_one_ttft_ms", "TTFT p50, one after the other, ms"),
        ("together_ttft_p50_ms", "TTFT p50, all at once, ms"),
    ):
        ratio = result["off_over_on"][key]
        rows.append([name, f"{on[key]:,.0f}", f"{off[key]:,.0f}", f"{ratio:.1f}"])
    for key, name in (
        ("one_by_one_hit_rate", "hit rate of full blocks looked up, one after the other"),
        ("together_hit_rate", "the same, all at once"),
        ("together_share_of_prompt_tokens", "hits over all prompt tokens, all at once"),
    ):
        rows.append([name, f"{on[key]:.1%}", "", ""])
    caption = (
        f"{result['prompts']} voice-bot prompts of {result['input_len']:,} tokens that share "
        f"{result['shared_len']:,}, bundled model:"
    )
    return markdown_table(["", "caching on", "off", "off / on"], rows, caption)


def faults(result: Result) -> str:
    """Table of the bystanders' answers, by fault."""
    how = f" ({result['circumstances']})" if "circumstances" in result else ""
    head = ["fault", "answers identical", "p99 ITL, ms", "of quiet", "longest gap, s"]
    head += ["5xx to others", "blocks leaked", "fds, threads, tasks"]
    rows = []
    for row in result["rows"]:
        leaked, same = row["leaked"], "all" if row["identical"] else "**no**"
        cells = [row["what"], f"{same} {row['answers']}", f"{row['p99_itl_ms']:.1f}"]
        cells += [f"{row['p99_ratio']:.2f}", f"{row['longest_gap_seconds']:.2f}"]
        cells += [str(row["5xx_to_others"]), str(row["leaked_blocks"])]
        rows.append(
            [*cells, ", ".join(f"{leaked[kind]:+d}" for kind in ("fds", "threads", "tasks"))]
        )
    caption = f"{result['streams']} greedy streams of {result['tokens_per_answer']} tokens{how}:"
    return markdown_table(head, rows, caption)


def overload(result: Result) -> str:
    """Refusals and goodput at five times the capacity."""
    best = statistics.median(result["best_requests_per_second"])
    refused = sum(result["statuses"].get(status, 0) for status in ("429", "503"))
    rows = {
        "offered, requests/s": f"{result['offered_requests_per_second']:,.0f}",
        "best goodput without overload, requests/s": f"{best:.1f}",
        "goodput in the overload, requests/s": f"{result['goodput_requests_per_second']:.1f}",
        "of the best": f"{result['goodput_over_best']:.1%}",
        "refused": f"{refused:,}, {result['refused_without_retry_after']} without `Retry-After`",
        "time to a refusal, p50 / p99, ms": f"{result['refused_p50_ms']:.1f} / "
        f"{result['refused_p99_ms']:.1f}",
        "the client's own delay in sending, p99, ms": f"{result['client_lateness_p99_ms']:.1f}",
        "accepted / completed": f"{result['accepted']:,} / {result['accepted_and_whole']:,}",
        "time to a whole answer, p99, s": f"{result['accepted_p99_seconds']:.2f}",
    }
    return markdown_table(["", ""], rows.items())


def soak(result: Result) -> str:
    """Table of the resources held after half an hour."""
    grown, leaked = result["growth_mb"], result["leaked"]
    rows = {
        "time, minutes": f"{result['minutes']:g}",
        "requests / of them left early": f"{result['requests']:,} / {result['left_early']:,}",
        "tokens generated": f"{result['generated_tokens']:,.0f}",
        "memory growth after the warm-up, MB": ", ".join(
            f"{name} {megabytes:+.1f}" for name, megabytes in grown.items()
        ),
        "KV blocks in use at rest": f"{result['used_blocks_at_rest']}",
        "file descriptors, threads, tasks at rest": ", ".join(
            f"{leaked[kind]:+d}" for kind in ("fds", "threads", "tasks")
        ),
        "unexplained answers": f"{len(result['unexplained'])}",
    }
    return markdown_table(["", ""], rows.items())


def server_overhead(result: Result) -> str:
    """Requests per core-second of the API process, beside bare stacks."""
    rows = []
    for row, (unit, name) in zip(
        result["rows"],
        (("requests", "requests of 15 tokens"), ("tokens", "streamed tokens")),
        strict=True,
    ):
        servers, key = row["servers"], f"{unit}_per_api_core_second"
        cells = [name, f"{servers['quire'][key]:,.0f}"]
        for stack in ("raw", "starlette"):
            cells += [f"{servers[stack][key]:,.0f}", f"{row['ratios'][stack]:.2f}"]
        rows.append([*cells, f"{servers['quire'][f'{unit}_per_engine_core_second']:,.0f}"])
    head = ["", "Quire's API process", "raw ASGI", "ratio", "starlette, msgspec", "ratio"]
    caption = (
        f"Per second of processor time, {result['connections']} connections, medians of "
        f"{result['rounds']} rounds in turns and of their ratios:"
    )
    return markdown_table([*head, "the engine"], rows, caption)


def server_profile(result: Result) -> str:
    """The dearest functions of the API process."""
    rows = [
        [cell for name, share in pair for cell in (f"`{name}`", f"{share:.1%}")]
        for pair in zip(*result["profiles"], strict=True)
    ]
    caption = "What remains, by own time of the event loop's thread:"
    return markdown_table(["whole requests", "share", "streams", "share"], rows, caption)


def api_fuzz(result: Result) -> str:
    """Table of the servers' answers to generated requests."""
    head = ["server", "requests", "valid ones", "2xx", "408", "other 4xx", "503", "other 5xx"]
    rows = []
    for row in result["rows"]:
        seen = {int(k.split()[1]): n for k, n in row["seen"].items() if k.startswith("status ")}
        of = {
            hundred: sum(n for s, n in seen.items() if s // 100 == hundred) for hundred in (2, 4, 5)
        }
        late, unavailable = seen.get(408, 0), seen.get(503, 0)
        figures = (
            row["cases"]["generated"], row["seen"]["positive"], of[2], late, of[4] - late,
            unavailable, of[5] - unavailable, row["cases"].get("unique_failures", 0),
        )  # fmt: skip
        rows.append([row["model"], *(f"{n:,}" for n in figures)])
    return markdown_table([*head, "failed"], rows)
