"""The timeline of a simulated step: what runs on each device, and what goes over each link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

from agent.evaluation.report.figures import Draw, Palette, rectangles
from envs.pipeline.schedules import FORWARD
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.problem import Problem
from envs.simulator.copies import link_name, simulated_copies
from envs.simulator.simulate import StepTime
from graphs.graph_columns import PHASES
from graphs.system.array_types import IntArray
from graphs.system.errors import shortened

N_BINS = 250
"""Parts of a step; what is separated by less than one of them is drawn as one bar."""
MOST_LINKS = 12
"""Links that are drawn, the busiest ones."""
WIDTH_IN, ROW_IN = 6.6, 0.3
LABEL_CHARS = 24

Spans = np.ndarray
"""Starts and ends in seconds, (n, 2)."""
FORWARD_ALPHA, BACKWARD_ALPHA = 0.55, 1.0
"""Forward actions are paler than backward ones."""


def merged(spans: Spans, least_s: float) -> Spans:
    """Joins spans that overlap or are separated by less than some seconds; returns them by start."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    if not len(spans):
        return spans
    ends = np.maximum.accumulate(spans[:, 1])
    is_first = np.concatenate([[True], spans[1:, 0] > ends[:-1] + least_s])
    firsts = np.flatnonzero(is_first)
    lasts = np.concatenate([firsts[1:], [len(spans)]]) - 1
    return np.stack([spans[firsts, 0], ends[lasts]], axis=1)


def device_spans(problem: Problem, device_of: IntArray, step: StepTime) -> dict[tuple[int, int], Spans]:
    """Spans of the ops by device and phase (an index of `PHASES`)."""
    phase = np.array([PHASES.index(each) for each in problem.graph.phases])
    runs = step.finish_s > step.start_s
    found = {}
    for device in range(problem.n_devices):
        for index in range(len(PHASES)):
            ops = np.flatnonzero(runs & (device_of == device) & (phase == index))
            if len(ops):
                found[device, index] = np.stack([step.start_s[ops], step.finish_s[ops]], axis=1)
    return found


def link_spans(problem: Problem, device_of: IntArray) -> dict[str, Spans]:
    """Spans of the copies by link, of the busiest links."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for copy in simulated_copies(problem, device_of):
        spans.setdefault(link_name(problem, copy), []).append((copy.start_s, copy.end_s))
    busiest = sorted(spans, key=lambda link: -sum(end - start for start, end in spans[link]))[:MOST_LINKS]
    return {link: np.array(spans[link]) for link in sorted(busiest)}


def timeline_height_in(problem: Problem, n_links: int = 0) -> float:
    """Height of a figure in inches."""
    return 0.9 + ROW_IN * (problem.n_devices + n_links)


def timeline_figure(
    problem: Problem, device_of: IntArray, step: StepTime, until_s: float, links: Mapping[str, Spans]
) -> Draw:
    """Draws a row of bars per device, coloured by phase, and a thinner one per link.

    Args:
        until_s: end of the axis, the same for figures that are compared.
    """

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        names = [device.name for device in problem.cluster.devices]
        least_s = until_s / N_BINS
        shown = set()
        for (device, phase), spans in device_spans(problem, device_of, step).items():
            label = None if phase in shown else PHASES[phase]
            shown.add(phase)
            _add_bars(axes, merged(spans, least_s), device, 0.4, palette.of(phase), label)
        for at, spans in enumerate(links.values(), len(names)):
            _add_bars(axes, merged(spans, least_s), at, 0.2, palette.muted, "copies" if links else None)
        _set_axes(axes, (*names, *links), until_s, step.total_s, palette, "ms")
        handles, labels = axes.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), loc="outside upper left", ncols=4, fontsize=8)

    return draw


def _set_axes(
    axes: Axes, names: Sequence[str], until_s: float, total_s: float, palette: Palette, what: str
) -> None:
    """Names the rows, sets the axis of time and marks the end of the step."""
    rows = [shortened(name, LABEL_CHARS) for name in names]
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0.0, 1e3 * until_s)
    axes.set_xlabel(what)
    axes.axvline(1e3 * total_s, color=palette.ink, linewidth=0.8, linestyle=":")


def _add_bars(axes: Axes, spans: Spans, row: int, half: float, colour: str, label: str | None) -> None:
    outline = np.column_stack([1e3 * spans, np.full(len(spans), row - half), np.full(len(spans), row + half)])
    patch = PathPatch(rectangles(outline), facecolor=colour, edgecolor="none", label=label or "_")
    axes.add_patch(patch)


def pipeline_timeline_figure(pipelined: PipelinedProblem, step: PipelineTime, until_s: float) -> Draw:
    """Draws a row of actions per device; those of a microbatch have one colour, updates are grey.

    Args:
        until_s: end of the axis, the same for figures that are compared.
    """

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        bars: dict[tuple[str, float], list[tuple[float, float, float, float]]] = {}
        for action in step.actions:
            if action.end_s > action.start_s:
                is_update = action.stage < 0
                colour = palette.muted if is_update else palette.of(action.microbatch)
                alpha = FORWARD_ALPHA if action.kind == FORWARD else BACKWARD_ALPHA
                box = (1e3 * action.start_s, 1e3 * action.end_s, action.device - 0.4, action.device + 0.4)
                bars.setdefault((colour, alpha), []).append(box)
        for (colour, alpha), boxes in bars.items():
            patch = PathPatch(
                rectangles(np.array(boxes)),
                facecolor=colour,
                alpha=alpha,
                edgecolor=palette.grid,
                linewidth=0.3,
            )
            axes.add_patch(patch)
        names = [device.name for device in pipelined.problem.cluster.devices]
        what = "ms; a colour for each microbatch, forward paler than backward, updates grey"
        _set_axes(axes, names, until_s, step.total_s, palette, what)

    return draw
