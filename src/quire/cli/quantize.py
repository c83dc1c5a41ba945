"""`quire quantize`: a 16-bit model in, a quantized checkpoint with its quality report out."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli.options import CommandParser, chosen
from quire.cli.verification import (
    add_verification_options,
    device_of,
    folder_of,
    limits_of,
    print_result,
    progress,
    show_report,
    tasks_of,
    tokenizer_of,
)
from quire.compat.own_values import own_value
from quire.compress.recipe import FORMATS, METHODS, Recipe
from quire.errors import CheckpointError, ConfigError
from quire.models.config.quality_report import QualityLimits, read_report

if TYPE_CHECKING:
    from quire.compress.task_answers import Task
    from quire.compress.text_samples import TextSamples

EXAMPLES = (
    "quire quantize quire-tiny --method awq --out tiny-awq",
    "quire quantize Qwen/Qwen3-0.6B --method gptq --group-size 128 --out qwen3-gptq",
    "quire quantize ./my-model --method fp8 --calibration chats.jsonl --out my-model-fp8",
)
_PACKED_ZERO_POINTS = (
    "note: compressed-tensors 0.19 and later cannot load packed zero points: load this folder in "
    "transformers with CompressedTensorsConfig(dequantize=True), or quantize with --symmetric"
)
_SETTINGS = (
    "method", "group_size", "symmetric", "format", "act_order", "damping", "smoothing", "steps",
    "seed", "rotate",
    "double_quantization", "weight_only",
)  # fmt: skip
_OF_VERIFICATION = ("tasks", "quality_limits", "replace_report", "speed", "json")


def make_parser() -> CommandParser:
    """The parser of the options of `quire quantize`."""
    parser = CommandParser(
        "quantize", "Quantize a model's weights, and measure what they lose.", EXAMPLES,
        words="MODEL --method METHOD --out DIR ",
        instead="name the new folder by --out, and the method by --method",
    )  # fmt: skip
    parser.add_argument("model", nargs="?", metavar="MODEL", help="folder, or name on the hub")
    parser.add_argument(
        "--method", choices=METHODS, type=partial(own_value, "method"),
        help="how weights are rounded (needed)",
    )  # fmt: skip
    parser.add_argument(
        "--out", "-o", "--output", metavar="DIR", help="folder of the new checkpoint (needed)"
    )
    parser.add_integer(
        "--group-size", "inputs that share a scale, for 4-bit integers; -1: all (default: 128)"
    )
    parser.add_toggle("--symmetric", "without zero points (default: the method's choice)")
    parser.add_argument(
        "--format", choices=FORMATS, help="checkpoint format (default: the method's)"
    )
    parser.add_argument(
        "--ignore", action="append", metavar="PATTERN",
        help="modules that stay as they are, such as '*.down_proj'; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--act-order", choices=("off", "static", "group"),
        help="whether GPTQ rounds inputs with large activations first; static: groups stay as they "
        "are; group: groups follow that order, too (default: static)",
    )  # fmt: skip
    parser.add_argument(
        "--damping", type=float, metavar="X",
        help="damping of the Hessian of GPTQ and of corrections (default: 0.01)",
    )  # fmt: skip
    parser.add_argument(
        "--smoothing", type=float, metavar="X", help="strength of SmoothQuant (default: 0.5)"
    )
    parser.add_integer("--steps", "steps of learned rounding (default: 400)")
    parser.add_integer("--seed", "seed of learned rounding (default: 0)")
    parser.add_toggle(
        "--double-quantization",
        "store NF4's scales in 8 bits, as QLoRA: 4.13 bits a weight, not 4.5 (default: off)",
    )
    parser.add_toggle(
        "--weight-only",
        "FP8 weights beside 16-bit activations (W8A16), which loses less (default: off)",
    )
    parser.add_toggle(
        "--rotate",
        "rotate hidden states and values, in the weights, to spread outliers (default: off)",
    )
    parser.add_toggle("--verify", "measure the loss at the end (default: on)")
    add_verification_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Quantize, then verify. Returns 1 if the result does not pass the quality gate."""
    args = make_parser().parse(argv)
    for name in ("model", "method", "out"):
        if not vars(args).get(name, "").strip():  # an empty one would be the current folder
            option = "MODEL" if name == "model" else f"--{name}"
            raise ConfigError(f"{option} is missing; as in `{EXAMPLES[0]}`")
    wanted = vars(args).get("verify", True)
    if not wanted and (idle := [name for name in _OF_VERIFICATION if vars(args).get(name)]):
        raise ConfigError(f"{idle[0]} is for what --no-verify leaves out; use one of them")
    settings = chosen(args, _SETTINGS)
    recipe = Recipe(**settings, ignore=tuple(vars(args).get("ignore", ())))
    recipe.check_uses(settings)
    limits, base, out = limits_of(args), folder_of(args.model), Path(os.path.expanduser(args.out))
    device, (tokenizer, samples) = device_of(args), tokenizer_of(args, base)
    tasks = tasks_of(args, tokenizer, base)
    from quire.compress.quantize_model import Quantization
    from quire.kernels.formats.int8 import GROUP_STEP

    quantization = Quantization(base, out, recipe, samples, device)
    if quantization.is_finished:
        print(f"{out} is finished: remove it to quantize again", file=sys.stderr)
        report = _measured(out, samples, tasks, limits) if wanted else None
        if report is not None:
            print(f"to measure again: quire verify {args.model} {out}", file=sys.stderr)
            return print_result(args, out, report)
    else:
        if recipe.group_size > 0 and recipe.group_size % GROUP_STEP:
            text = f"groups of {recipe.group_size} are not a multiple of {GROUP_STEP}: Quire loads"
            print(f"note: {text} such weights as numbers of 16 bits", file=sys.stderr)
        if recipe.steps_of_method.rounding == "learned" and device.type == "cpu":
            _print_time(quantization.learning_seconds())
        try:
            with progress() as notify:
                quantization.run(notify)
        except KeyboardInterrupt:
            note = "stopped: the same command continues after the last finished layer"
            print(f"{out}: {note}", file=sys.stderr)
            raise
        print(f"{out}: {recipe.method}{_text(recipe, samples)}", file=sys.stderr)
        if quantization.layout.packing == "pack-quantized" and not quantization.layout.symmetric:
            print(_PACKED_ZERO_POINTS, file=sys.stderr)
    return show_report(args, base, out, tasks, samples, limits, device) if wanted else 0


def _print_time(seconds: float) -> None:
    """Say how long learned rounding takes before it begins, if that is long."""
    if seconds < 60:
        return
    time = f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
    fix = "fewer --steps take less, --method gptq or a GPU much less"
    print(f"note: learned rounding takes about {time}; {fix}", file=sys.stderr, flush=True)


def _measured(
    out: Path, samples: TextSamples, tasks: Sequence[Task], limits: QualityLimits
) -> Mapping[str, Any] | None:
    """The stored report, where it is one of these weights, text, limits and number of tasks."""
    try:
        report = read_report(out)
    except CheckpointError:  # of other weights
        return None
    tokens = sum(map(len, samples.verification))
    wanted = {"text": samples.source, "tokens": tokens, "limits": limits.record()}
    if report is None or not wanted.items() <= report.items():
        return None
    return report if report.get("tasks", {}).get("count", 0) == len(tasks) else None


def _text(recipe: Recipe, samples: TextSamples) -> str:
    if not recipe.steps_of_method.calibrates:
        return ", which needs no calibration"
    return f", calibrated on {sum(map(len, samples.calibration)):,} tokens of {samples.source}"
