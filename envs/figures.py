"""Figures of a simulated step: what each device runs and sends when, and the memory that it holds."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.objective import COPIES, Bars, Objective
from envs.placements.placement import Placement
from envs.problem import Problem, kinds
from envs.simulator.simulate import SimulatedStep
from graphs.graph_columns import PHASES
from graphs.system.array_types import IntArray
from graphs.system.errors import shortened
from graphs.system.json_files import write_bytes_atomic

if TYPE_CHECKING:  # loading it takes longer than many placements
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OKABE_ITO = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#4d4d4d")
"""Colours that colour-blind people tell apart: those of Okabe and Ito, "Color universal design", 2008, but no
yellow, which is pale on white, and grey for black."""
KINDS = (*PHASES, "weight gradients", "forward again")
"""Kinds of bars by the index of their colour; copies have a muted one."""
N_BINS, N_PARTS = 500, 300
"""Parts of a step: bars that are shorter than a bin are joined; a curve has a step for each part."""
WIDTH_IN, ROW_IN, MEMORY_IN = 10.0, 0.32, 2.1
LABEL_CHARS = 24
WIDE, NEAR, LEAST = 0.01, 2.5, 5e-4
"""Share of the axis from which on bars have edges and numbers; times the peak up to which capacities show;
GiB or MiB below which a device has no curve."""
DASHES = ("-", "--", ":")
"""Line styles, which tell devices of one colour apart."""


@dataclass(frozen=True)
class Palette:
    """Colours of a figure."""

    ink: str
    muted: str
    grid: str
    paper: str
    series: tuple[str, ...]

    def of(self, index: int) -> str:
        """Colour of the line or device with an index; they recur."""
        return self.series[index % len(self.series)]


PAPER = Palette("#222222", "#777777", "#dddddd", "#ffffff", OKABE_ITO)


def timeline(objective: Objective, placement: Placement, step: SimulatedStep) -> dict[str, Bars]:
    """Lists all that takes time in a step by its kind: ops by phase and copies, or actions of a pipeline.

    Args:
        step: simulated step of the placement.

    Returns:
        Bars by kind, from `KINDS` and `COPIES`, without kinds of which there are none. A copy is one of its
        source.
    """
    bars = objective.bars(placement, step).items()
    shown = {kind: drawn.where(drawn.end_s > drawn.start_s) for kind, drawn in bars}
    return {kind: drawn for kind, drawn in shown.items() if len(drawn.device)}


def joined(bars: Bars, least_s: float) -> Bars:
    """Joins bars of a device that are shorter than some seconds, with gaps that are shorter; sorts them."""
    bars = bars.where(np.lexsort((bars.start_s, bars.device)))
    is_short = bars.end_s - bars.start_s < least_s
    follows = (np.diff(bars.device) == 0) & (bars.start_s[1:] - bars.end_s[:-1] < least_s)
    first = np.flatnonzero(np.concatenate([[True], ~(follows & is_short[1:] & is_short[:-1])]))
    return bars.where(first)._replace(end_s=np.maximum.reduceat(bars.end_s, first))


def rows_of(problem: Problem, device_of: IntArray) -> IntArray:
    """Returns the row of each device, (n_devices,): as in the cluster, but equal devices by their first op.

    Args:
        device_of: device index of each op, int64 (n_ops,).
    """
    ops, first_op = np.flatnonzero(~problem.graph.is_source), np.full(problem.n_devices, len(device_of))
    np.minimum.at(first_op, device_of[ops], ops)
    first_of, kind_of = kinds(np.vstack([problem.op_seconds, problem.cluster.memory_bytes]))
    rows = np.arange(problem.n_devices)
    for kind in range(len(first_of)):
        alike = np.flatnonzero(kind_of == kind)
        rows[alike[np.argsort(first_op[alike], kind="stable")]] = alike
    return rows


def draw_timeline(
    axes: Axes,
    objective: Objective,
    placement: Placement,
    step: SimulatedStep,
    until_s: float,
    palette: Palette,
) -> None:
    """Draws a row for each device: ops or actions by kind, numbered by microbatch, and what it sends below.

    Args:
        step: simulated step of the placement; its end is marked.
        until_s: end of the axis, the same for figures that are compared.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    bars, (unit, per_s) = timeline(objective, placement, step), _time_unit(until_s)
    rows = rows_of(objective.problem, placement.device_of)
    of_ops, of_copies = ((-0.4, 0.18), (0.24, 0.42)) if COPIES in bars else ((-0.4, 0.4), (0.0, 0.0))
    for kind, intervals in bars.items():
        top, bottom = of_copies if kind == COPIES else of_ops
        colour = palette.muted if kind == COPIES else palette.of(KINDS.index(kind))
        device, start_s, end_s, microbatch = joined(intervals, until_s / N_BINS)
        row, wide = rows[device], end_s - start_s > WIDE * until_s
        left, right, y = per_s * start_s, per_s * end_s, (row + top, row + bottom)
        corners = np.stack([left, y[0], left, y[1], right, y[1], right, y[0]], axis=1).reshape(-1, 4, 2)
        for chosen, edge, label in ((wide, palette.paper, kind), (~wide, "none", None)):
            outline = Outline.make_compound_path_from_polys(corners[chosen])
            axes.add_patch(PathPatch(outline, facecolor=colour, edgecolor=edge, linewidth=0.6, label=label))
        ink = palette.paper if sum(to_rgb(colour)) < 1.4 else palette.ink
        for index in np.flatnonzero(wide & (microbatch >= 0)).tolist():
            text = (left[index] + right[index]) / 2, row[index], str(microbatch[index])
            axes.text(*text, size=7, ha="center", va="center", color=ink)
    names = [shortened(device.name, LABEL_CHARS) for device in objective.problem.cluster.devices]
    axes.set_yticks(rows, names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0.0, per_s * until_s)
    axes.set_xlabel(f"time, {unit}")
    axes.axvline(per_s * step.total_s, color=palette.ink, linewidth=0.8, linestyle=":")


