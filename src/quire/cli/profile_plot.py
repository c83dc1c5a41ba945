"""The picture of a profile: where the time goes, and how near each operation is to the roofline."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.errors import ConfigError

if TYPE_CHECKING:
    from quire.engine.profile.profile_result import Profile


def check_plot(path: Path) -> None:
    """Raises ConfigError if no picture could be written there, before anything is measured."""
    if path.suffix != ".png" or not path.parent.is_dir():
        raise ConfigError(f"plot must be a .png file in an existing folder, not {str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib; pip install matplotlib, or leave it out")


def plot(profile: Profile, path: Path) -> None:
    """Write the picture of a profile to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_times(left, profile)
    _draw_roofline(right, profile)
    figure.savefig(path, dpi=150)


def _draw_times(axes: Any, profile: Profile) -> None:
    names = [f"{op.name} ({op.count})" for op in profile.operations]
    rows = np.arange(len(names))
    axes.barh(rows, [op.seconds * 1e3 for op in profile.operations], color="#9db4d3")
    axes.barh(rows, [op.floor * 1e3 for op in profile.operations], color="#2f5d9b", height=0.35)
    axes.set_yticks(rows, names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms; dark: the least by the roofline")
    step = profile.step
    axes.set_title(f"{profile.model}: {step.num_requests} x {step.num_new} of {step.context}")


def _draw_roofline(axes: Any, profile: Profile) -> None:
    counted = [op for op in profile.operations if op.flops]
    best = profile.roofline
    intensity = np.logspace(-1, 4, 100)
    for rate in filter(None, (best.flops_per_second, best.fp8_flops_per_second)):
        reachable = np.minimum(rate, intensity * best.bytes_per_second)
        axes.loglog(intensity, reachable, color="#2f5d9b")
    for op in counted:
        position = op.flops / op.num_bytes, op.flops / op.seconds
        axes.plot(*position, "o", color="#c0562b", markersize=4)
        axes.annotate(f"{op.name} {op.shape}", position, fontsize=6)
    axes.set_xlabel("FLOP a byte")
    axes.set_ylabel("FLOP/s")
    axes.set_title(f"roofline of {profile.device}, {profile.dtype}, measured")
