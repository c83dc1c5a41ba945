"""Options and steps that `quire quantize` and `quire verify` have in common."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli.model_speed import Speed, measure_speed
from quire.cli.options import CommandParser
from quire.compat.own_values import own_value
from quire.errors import ConfigError
from quire.models.config.quality_report import QUALITY_FILE, QualityLimits, replacement_problem
from quire.processes import exit_on_interrupt

if TYPE_CHECKING:
    import torch

    from quire.compress.layer_stream import Notify
    from quire.compress.task_answers import Task
    from quire.compress.text_samples import TextSamples
    from quire.tokenizer.tokenizer import Tokenizer

DEVICES = ("auto", "cpu", "cuda")
_SAMPLES, _SEQ_LEN = 128, 512


def add_verification_options(parser: CommandParser) -> None:
    """Add the options of text, gate and device."""
    parser.add_argument(
        "--calibration", metavar="TEXT",
        help='a file of text, or of JSON (lines or a list) or parquet with "text" or "messages", '
        "or a data set of the hub (owner/name or owner/name:file); one window in five is left for "
        "verification (default: text that comes with Quire)",
    )  # fmt: skip
    parser.add_integer(
        "--samples",
        f"windows of text for calibration; verification uses a quarter (default: {_SAMPLES})",
    )
    parser.add_integer("--seq-len", f"tokens of each window (default: {_SEQ_LEN})")
    parser.add_argument(
        "--tasks", metavar="FILE",
        help='JSON objects with "messages" and "expected"; right answers are counted',
    )  # fmt: skip
    default = ",".join(f"{name}={limit}" for name, limit in QualityLimits().record().items())
    parser.add_argument(
        "--quality-limits", metavar="LIMITS",
        help=f"what the result may lose before the gate refuses it (default: {default})",
    )  # fmt: skip
    parser.add_switch(
        "--replace-report",
        "store the report also in place of one of more text or with stricter limits",
    )
    parser.add_toggle(
        "--speed", "also measure tokens per second and memory of both models (default: on)"
    )
    parser.add_argument(
        "--device", choices=DEVICES, type=partial(own_value, "device"),
        help="device to run on (default: auto)",
    )  # fmt: skip
    parser.add_switch("--json", "print JSON")


def limits_of(args: Namespace) -> QualityLimits:
    """The limits of the gate. Raises ConfigError."""
    text = vars(args).get("quality_limits")
    return QualityLimits() if text is None else QualityLimits.parse(text, "quality_limits")


def folder_of(model: str) -> Path:
    """The folder of a model's safetensors files. Raises CheckpointError, also for a GGUF file."""
    from quire.hub import resolve_model
    from quire.models.checkpoints.checkpoint import find_files
    from quire.models.config.model_config import ModelConfig

    ModelConfig.from_folder(resolve_model(model, weights=False))  # before weights are downloaded
    folder = resolve_model(model)
    find_files(folder)
    return folder


def device_of(args: Namespace) -> torch.device:
    """The device on which the layers run, by the engine's rule.

    Raises ConfigError for a GPU that is not there.
    """
    from quire.config import DeviceConfig, EngineConfig
    from quire.engine.startup.torch_import import import_torch

    with exit_on_interrupt():
        import_torch()
        from quire.engine.startup.torch_start import torch_device

    return torch_device(EngineConfig(device=DeviceConfig(device=vars(args).get("device", "auto"))))


def tokenizer_of(args: Namespace, base: Path) -> tuple[Tokenizer, TextSamples]:
    """The base model's tokenizer, and the windows of text that it makes. Raises ConfigError.

    Without a file the bundled models get chats alone: they were trained on little else.
    """
    from quire.compress.hub_text import text_file
    from quire.compress.text_samples import read_samples
    from quire.hub import BUNDLED
    from quire.models.config.model_config import ModelConfig
    from quire.tokenizer.tokenizer import Tokenizer

    given, tokenizer = vars(args), Tokenizer.from_folder(base)
    path = None if "calibration" not in given else text_file(given["calibration"])
    most = ModelConfig.from_folder(base).max_position_embeddings
    count, seq_len = given.get("samples", _SAMPLES), given.get("seq_len", min(_SEQ_LEN, most))
    if count < 1:
        raise ConfigError(f"samples must be at least 1, not {count}")
    if not 8 <= seq_len <= most:
        raise ConfigError(
            f"seq_len must be between 8 and {most}, the model's context, not {seq_len}"
        )
    only_chats = path is None and base.name in BUNDLED
    return tokenizer, read_samples(tokenizer, path, count, seq_len, only_chats=only_chats)


def tasks_of(args: Namespace, tokenizer: Tokenizer, base: Path) -> list[Task]:
    """The questions whose right answers are counted. Raises ConfigError for their file."""
    from quire.compress.quality_check import tasks_for

    file = None if "tasks" not in args else Path(os.path.expanduser(args.tasks))
    return tasks_for(tokenizer, base, file)


def show_report(
    args: Namespace,
    base: Path,
    quantized: Path,
    tasks: list[Task],
    samples: TextSamples,
    limits: QualityLimits,
    device: torch.device,
) -> int:
    """Measure, store and print the report. Returns 1 if its figures fail."""
    from quire.compress.quality_check import check_pair, check_quality, check_writable, store_report

    check_pair(base, quantized)  # before speed is measured, too
    tokens = sum(map(len, samples.verification))
    problem = None if args.replace_report else replacement_problem(quantized, tokens, limits)
    if problem is not None:
        note = f"{problem}, so this one will not be stored; to store it use --replace-report"
        print(f"note: {note}", file=sys.stderr)
    else:
        check_writable(quantized)
    speed = _speed_of_both(base, quantized, device) if vars(args).get("speed", True) else None
    with progress() as notify:
        report = check_quality(base, quantized, samples, tasks, limits, device, notify, speed)
    try:
        if problem is None:
            store_report(quantized, report)
    except ConfigError:  # what took long to measure is shown
        print_result(args, quantized, report, "the folder cannot be written")
        raise
    return print_result(args, quantized, report, problem)


def _speed_of_both(base: Path, quantized: Path, device: torch.device) -> dict[str, Speed] | None:
    """The speed of both models on the device; None where one of them does not start."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    found = {
        name: measure_speed(folder, device.type)
        for name, folder in (("base", base), ("quantized", quantized))
    }
    known = {name: speed for name, speed in found.items() if speed is not None}
    return known if len(known) == len(found) else None


def print_result(
    args: Namespace, quantized: Path, report: Mapping[str, Any], problem: str | None = None
) -> int:
    """Print a report. problem: why it is not the stored one. Returns 1 if its figures fail."""
    if args.json:
        print(json.dumps(report))
    else:
        from quire.cli.quality_table import print_report

        print_report(report, is_stored=problem is None)
        file = quantized / QUALITY_FILE
        print(f"stored in {file}" if problem is None else f"not stored in {file}: {problem}")
    return 0 if report["passed"] else 1


def _print_tenths(what: str, done: int, total: int) -> None:
    if done and done * 10 // total > (done - 1) * 10 // total:
        print(f"{what} layers: {done} of {total}", file=sys.stderr, flush=True)


@contextmanager
def progress() -> Iterator[Notify]:
    """A progress bar of layers on a terminal; elsewhere a line for each tenth of them."""
    if not sys.stderr.isatty():
        yield _print_tenths
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda what, done, total: bars.update(
            task, description=f"{what} layers", completed=done, total=total
        )
