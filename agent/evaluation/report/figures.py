"""Figures by matplotlib, as inline SVG, in colours that follow the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline

from graphs.system.errors import printable

LIGHT = ("#2166ac", "#d95f02", "#1b9e77", "#b2328c", "#8c6d1f", "#5e4fa2", "#c0392b", "#4d4d4d")
"""Colours of lines and devices on white; `style.css` has those on black."""


@dataclass(frozen=True)
class Palette:
    """Colours of a figure."""

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]

    def of(self, index: int) -> str:
        """Colour of the line or device with an index; they recur."""
        return self.series[index % len(self.series)]


PAGE = Palette("#010101", "#010102", "#010103", tuple(f"#01020{index}" for index in range(len(LIGHT))))
"""Colours that `as_svg` replaces by the page's CSS variables."""
VARIABLES = {PAGE.ink: "var(--ink)", PAGE.muted: "var(--muted)", PAGE.grid: "var(--grid)"} | {
    colour: f"var(--s{index})" for index, colour in enumerate(PAGE.series)
}

Draw = Callable[[Figure, Palette], None]
"""Draws into an empty figure."""


def as_svg(draw: Draw, width_in: float, height_in: float, label: str) -> Markup:
    """Draws a figure as inline SVG.

    Args:
        width_in, height_in: size in inches of 72 units.
        label: says what is shown, to those who cannot see it.
    """
    settings = _settings() | {"svg.fonttype": "none", "svg.hashsalt": label}
    file = io.StringIO()
    with mpl.rc_context(settings):
        figure = Figure(figsize=(width_in, height_in), layout="constrained", facecolor="none")
        draw(figure, PAGE)
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})  # `savefig` lays it out twice
    return _slim(file.getvalue(), label)


def rectangles(spans: np.ndarray) -> Outline:
    """Makes one outline of many rectangles.

    Args:
        spans: left, right, bottom and top of each, (n, 4).
    """
    left, right, bottom, top = spans.T
    corners = np.stack([left, bottom, left, top, right, top, right, bottom, left, bottom], axis=1)
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    return Outline(corners.reshape(-1, 2), codes * len(spans))


def _settings() -> dict[str, Any]:
    return {
        "font.family": "sans-serif",
        "font.size": 9.0,
        "text.color": PAGE.ink,
        "axes.labelcolor": PAGE.ink,
        "axes.edgecolor": PAGE.muted,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": PAGE.muted,
        "xtick.labelcolor": PAGE.ink,
        "ytick.color": PAGE.muted,
        "ytick.labelcolor": PAGE.ink,
        "grid.color": PAGE.grid,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "path.simplify": False,
        "text.parse_math": False,
    }


def _slim(svg: str, label: str) -> Markup:
    """Cuts what a page does not need, rounds coordinates and puts the page's colours in."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub("<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), svg)  # no label
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    svg = re.sub(r"#0[0-9a-f]{5}", lambda found: VARIABLES.get(found[0], found[0]), svg)
    named = Markup('role="img" aria-label="{}"').format(printable(label))
    sizes = r'<svg[^>]*?(viewBox="[^"]*")[^>]*>'
    return Markup(re.sub(sizes, lambda found: f"<svg {found[1]} {named}>", svg, count=1))
