"""Measures a quantized folder against its base; stores the report beside its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from quire.compress.layer_stream import Notify
from quire.compress.model_parts import ModelParts
from quire.compress.quality_plot import svg
from quire.compress.rotation import parts_beside
from quire.compress.task_answers import BUNDLED_TASKS, Task, read_tasks
from quire.compress.text_samples import TextSamples
from quire.compress.verify_model import compare_models
from quire.errors import ConfigError
from quire.hub import BUNDLED
from quire.model_folder import named_path, write_whole
from quire.models.config.model_config import ModelConfig
from quire.models.config.quality_report import QualityLimits, write_report
from quire.models.config.weight_files import weight_files
from quire.models.loading.loader import check_tensors
from quire.tokenizer.tokenizer import Tokenizer

PLOT_FILE = "quire_quality.svg"


def check_quality(
    base: Path,
    quantized: Path,
    samples: TextSamples,
    tasks: list[Task],
    limits: QualityLimits,
    device: torch.device,
    notify: Notify,
    speed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report, which is not stored yet.

    samples: the windows for verification are used. speed: of both models, for the report.
    Raises CheckpointError and ConfigError.
    """
    check_pair(base, quantized)
    parts = parts_beside(base, quantized, device), ModelParts(quantized, device)
    figures = compare_models(parts[0], parts[1], samples.verification, tasks, notify)
    failures = limits.failures(figures)
    stored = parts[1].config.checkpoint_format
    return {
        "base": named_path(base).name,
        "quantized": named_path(quantized).name,
        "format": None if stored is None else stored.name,
        "text": samples.source,
        "limits": limits.record(),
        "passed": not failures,
        "failures": failures,
        **figures,
        **({} if speed is None else {"speed": dict(speed)}),
    }


def store_report(quantized: Path, report: Mapping[str, Any]) -> None:
    """Write a report to the quantized folder, and a picture of its layers. Raises ConfigError."""
    losses = [1.0 - layer["mean"] for layer in report["layers"]]
    picture = svg(f"{named_path(quantized).name}: 1 - cosine after each layer", losses)
    try:
        write_report(quantized, report)
        write_whole(quantized / PLOT_FILE, lambda part: part.write_text(picture))
    except OSError as error:
        raise _not_written(quantized, error.strerror) from error


def check_pair(base: Path, quantized: Path) -> None:
    """Raise ConfigError for folders that are not a model and its quantized copy.

    A model beside itself would pass any gate; and of a base model that stands behind its quantized
    copy, a report of what that has lost would be stored, by which it would not be served any more.
    Raises CheckpointError for tensors that an engine would refuse, which must not pass either.
    """
    name = named_path(quantized)
    if base.samefile(quantized) or weight_files(base) == weight_files(quantized) != {}:
        raise ConfigError(
            f"base and quantized have the same weights ({name}), so that nothing is measured; "
            "name the 16-bit model as base"
        )
    configs = {each: ModelConfig.from_folder(each) for each in (base, quantized)}
    if [each.checkpoint_format is None for each in configs.values()] == [False, True]:
        raise ConfigError(
            f"quantized: {name} is not quantized; name the 16-bit model first, and then its "
            "quantized copy"
        )
    specs = parts_beside(base, quantized, torch.device("cpu")).spec, configs[quantized].spec
    if specs[0] != specs[1]:
        found = _first_difference(*map(msgspec.to_builtins, specs))
        raise ConfigError(
            f"base and quantized ({name}) have different layers ({found}); name a model and its "
            "quantized copy"
        )
    for folder, config in configs.items():
        check_tensors(folder, config)


def _first_difference(base: Any, quantized: Any, name: str = "model") -> str:
    """The first value of two models' specs that differs, for messages."""
    pairs = list[tuple[str, Any, Any]]()
    if isinstance(base, dict) and isinstance(quantized, dict):
        pairs = [(f"{name}.{key}", each, quantized.get(key)) for key, each in base.items()]
    elif isinstance(base, list | tuple) and isinstance(quantized, list | tuple):
        if len(base) != len(quantized):
            return f"{name}: {len(base)} and {len(quantized)} of them"
        pairs = [(f"{name}.{i}", *each) for i, each in enumerate(zip(base, quantized, strict=True))]
    for own, one, other in pairs:
        if one != other:
            return _first_difference(one, other, own)
    return f"{name}: {base!s:.60} and {quantized!s:.60}"


def check_writable(quantized: Path) -> None:
    """Raise ConfigError for a folder in which no report can be stored, before it is measured."""
    if not os.access(quantized, os.W_OK):
        raise _not_written(quantized, "Permission denied")


def _not_written(quantized: Path, why: str | None) -> ConfigError:
    return ConfigError(
        f"quantized: {quantized}, where the report is stored, cannot be written ({why}); free some "
        "space, change its permissions, or verify a copy"
    )


def tasks_for(tokenizer: Tokenizer, base: Path, path: Path | None) -> list[Task]:
    """The questions of a file; for a bundled model without one, those that come with it."""
    if path is None and base.name in BUNDLED:
        path = BUNDLED_TASKS
    return [] if path is None else read_tasks(tokenizer, path)
