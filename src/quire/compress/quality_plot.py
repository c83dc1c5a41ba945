"""The loss of each decoder layer as a picture: an SVG file, written as text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_HEIGHT, _LEFT, _TOP, _BOTTOM = 240, 70, 40, 30
_BAR, _GAP = 14, 4


def svg(title: str, losses: Sequence[float]) -> str:
    """The picture's text, of bars. losses: after each layer, at least 0."""
    most = max(*losses, 1e-9)
    width = _LEFT + len(losses) * (_BAR + _GAP) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 420)}" '
        f'height="{_TOP + _HEIGHT + _BOTTOM}" font-family="sans-serif" font-size="11">',
        f'<text x="{_LEFT}" y="20" font-size="13">{escape(title)}</text>',
        *(_line(share, most) for share in (0.0, 0.25, 0.5, 0.75, 1.0)),
        *(_bar(index, loss, most) for index, loss in enumerate(losses)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _line(share: float, most: float) -> str:
    y = _TOP + _HEIGHT * (1.0 - share)
    return (
        f'<line x1="{_LEFT}" y1="{y:.1f}" x2="100%" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:.2g}</text>'
    )


def _bar(index: int, loss: float, most: float) -> str:
    height = _HEIGHT * loss / most
    x, y = _LEFT + index * (_BAR + _GAP), _TOP + _HEIGHT - height
    label = f'<text x="{x}" y="{_TOP + _HEIGHT + 14}">{index}</text>'
    bar = (
        f'<rect x="{x}" y="{y:.1f}" width="{_BAR}" height="{height:.1f}" fill="#2f5d9b">'
        f"<title>layer {index}: 1 - cosine {loss:.3g}</title></rect>"
    )
    return bar if index % 5 else bar + label
