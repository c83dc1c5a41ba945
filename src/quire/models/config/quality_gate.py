"""Check of the quality report that is stored beside weights, before they are served. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError, QualityGateError
from quire.model_folder import linked_gguf, named_path
from quire.models.config.quality_report import QualityLimits, figures_of, read_report

# figures of a report by name, and whether it says that the weights passed
Quality = dict[str, bool | float | str]

REPORT, REQUIRE, OFF = _WORDS = "report", "require", "off"
_AS_STORED = ("none", "dequantized")  # settings that keep the numbers of a checkpoint
_MOST_CHARS = 200  # of a name, which is shown


def pass_gate(
    folder: Path, gate: str, *, is_quantized: bool, setting: str = "none"
) -> Quality | None:
    """The figures of a folder's report; None where it has none, or of other weights than served.

    is_quantized: whether the folder's weights are. setting: `quantization`, which may round them,
    or round them again. gate: "report" refuses weights whose report says that they failed,
    "require" also quantized ones without a report, "off" none; or limits such as "cosine=0.99",
    which then decide. Raises QualityGateError for weights whose report does not pass,
    CheckpointError for others that it refuses, ConfigError for another gate.
    """
    limits = gate_limits(gate)
    report = _report(folder, gate) if setting in _AS_STORED else None
    if report is None:
        if gate not in (REPORT, OFF) and (is_quantized or setting not in _AS_STORED):
            raise _no_report(folder, gate, setting)
        return None
    failures = report["failures"] if limits is None else limits.failures(report)
    if failures and gate != OFF:
        raise QualityGateError(
            f"{named_path(folder)} does not pass the quality gate: {'; '.join(failures)}; quantize "
            "it with more bits, smaller groups or another method, or use quality_gate='off'",
            quality=_summary(report),
        )
    return _summary(report)


def gate_limits(gate: str) -> QualityLimits | None:
    """The limits that a gate names; None for one of its words. Raises ConfigError for another."""
    return None if gate in _WORDS else QualityLimits.parse(gate, "quality_gate", _WORDS)


def _report(folder: Path, gate: str) -> Mapping[str, Any] | None:
    """The folder's report, if it has one; a damaged one counts only where there is a gate."""
    try:
        return read_report(folder)
    except CheckpointError:
        if gate == OFF:
            return None
        raise


def _no_report(folder: Path, gate: str, setting: str) -> CheckpointError:
    model = named_path(folder)
    asks, lenient = f"quality_gate {gate!r} asks for", "use quality_gate='report'"
    if setting not in _AS_STORED:
        return CheckpointError(
            f"quantization {setting!r} rounds the weights of {model} as they are loaded, of which "
            f"there is no quality report, and {asks} one; leave quantization out, make a "
            f"checkpoint with `quire quantize`, or {lenient}"
        )
    if linked_gguf(folder):
        return CheckpointError(
            f"{model} is a GGUF file, which has no quality report, and {asks} one; take a "
            f"checkpoint of `quire quantize`, or {lenient}"
        )
    return CheckpointError(
        f"{model} has no quality report, which {asks}; run `quire verify BASE {model}`, or "
        f"{lenient}"
    )


def _summary(report: Mapping[str, Any]) -> Quality:
    base = (report.get("base") or "")[:_MOST_CHARS]
    return {"passed": report["passed"], "base": base, **figures_of(report)}
