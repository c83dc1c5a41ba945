"""Growth of Quire's cost on a CPU: with streams, with context, with the length of a prompt.

    python benchmarks/cpu_growth.py --rows bfloat16 int8
    python benchmarks/cpu_growth.py --plot-only

For each weight format: prompts of each length, one stream going on from each, and many streams
going on from a short one. Beside each figure stands the floor: bytes over the bandwidth or
operations over the rate of matmuls, whichever takes longer, measured in the same run. And memory:
what was resident at most, beside weights and KV cache. Uses the checkpoint and the processes of
cpu_peers.py; writes a result file, which keeps rows that were not measured again, and a picture.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record
from cpu_limits import WEIGHT_BYTES
from peers.bench import SHAPE, Answer, Bench, add_options
from peers.disturbance import busy_seconds
from peers.install import PeerCache
from peers.rows import Row, ours

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "cpu-growth.png"
SHORT = 128  # tokens of context of many streams
# the rate of matmuls that bounds each weight format
RATE = {
    "float32": "float32_tflops",
    "bfloat16": "bfloat16_tflops",
    "int8": "int8_tops",
    "int4": "int8_tops",
}


@dataclass(frozen=True)
class Work:
    """Bytes and operations of a step, from a model's config."""

    config: dict[str, Any]
    weight_bytes: float  # of one weight

    @property
    def num_weights(self) -> int:
        """Number of weights of matmuls: the layers' and the head's."""
        c = self.config
        queries, keys = c["num_attention_heads"], 2 * c["num_key_value_heads"]
        attention = (2 * queries + keys) * c["head_dim"] * c["hidden_size"]
        mlp = 3 * c["intermediate_size"] * c["hidden_size"]
        layers: int = c["num_hidden_layers"] * (attention + mlp)
        return layers + self.head

    @property
    def head(self) -> int:
        """Weights of the head."""
        size: int = self.config["vocab_size"] * self.config["hidden_size"]
        return size

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's keys and values in 16 bits (float32: in 32)."""
        c = self.config
        item = 4 if self.weight_bytes == 4.0 else 2
        size: int = 2 * c["num_hidden_layers"] * c["num_key_value_heads"] * c["head_dim"] * item
        return size

    def decode_floor(
        self, streams: int, context: int, rates: dict[str, float], weights: str
    ) -> float:
        """The least seconds of a step of decoding."""
        num_bytes = self.num_weights * self.weight_bytes + streams * context * self.kv_bytes
        operations = 2 * self.num_weights * streams + streams * self._attention(context)
        return max(
            num_bytes / rates["read_gb_per_s"] / 1e9, operations / rates[RATE[weights]] / 1e12
        )

    def prefill_floor(self, length: int, rates: dict[str, float], weights: str) -> float:
        """The least seconds of a prompt; the head sees one row of it."""
        operations = 2 * (self.num_weights - self.head) * length + 2 * self.head
        attention = length * self._attention(length) / 2
        # attention is computed in floating point in every format, by tiles where there are some
        kinds = ["float32"] if weights == "float32" else ["float32", "bfloat16"]
        fastest = max(rates[RATE[kind]] for kind in kinds)
        return operations / rates[RATE[weights]] / 1e12 + attention / fastest / 1e12

    def _attention(self, context: int) -> int:
        c = self.config
        width: int = c["num_attention_heads"] * c["head_dim"] * c["num_hidden_layers"]
        return 4 * width * context


def measure(bench: Bench, row: Row, args: argparse.Namespace) -> Answer:
    """All figures of one weight format, and the machine's rates at that time."""
    rates, busy, begin = bench.rates(), busy_seconds(), time.monotonic()
    work = Work(json.loads((SHAPE / "config.json").read_text()), WEIGHT_BYTES[row.weights])
    return {
        "weights": row.weights,
        "rates": rates,
        "by_context": [_at_context(bench, row, context, work, rates) for context in args.contexts],
        "by_streams": _by_streams(bench, row, args.streams, work, rates),
        "busy_cores": round((busy_seconds() - busy) / (time.monotonic() - begin), 2),
    }


