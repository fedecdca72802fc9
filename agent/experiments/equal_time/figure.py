"""The figure of placers in equal time: quality over the processor seconds that were taken."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from agent.evaluation.report.figures import Palette, as_file
from agent.experiments.equal_time.paired import Paired

LEARNED = "policy"
"""Begins the names of placers that learned."""
ONE_SHOT = 2.0
"""A placer whose time grows by less than this factor over all budgets is drawn as a dot."""


def draw_quality_over_time(found: Sequence[Paired]) -> bytes:
    """Draws a line or a dot per placer, dashed where nothing was learned; bytes of an SVG file."""

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        for index, placer in enumerate(dict.fromkeys(each.placer for each in found)):
            own = sorted((each for each in found if each.placer == placer), key=lambda each: each.cpu_s)
            shown = own[-1:] if own[-1].cpu_s < ONE_SHOT * own[0].cpu_s else own
            learned = placer.startswith(LEARNED)
            axes.plot(
                [each.cpu_s for each in shown],
                [each.to_single for each in shown],
                marker="D" if learned else "o",
                markersize=6 if len(shown) == 1 else 4,
                linestyle="-" if learned else "--",
                color=palette.of(index),
                label=placer,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("processor seconds a graph, mean")
        axes.set_ylabel("step time over one device")
        axes.grid(visible=True)
        figure.legend(loc="outside right upper")

    return as_file(draw, 8.0, 4.5)
