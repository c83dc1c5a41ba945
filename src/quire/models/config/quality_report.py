"""The quality report that is stored beside quantized weights, and the limits that it is held to.

No torch. `quire quantize` and `quire verify` write it; serving reads it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from quire.config_file import ConfigFile
from quire.errors import CheckpointError, ConfigError
from quire.model_folder import named_path, write_whole
from quire.models.checkpoint_formats.quantization_config import quantization_section

QUALITY_FILE = "quire_quality.json"
VERSION = 2
# name of a figure → where a report has it
FIGURES = {
    "perplexity_change": ("perplexity", "change"),
    "kl_divergence": ("kl_divergence", "mean"),
    "same_top_1": ("same_top_1", "share"),
    "hidden_cosine": ("hidden_cosine", "mean"),
}
_SETTINGS = "quantization_config"  # in a report's list of files
_SHOWN = {_SETTINGS: f"{_SETTINGS} in config.json, by which they are read,"}
_MOST = 1e30  # of a figure, or less its negative


class StaleReportError(CheckpointError):
    """A report is of other weights than those beside it, or of another quantization_config."""


class QualityLimits(msgspec.Struct, frozen=True):
    """The largest losses that a quantized model may have.

    perplexity: the most that it may rise, as a share. cosine: the least mean cosine of the last
    hidden states. same_top_1: the least share of tokens with the same most likely successor. named:
    the limits that were asked for by name, whose figures a report must have.
    """

    perplexity: float = 0.05
    cosine: float = 0.97
    same_top_1: float = 0.85
    named: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, option: str, words: Sequence[str] = ()) -> QualityLimits:
        """Limits from text such as "perplexity=0.01,cosine=0.99". Raises ConfigError.

        words: what else the option may be, for the message.
        """
        known, values = list(cls().record()), dict[str, float]()
        for item in text.split(","):
            name, _, number = item.partition("=")
            try:
                if name not in known or not math.isfinite(limit := float(number)):
                    raise ValueError
                values[name] = limit
            except ValueError:
                raise ConfigError(
                    f"{option} must be {''.join(f'{word}, ' for word in words)}"
                    f"{'or ' if words else ''}limits such as perplexity=0.01,cosine=0.99 of "
                    f"{', '.join(known)}, not {text!r}"
                ) from None
        for name, limit in values.items():  # perhaps in percent: too strict or too loose for any
            is_rise = name == "perplexity"  # whose 1 would be 1 % rather than twice as much
            if limit > 1.0 or (is_rise and limit == 1.0):
                most, example = ("below", "5 % as 0.05") if is_rise else ("at most", "99 % as 0.99")
                raise ConfigError(f"{option}: {name} is {most} 1, not {limit:g}; write {example}")
        return cls(**values, named=tuple(values))

    def failures(self, report: Mapping[str, Any]) -> list[str]:
        """The figures of a report that exceed the limits or are missing."""
        known = figures_of(report)
        change, cosine = known.get("perplexity_change"), known.get("hidden_cosine")
        same = known.get("same_top_1")
        figures = {"perplexity": change, "cosine": cosine, "same_top_1": same}
        found = [f"the report has no {name}" for name in self.named if figures[name] is None]
        if (position := report.get("not_finite")) is not None:
            found.append(f"numbers after {position} are not finite (NaN or infinity)")
        if change is not None and not change <= self.perplexity:
            found.append(f"perplexity rises by {change:.2%}, more than {self.perplexity:.2%}")
        if cosine is not None and not cosine >= self.cosine:
            found.append(f"the hidden states' cosine is {cosine:.4f}, less than {self.cosine}")
        if same is not None and not same >= self.same_top_1:
            found.append(
                f"{same:.1%} of first choices are the same, less than {self.same_top_1:.1%}"
            )
        return found

    def record(self) -> dict[str, float]:
        """The limits as JSON has them."""
        return {
            "perplexity": self.perplexity,
            "cosine": self.cosine,
            "same_top_1": self.same_top_1,
        }


def figures_of(report: Mapping[str, Any]) -> dict[str, float]:
    """The figures that a report has, by name."""
    found = {name: (report.get(part) or {}).get(key) for name, (part, key) in FIGURES.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def write_report(folder: Path, report: Mapping[str, Any]) -> Path:
    """Store a report beside the weights of a folder, with what its files are known by.

    A disk that is full leaves the report that was there. Raises OSError.
    """
    path = folder / QUALITY_FILE
    values = {"version": VERSION, "files": _known_by(folder), **report}
    text = json.dumps(values, indent=1) + "\n"
    write_whole(path, lambda part: part.write_text(text))
    return path


def read_report(folder: Path) -> dict[str, Any] | None:
    """The report of a folder's weights; None where there is none. Raises CheckpointError.

    Weight files that are not there, as before they are downloaded, do not count.
    """
    path = folder / QUALITY_FILE
    if not path.is_file():
        return None
    again = f"run `quire verify BASE {named_path(folder)}` again, or remove the report"
    try:
        report = ConfigFile.read(path)
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be read as JSON; {again}") from error
    failures = report.texts("failures")
    if report.integer("version") != VERSION or report.boolean("passed", False) == bool(failures):
        raise CheckpointError(
            f"{path} is not a report of this version of Quire; run quire verify again"
        )
    stored, found = report.get("files"), _known_by(folder)
    known = stored if isinstance(stored, dict) else {}
    changed = [name for name in {_SETTINGS, *found} if known.get(name) != found.get(name)]
    if changed or known is not stored:
        what = min(changed, default="the list of files")
        raise StaleReportError(
            f"{path} is not of these weights: {_SHOWN.get(what, what)} has changed since; undo "
            f"that, {again}"
        )
    for part, key in FIGURES.values():
        _check_figure(report.section(part), key)
    for key in ("base", "not_finite"):
        report.text(key, "")
    if not failures and (lost := _limits_of(report).failures(report.values)):
        raise report.wrong("passed", f"is true, but {lost[0]}; {again}")
    return report.values


def _limits_of(report: ConfigFile) -> QualityLimits:
    """The limits that a report was held to. Raises CheckpointError."""
    limits, known = report.section("limits"), dict[str, float]()
    for name in QualityLimits().record():
        _check_figure(limits, name)
        if limits is not None and (limit := limits.get(name)) is not None:
            known[name] = limit
    return msgspec.structs.replace(QualityLimits(), **known)


def replacement_problem(folder: Path, tokens: int, limits: QualityLimits) -> str | None:
    """Why a folder's report stays where a new one has so many tokens of text, and these limits.

    None where the new one takes its place: there is none of these weights, or none that is
    measured on more text or held to stricter limits.
    """
    try:
        stored = read_report(folder)
    except CheckpointError:  # of other weights, or damaged
        return None
    if stored is None:
        return None
    if type(known := stored.get("tokens")) is int and known > tokens:
        return f"the stored report is of {known:,} tokens of text, this one of {tokens:,}"
    before = stored.get("limits")
    looser = [
        f"{name}={old}"
        for name, value in limits.record().items()
        if isinstance(before, dict) and isinstance(old := before.get(name), int | float)
        and (value > old if name == "perplexity" else value < old)
    ]  # fmt: skip
    return f"the stored report has stricter limits, {','.join(looser)}" if looser else None


def _known_by(folder: Path) -> dict[str, str]:
    """The weight files' fingerprints, and that of the settings that they are read by."""
    from quire.models.config.weight_files import json_digest, weight_files  # most have no report

    files, path = weight_files(folder), folder / "config.json"
    section = quantization_section(ConfigFile.read(path)) if path.is_file() else None
    if section is None:
        return files
    return {**files, _SETTINGS: json_digest(section.values)}


def _check_figure(part: ConfigFile | None, key: str) -> None:
    value = None if part is None else part.get(key)
    if part is None or value is None:
        return
    if type(value) not in (int, float) or not -_MOST < value < _MOST:  # also refuses NaN
        raise part.wrong(key, "must be a finite number; run quire verify again")
