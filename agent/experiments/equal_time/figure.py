"""The figure of placers in equal time: quality over the processor seconds that were taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from agent.evaluation.report.figures import Palette, as_file
from agent.experiments.equal_time.paired import Paired
from agent.experiments.rows import read_rows

LEARNED = "policy"
"""Begins the names of placers that learned."""
SAME = 0.02
"""A placer whose step time differs by less than this share over all budgets stops by itself."""
OVERRUN = 1.5
"""A placer that took more than so many times its budget could not keep to it."""


def shown(own: Sequence[Paired]) -> list[Paired]:
    """Points of a placer: one at its median time if it stops by itself, else those within its budget."""
    own = sorted(own, key=lambda each: each.cpu_s)
    quality = [each.to_single for each in own]
    if max(quality) < (1 + SAME) * min(quality):
        return [own[len(own) // 2]]
    return [each for each in own if each.cpu_s <= OVERRUN * each.seconds] or own[-1:]


def draw_rows(file: Path) -> bytes:
    """Draws a file of rows of `Paired`."""
    return draw_quality_over_time(read_rows(file, Paired))


def draw_quality_over_time(found: Sequence[Paired]) -> bytes:
    """Draws a line or a dot per placer, dashed where nothing was learned; bytes of an SVG file."""

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        for index, placer in enumerate(dict.fromkeys(each.placer for each in found)):
            points = shown([each for each in found if each.placer == placer])
            learned = placer.startswith(LEARNED)
            axes.plot(
                [each.cpu_s for each in points],
                [each.to_single for each in points],
                marker="D" if learned else "o",
                markersize=6 if len(points) == 1 else 4,
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
