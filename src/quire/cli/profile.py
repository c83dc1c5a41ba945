"""`quire profile`: one step of a model, operation by operation, beside what the device can do."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from quire.cli.options import CommandParser, add_engine_options, engine_config
from quire.errors import ConfigError

if TYPE_CHECKING:
    from quire.engine.profile.profile_result import Operation, Profile, StepShape

EXAMPLES = (
    "quire profile --batch-size 8 --context 1024",
    "quire profile meta-llama/Llama-3.2-1B --prefill 2048 --plot prefill.png",
    "quire profile ./my-model --load-format dummy --json",
)

WIDTH = 112  # columns that the table needs
ABOVE = (
    "above 100%: a cache had some of what is read, or the device is quicker with such data than "
    "with that of the measurement above"
)


def make_parser() -> CommandParser:
    """The parser of the options of `quire profile`."""
    parser = CommandParser("profile", "Time the operations of one step of a model.", EXAMPLES)
    parser.add_integer("--batch-size", "requests in the step (default: 1)")
    parser.add_integer("--context", "cached tokens of each request (default: 1024)")
    parser.add_integer("--prefill", "profile the prefill of N tokens instead")
    parser.add_switch("--json", "print JSON")
    parser.add_argument(
        "--plot", type=os.path.expanduser, metavar="FILE", help="also write a picture (PNG)"
    )
    add_engine_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run `quire profile`: profile a step and print the result."""
    args = make_parser().parse(argv)
    config = engine_config(args)
    step = step_shape(args)
    if "plot" in args:
        from quire.cli.profile_plot import check_plot

        check_plot(Path(args.plot))
    from quire.engine.profile.step_profile import profile_step
    from quire.engine.startup.out_of_memory import fitting_profile

    with fitting_profile(step.num_requests, step.context):
        profile = profile_step(config, step)
    if args.json:
        print(json.dumps(profile.as_json(), indent=1))
    else:
        show(profile, Console(highlight=False, width=max(Console().width, WIDTH)))
    if "plot" in args:
        from quire.cli.profile_plot import plot

        plot(profile, Path(args.plot))
    return 0


def step_shape(args: Namespace) -> StepShape:
    """The step to profile, from the options. Raises ConfigError."""
    from quire.engine.profile.profile_result import StepShape

    given = vars(args)
    if "prefill" in given and "context" in given:
        raise ConfigError("context is for decode steps and prefill for prompts; set one of them")
    for name in ("batch_size", "context", "prefill"):
        if given.get(name, 1) < 1:
            raise ConfigError(f"{name} must be at least 1, not {given[name]}")
    num_requests = given.get("batch_size", 1)
    if "prefill" in given:
        return StepShape(num_requests, args.prefill, args.prefill)
    return StepShape(num_requests, 1, given.get("context", 1024))


def show(profile: Profile, console: Console) -> None:
    """Print the profile of a step."""
    step, roofline = profile.step, profile.roofline
    what = "decoding" if step.num_new == 1 else "prefill"
    console.print(
        f"{profile.model}, {profile.dtype} on {profile.device}: {what}, {step.num_requests} x "
        f"{step.context:,} tokens, by the {profile.runtime}",
        style="bold",
    )
    fp8 = roofline.fp8_flops_per_second
    console.print(
        f"measured: {roofline.bytes_per_second / 1e9:,.0f} GB/s, "
        f"{roofline.flops_per_second / 1e12:,.2f} TFLOP/s"
        + (f", in FP8 {fp8 / 1e12:,.2f}" if fp8 else ""),
        style="dim",
    )
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("operation", "of"):
        table.add_column(name, no_wrap=True)
    for name in ("calls", "MB", "GFLOP", "ms", "of the step", "of the roofline"):
        table.add_column(name, justify="right")
    table.add_column("bound by")
    for row in rows(profile):
        table.add_row(*row)
    console.print(table)
    if any(op.floor / op.seconds >= 1.005 for op in profile.operations):  # shown as 101 %
        console.print(ABOVE, style="dim", soft_wrap=True)
    if profile.table is not None:
        console.print(f"at start: {profile.table}", style="dim", soft_wrap=True)


def rows(profile: Profile) -> list[tuple[str, ...]]:
    """The table's cells; the last rows are all operations together, and the step as a whole."""
    found = [
        _row(profile, op.name, op.shape, op, "memory" if op.memory_bound else "compute")
        for op in profile.operations
    ]
    together = profile.together()
    found.append(_row(profile, together.name, "", together, ""))
    floor = f"{together.floor / profile.seconds:.0%}"
    found.append(("the step", *[""] * 4, f"{profile.seconds * 1e3:,.3f}", "100%", floor, ""))
    return found


def _row(profile: Profile, name: str, shape: str, op: Operation, bound: str) -> tuple[str, ...]:
    times = f"{op.seconds * 1e3:,.3f}", f"{op.seconds / profile.seconds:.0%}"
    work = f"{op.num_bytes / 1e6:,.1f}", f"{op.flops / 1e9:,.2f}"
    return name, shape, str(op.count), *work, *times, f"{op.floor / op.seconds:.0%}", bound
