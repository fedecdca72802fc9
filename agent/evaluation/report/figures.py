"""Figures by matplotlib, as inline SVG, in colours that follow the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from agent.evaluation.comparison.ratios import Run, by_run
from agent.evaluation.results import Trial, name_of
from envs.figures import PAPER, style, svg_of
from graphs.system.errors import printable

VARIABLES = {colour: f"var(--s{index})" for index, colour in enumerate(PAPER.series)}
VARIABLES |= {getattr(PAPER, name): f"var(--{name})" for name in ("ink", "muted", "grid", "paper")}
"""Colours of figures as the page's CSS variables; `style.css` has those on black."""


def as_svg(figure: Figure, label: str) -> Markup:
    """Formats a figure as inline SVG in the colours of the page.

    Args:
        label: says what is shown, to those who cannot see it.
    """
    svg = re.sub(r"#[0-9a-f]{6}", lambda match: VARIABLES.get(match[0], match[0]), svg_of(figure))
    named = Markup('role="img" aria-label="{}"').format(printable(label))
    sizes = r'<svg[^>]*?(viewBox="[^"]*")[^>]*>'
    return Markup(re.sub(sizes, lambda match: f"<svg {match[1]} {named}>", svg, count=1))


N_POINTS = 60
"""Points of a line."""
SIZE_IN = (5.0, 3.6)
STYLES = ("-", "--", ":", "-.")
"""Line styles, which tell lines of one colour apart."""

Line = tuple[np.ndarray, np.ndarray]
"""The budget spent, and the step time over that of one device then, (n,) each."""


def lines_of(trials: Iterable[Trial], of: str) -> dict[Run, Line]:
    """Curves of the placers that found a feasible placement for every graph that any found one for.

    Args:
        of: 'evaluations' or 'seconds'.
    """
    runs = by_run(trial for trial in trials if trial.is_placement and trial.single_s > 0)
    solved = {
        where for by_where in runs.values() for where, of_where in by_where.items() if _all_feasible(of_where)
    }
    lines = {}
    for run, by_where in runs.items():
        if solved and all(_all_feasible(by_where.get(where, ())) for where in solved):
            lines[run] = _line([trial for where in solved for trial in by_where[where]], of)
    return lines


def _all_feasible(trials: Sequence[Trial]) -> bool:
    return bool(trials) and all(trial.feasible and trial.step_time_s > 0 for trial in trials)


def _line(trials: Sequence[Trial], of: str) -> Line:
    """Geometric mean over trials, from where all of them have a placement to where the last one ends."""
    spent_of: Callable[[Trial], float] = (
        (lambda trial: float(trial.evaluations)) if of == "evaluations" else (lambda trial: trial.wall_s)
    )
    column = of == "seconds"
    paths = [
        np.array([(improvement[column], improvement.step_time_s) for improvement in trial.history]).T
        for trial in trials
    ]
    first = max(max(float(path[0, 0]) for path in paths), 1e-6)
    last = max(first, *(spent_of(trial) for trial in trials))
    spent = np.unique(np.geomspace(first, last, N_POINTS))
    logs = np.zeros(len(spent))
    for path, trial in zip(paths, trials, strict=True):
        index = np.searchsorted(path[0], spent * (1 + 1e-12), side="right") - 1
        logs += np.log(path[1][np.maximum(index, 0)] / trial.single_s)
    return spent, np.exp(logs / len(trials))


def curve_charts(trials: Sequence[Trial]) -> list[Markup]:
    """Two charts: against evaluations and against seconds; none where nothing is feasible."""
    return [
        as_svg(curve_figure(lines, of), f"step time over one device against {of}")
        for of in ("evaluations", "seconds")
        if (lines := lines_of(trials, of))
    ]


def curve_figure(lines: Mapping[Run, Line], of: str) -> Figure:
    """Draws every placer as a line, or as a dot where it stops at once."""
    with mpl.rc_context(style(PAPER)):
        figure = Figure(SIZE_IN, layout="constrained")
        axes = figure.add_subplot()
        ranked = sorted(lines.items(), key=lambda item: item[1][1][-1])
        for index, (run, (spent, ratio)) in enumerate(ranked):
            is_dot = len(spent) < 2 or spent[-1] < 1.2 * spent[0]
            axes.plot(
                spent[-1:] if is_dot else spent,
                ratio[-1:] if is_dot else ratio,
                color=PAPER.of(index),
                linestyle="none" if is_dot else STYLES[index // len(PAPER.series) % len(STYLES)],
                marker="o" if is_dot else None,
                markersize=5,
                label=name_of(*run),
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.7g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("evaluations" if of == "evaluations" else "seconds a trial took")
        axes.set_ylabel("step time / one device")
        axes.grid(True)
        figure.legend(loc="outside upper left", ncols=2, fontsize=8)
    return figure
