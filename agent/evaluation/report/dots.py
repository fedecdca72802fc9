"""A figure of ratios: a row per name, a dot with its interval per series, a line at 1."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from agent.evaluation.comparison.intervals import Interval
from agent.evaluation.report.figures import Palette, as_file

WIDTH_IN, ROW_IN, MARGIN_IN = 8.0, 0.28, 1.2
BESIDE = 0.15
"""Distance of the series of a row, in rows."""


def draw_dots(
    names: Sequence[str],
    series: Mapping[str, Sequence[Interval]],
    title: str,
    muted: Collection[str] = (),
) -> bytes:
    """Draws ratios on a logarithmic axis; bytes of an SVG file.

    Args:
        names: of the rows, the first at the top.
        series: ratios of each row, by name; a legend tells several series apart.
        muted: rows that are drawn in grey.
    """

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        axes.axvline(1.0, color=palette.muted, linewidth=1.0)
        for index, (label, ratios) in enumerate(series.items()):
            colours = [palette.muted if name in muted else palette.of(index) for name in names]
            shift = (index - (len(series) - 1) / 2) * BESIDE
            rows = [row + shift for row in range(len(names))]
            axes.hlines(rows, [each.low for each in ratios], [each.high for each in ratios], colors=colours)
            axes.scatter([each.mean for each in ratios], rows, c=colours, s=22, label=label, zorder=3)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(visible=True, axis="x")
        axes.set_title(title, loc="left", fontsize="medium")
        if len(series) > 1:
            figure.legend(loc="outside lower center", ncols=6)

    return as_file(draw, WIDTH_IN, MARGIN_IN + ROW_IN * len(names))
