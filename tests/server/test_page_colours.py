"""The page's palette: text that can be read, and data that can be told apart without full colour.

Contrast is WCAG 2's. Colour vision deficiencies are simulated with the matrices of Machado,
Oliveira and Fernandes (2009) at full severity; differences are Euclidean in OKLab (Ottosson 2020).
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from quire.server.ops.web_page import FOLDER

Colour = np.ndarray  # three sRGB values from 0 to 1

SCHEMES = ["light", "dark"]

TEXT = [
    ("ink", "paper"), ("ink", "surface"), ("ink", "sunken"),
    ("muted", "paper"), ("muted", "surface"), ("muted", "sunken"),
    ("accent", "surface"), ("accent", "paper"), ("on-accent", "accent"), ("thread", "surface"),
]  # fmt: skip
SHAPES = [("edge", "surface"), ("used", "surface"), ("shared", "surface"), ("used", "free")]
DISTINCT_SERIES = [("free", "cached", "used", "shared"), ("decode", "prefill"), ("used", "cached")]
MIN_DIFFERENCE = 0.1  # five times what side by side can just be seen

VISION = {
    "full": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
    "none": [[0.2126, 0.7152, 0.0722]] * 3,
}  # fmt: skip

OKLAB_LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def palette(scheme: str) -> dict[str, Colour]:
    """The colours by name."""
    light, dark = (FOLDER / "colours.css").read_text().split("@media (prefers-color-scheme: dark)")
    text = light + dark if scheme == "dark" else light
    found = re.findall(r"--([\w-]+): #([0-9a-f]{6});", text)
    return {name: np.array(list(bytes.fromhex(digits))) / 255 for name, digits in found}


def linear(colour: Colour) -> Colour:
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def contrast(first: Colour, second: Colour) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (first, second))
    return (high + 0.05) / (low + 0.05)


def oklab(light: Colour) -> Colour:
    return np.array(OKLAB) @ np.cbrt(np.array(OKLAB_LMS) @ light)


def difference(first: Colour, second: Colour, vision: str) -> float:
    seen = [np.clip(np.array(VISION[vision]) @ linear(c), 0, 1) for c in (first, second)]
    return float(np.linalg.norm(oklab(seen[0]) - oklab(seen[1])))


def test_the_measures_know_black_and_white() -> None:
    black, white = np.zeros(3), np.ones(3)
    assert contrast(black, white) == pytest.approx(21)
    assert difference(black, white, "full") == pytest.approx(1, abs=1e-3)
    red, green = np.array([0.75, 0.3, 0.2]), np.array([0.42, 0.45, 0.15])
    assert difference(red, green, "deuteranopia") < 0.5 * difference(red, green, "full")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("pair", TEXT, ids="-on-".join)
def test_text_can_be_read(scheme: str, pair: tuple[str, str]) -> None:
    colours = palette(scheme)
    assert contrast(colours[pair[0]], colours[pair[1]]) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("pair", SHAPES, ids="-on-".join)
def test_shapes_can_be_seen(scheme: str, pair: tuple[str, str]) -> None:
    colours = palette(scheme)
    assert contrast(colours[pair[0]], colours[pair[1]]) >= 3


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("names", DISTINCT_SERIES, ids="-".join)
def test_series_colours_are_distinct(names: tuple[str, ...], scheme: str, vision: str) -> None:
    colours = palette(scheme)
    for first, second in itertools.combinations(names, 2):
        found = difference(colours[first], colours[second], vision)
        assert found >= MIN_DIFFERENCE, f"{first} and {second}: {found:.3f}"
