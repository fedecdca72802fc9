"""The timeline of a pipelined step: the actions of each device, coloured by microbatch."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

from agent.evaluation.report.figures import Draw, Palette, rectangles
from agent.evaluation.report.timelines import LABEL_CHARS, ROW_IN
from envs.pipeline.schedules import FORWARD
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from graphs.system.errors import shortened

FORWARD_ALPHA, BACKWARD_ALPHA = 0.55, 1.0
"""Forward actions are paler than backward ones."""


def pipeline_timeline_height_in(pipelined: PipelinedProblem) -> float:
    """Height of the figure in inches."""
    return 0.9 + ROW_IN * pipelined.problem.n_devices


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
        names = [shortened(device.name, LABEL_CHARS) for device in pipelined.problem.cluster.devices]
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0.0, 1e3 * until_s)
        axes.set_xlabel("ms; a colour for each microbatch, forward paler than backward, updates grey")
        axes.axvline(1e3 * step.total_s, color=palette.ink, linewidth=0.8, linestyle=":")

    return draw