def step_figure(objective: Objective, placement: Placement, step: SimulatedStep, title: str) -> Figure:
    """Draws the timeline of each device, and below it the memory that each holds over time.

    Args:
        step: simulated step of the placement.
    """
    import matplotlib as mpl

    until_s = step.total_s or 1e-9
    rows_in = max(ROW_IN * (objective.problem.n_devices + 1), 1.2)
    with mpl.rc_context(style(PAPER)):
        figure = new_figure(rows_in + MEMORY_IN + 0.8)
        upper, lower = figure.subplots(2, sharex=True, height_ratios=(rows_in, MEMORY_IN))
        draw_timeline(upper, objective, placement, step, until_s, PAPER)
        upper.set_title(title, loc="left")
        upper.set_xlabel("")
        draw_legend(upper)
        _draw_memory(lower, objective, placement, until_s)
    return figure


def _draw_memory(axes: Axes, objective: Objective, placement: Placement, until_s: float) -> None:
    """Draws a curve for each device that holds anything, and the capacities that it comes near."""
    cluster, curves = objective.problem.cluster, objective.memory(placement, N_PARTS)
    unit, size = ("GiB", 2**30) if curves.max() >= 2**29 else ("MiB", 2**20)
    time_unit, per_s = _time_unit(until_s)
    edges = np.linspace(0.0, per_s * until_s, N_PARTS + 1)
    rows = rows_of(objective.problem, placement.device_of)
    peak, capacity = curves.max(axis=1) / size, cluster.memory_bytes / size
    for device in np.argsort(rows)[peak[np.argsort(rows)] >= LEAST].tolist():
        name, row = shortened(cluster.devices[device].name, LABEL_CHARS), int(rows[device])
        axes.stairs(
            curves[device] / size,
            edges,
            baseline=None,
            color=PAPER.of(row),
            linestyle=DASHES[row // len(PAPER.series) % len(DASHES)],
            linewidth=1.4,
            label=f"{name}: {peak[device]:.1f} of {capacity[device]:.1f}",
        )
    near = np.unique(capacity[(peak > 0) & (capacity < NEAR * peak.max())]).tolist()
    for line in near:
        axes.axhline(line, color=PAPER.ink, linewidth=0.8, linestyle=(0, (6, 3)))
        axes.annotate(f"capacity {line:.3g}", (0, line), (4, 2), textcoords="offset points", size=8)
    axes.set_ylim(0.0, 1.12 * max([1e-9, *near, peak.max()]))
    axes.set(ylabel=f"memory, {unit}", xlabel=f"time, {time_unit}")
    axes.grid(True, axis="y")
    draw_legend(axes, f"peak of capacity, {unit}")


def draw_legend(axes: Axes, title: str = "") -> None:
    """Draws a legend on the right of the axes."""
    handles = axes.get_legend_handles_labels()
    axes.legend(*handles, title=title, loc="upper left", bbox_to_anchor=(1.0, 1.03), alignment="left")


def _time_unit(until_s: float) -> tuple[str, float]:
    """Returns the unit of an axis of time, and how many of it are a second."""
    return ("s", 1.0) if until_s >= 10 else ("ms", 1e3) if until_s >= 1e-3 else ("µs", 1e6)


def style(palette: Palette) -> dict[str, Any]:
    """Returns matplotlib's settings of a figure in these colours."""
    rules: dict[str, Any] = {"font.family": "sans-serif", "font.size": 9.0, "axes.titlesize": 10.0}
    rules |= dict.fromkeys(("legend.fontsize", "legend.title_fontsize"), 8.0)
    rules |= dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), palette.ink
    )
    rules |= dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), palette.muted)
    rules |= {"axes.facecolor": "none", "grid.color": palette.grid, "grid.linewidth": 0.6}
    rules |= dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False)
    return rules | {"path.simplify": False, "text.parse_math": False}


FILLED = 0.95
"""Share of the width that the layout fills."""


def new_figure(height_in: float) -> Figure:
    """Makes an empty figure, which notebooks show as SVG."""
    from matplotlib.figure import Figure

    figure = Figure((WIDTH_IN, height_in), dpi=100, layout="constrained")
    # Browsers draw text in a font of their own, which may be wider than the one that is laid out.
    figure.get_layout_engine().set(rect=(0.0, 0.0, FILLED, 1.0))  # type: ignore[union-attr,call-arg]
    figure._repr_svg_ = partial(svg_of, figure)  # type: ignore[attr-defined]
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    """Saves a figure atomically in the format that the name ends in, if there is one; returns the figure.

    Raises:
        ValueError: a format that matplotlib lacks; the message lists those that it has.
    """
    if path is not None:
        file, ending = io.BytesIO(), Path(path).suffix[1:].lower()
        if ending == "svg":
            file.write(svg_of(figure).encode())
        else:
            figure.savefig(file, format=ending)
        write_bytes_atomic(path, file.getvalue())
    return figure


def svg_of(figure: Figure) -> str:
    """Returns a figure as a small SVG element."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "placewalk"}):
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})  # `savefig` lays it out twice
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    for part in ("<metadata>.*?</metadata>", '<style type="text/css">.*?</style>', "<!--.*?-->"):
        svg = re.sub(part, "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub("<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), svg)  # no label
    return re.sub(r"\s*\n\s*", "\n", svg)