def _at_context(
    bench: Bench, row: Row, context: int, work: Work, rates: dict[str, float]
) -> Answer:
    """One prompt, one stream going on from it, and the memory that this took."""
    steps, max_len = bench.args.steps, context + bench.args.steps + 16
    with bench.worker(row.engine) as worker:
        worker.ask("load", **bench.load(row, max_len, 2))
        worker.ask("prefill", prompt=bench.prompt(64, 1))
        prefill = worker.ask("prefill", prompt=bench.prompt(context, 0))
        decode = worker.ask("decode", streams=1, steps=steps)
    return {
        "context": context,
        "prefill_s": round(prefill["seconds"], 3),
        "prefill_floor_s": round(work.prefill_floor(context, rates, row.weights), 3),
        "decode_s": round(decode["seconds"] / steps, 5),
        "decode_floor_s": round(work.decode_floor(1, context, rates, row.weights), 5),
        "peak_gb": round(decode["peak_bytes"] / 1e9, 3),
        "weights_gb": round(work.num_weights * work.weight_bytes / 1e9, 3),
        "kv_gb": round(2 * max_len * work.kv_bytes / 1e9, 3),
    }


def _by_streams(
    bench: Bench, row: Row, streams: list[int], work: Work, rates: dict[str, float]
) -> list[Answer]:
    """Steps of many streams that go on from one short prompt."""
    steps = max(2, bench.args.steps // 2)
    with bench.worker(row.engine) as worker:
        worker.ask("load", **bench.load(row, SHORT + steps + max(streams) + 16, max(streams)))
        worker.ask("prefill", prompt=bench.prompt(SHORT, 0))
        found = {n: worker.ask("decode", streams=n, steps=steps) for n in streams}
    return [
        {
            "streams": n,
            "tokens_per_s": round(answer["tokens"] / answer["seconds"], 2),
            "floor_tokens_per_s": round(n / work.decode_floor(n, SHORT, rates, row.weights), 2),
        }
        for n, answer in found.items()
    ]


def plot(result: dict[str, Any], target: Path) -> None:
    """Three pictures side by side; floors are dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (streams, context, prompts) = pyplot.subplots(1, 3, figsize=(13, 3.8))
    for row in result["rows"]:
        xs = [each["streams"] for each in row["by_streams"]]
        ys = [each["tokens_per_s"] for each in row["by_streams"]]
        (line,) = streams.plot(xs, ys, "o-", label=row["weights"])
        floor = {"linestyle": "--", "linewidth": 1, "color": line.get_color()}
        streams.plot(xs, [each["floor_tokens_per_s"] for each in row["by_streams"]], **floor)
        xs, found = [each["context"] for each in row["by_context"]], row["by_context"]
        style = {"color": line.get_color(), "label": row["weights"]}
        context.plot(xs, [1 / each["decode_s"] for each in found], "o-", **style)
        context.plot(xs, [1 / each["decode_floor_s"] for each in found], **floor)
        prompts.plot(xs, [each["prefill_s"] for each in found], "o-", **style)
        prompts.plot(xs, [each["prefill_floor_s"] for each in found], **floor)
    for axes, title, unit in (
        (streams, f"decoding, by streams ({SHORT} tokens each)", "tokens/s"),
        (context, "decoding, one stream, by context", "tokens/s"),
        (prompts, "prompts, by length", "seconds"),
    ):
        axes.set(xscale="log", yscale="log", title=title, ylabel=unit)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3, which="both")
    streams.legend(title="dashed: the floor")
    figure.tight_layout()
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=110)


def main() -> None:
    parser = record.parser(__doc__, "cpu_growth")
    add_options(parser, steps=32)
    parser.add_argument("--rows", nargs="+", help="weight formats; default: all")
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[128, 512, 2048, 4096, 8192, 16384]
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--plot-only", action="store_true", help="draw the result file again")
    args = parser.parse_args()
    record.require("matplotlib")  # better now than after an hour
    if not args.plot_only:
        run(args)
    picture = PICTURE if args.out == record.TRACKED else args.out / PICTURE.name
    plot(json.loads((args.out / f"{args.name}.json").read_text()), picture)


def run(args: argparse.Namespace) -> None:
    """Measure and save, row by row; rows of formats that are not measured now stay in the file."""
    rows = [row for row in ours() if args.rows is None or row.weights in args.rows]
    peer_cache = PeerCache(args.cache)
    bench = Bench(args, peer_cache, peer_cache.models(rows, SHAPE))
    found = record.earlier_rows(args.out / f"{args.name}.json")
    measured: dict[str, Answer] = {row["weights"]: row for row in found}
    for row in rows:
        measured[row.weights] = measure(bench, row, args)
        print(measured[row.weights], flush=True)
        known = [measured[each.weights] for each in ours() if each.weights in measured]
        record.save(args.name, {"shape": SHAPE.name, "rows": known}, args.out)


if __name__ == "__main__":
    main()
