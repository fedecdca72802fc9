"""A figure without a plotting library: dots on a logarithmic axis, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

LEFT, WIDTH, TOP, ROW, MARGIN = 130, 560, 64, 20, 30
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377", "#66ccee")
"""Colours that colour-blind readers can distinguish (Paul Tol's scheme "bright")."""
TICKS = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0)


def dot_plot(values: Mapping[str, Mapping[str, float]], title: str) -> str:
    """Draw a row per name with a coloured dot per series, a line at 1; the least mean is at the top.

    Args:
        values: positive numbers by name, then by series; every name has the same series.
    """
    names = sorted(values, key=lambda name: math.prod(values[name].values()))
    series = list(values[names[0]])
    least = min(min(row.values()) for row in values.values()) / 1.05
    most = max(max(row.values()) for row in values.values()) * 1.05

    def x(value: float) -> float:
        return LEFT + WIDTH * math.log(value / least) / math.log(most / least)

    bottom = TOP + ROW * len(names)
    parts = [f'<text x="{LEFT}" y="18">{escape(title)}</text>']
    for at, name in enumerate(series):
        parts.append(_dot(LEFT + 6 + 110 * at, 38, at))
        parts.append(f'<text x="{LEFT + 16 + 110 * at}" y="42">{escape(name)}</text>')
    for tick in TICKS:
        if least <= tick <= most:
            dashes = "" if tick == 1 else ' stroke-dasharray="2 4"'
            parts.append(f'<path d="M{x(tick):.1f} {TOP - 8}V{bottom}" stroke="#888"{dashes}/>')
            parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for at, name in enumerate(names):
        y = TOP + ROW * at + ROW // 2
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        parts += [_dot(x(value), y, index) for index, value in enumerate(values[name].values())]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + MARGIN}" height="{bottom + MARGIN}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _dot(x: float, y: float, series: int) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[series % len(COLOURS)]}"/>'
