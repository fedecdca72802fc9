"""Single graphs of the report: the timelines and the placed graphs of two placers, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.evaluation.comparison.cells import milliseconds
from agent.evaluation.report import layers, timelines
from agent.evaluation.report.chosen import MOST, Pair
from agent.evaluation.report.figures import as_svg
from agent.evaluation.report.markup import chart, name_of, placement_link, row, table, text
from agent.evaluation.results import Trial
from agent.evaluation.run import placement_path
from agent.evaluation.spec import EvaluationSpec
from envs.placement.files import read_placement
from envs.problem import Problem
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.system.array_types import IntArray
from graphs.system.json_files import FileFormatError

GIB = 2**30


@dataclass(frozen=True, eq=False)
class Placed:
    """A placement of a trial, and the step under it."""

    trial: Trial
    problem: Problem
    device_of: IntArray
    step: StepTime

    @property
    def name(self) -> str:
        """The placer, with its order."""
        return name_of(self.trial.placer, self.trial.order)


def read_placed(spec: EvaluationSpec, folder: Path, trial: Trial) -> Placed:
    """Reads the placement that an evaluation keeps of a placer, and simulates the step.

    Raises:
        FileFormatError: it is damaged or not there.
    """
    graph = next(each for each in spec.graphs if each.name == trial.graph)
    cluster = next(each for each in spec.clusters if each.name == trial.cluster)
    problem = Problem(graph, cluster)
    device_of = read_placement(placement_path(folder, trial), graph, cluster).device_of
    return Placed(trial, problem, device_of, simulate_problem(problem, device_of))


def detail_section(spec: EvaluationSpec, folder: Path, pairs: Sequence[Pair]) -> str:
    """Shows the graphs on which two placers differ most, one at a time; empty where there are none."""
    parts, options = [], []
    for index, pair in enumerate(pairs[:MOST]):
        try:
            sides = [read_placed(spec, folder, trial) for trial in (pair.left, pair.right)]
        except FileFormatError:  # someone has removed or changed the file
            continue
        name = text(f"{pair.left.graph} on {pair.left.cluster}")
        options.append(f'<option value="{index}">{name}</option>')
        until_s = max(side.step.total_s for side in sides)
        shown = "".join(_side(side, until_s) for side in sides)
        parts.append(f'<div data-graph="{index}"><h3>{name}</h3><div class="pair">{shown}</div></div>')
    if not parts:
        return ""
    note = "The best learned placer and the best other one; without learned placers, the best and the worst."
    if len(pairs) > 1:
        which = f"The {len(parts)} of {len(pairs)} graphs on which they differ most"
        note += f" {which if len(pairs) > len(parts) else 'All graphs'}, the largest difference first."
    return (
        f'<h2>Single graphs</h2><p class="note">{note}</p>'
        f"<label>Graph: <select>{''.join(options)}</select></label>{''.join(parts)}"
    )


def _side(placed: Placed, until_s: float) -> str:
    name, trial, problem = text(placed.name), placed.trial, placed.problem
    links = timelines.link_spans(problem, placed.device_of)
    timeline = as_svg(
        timelines.timeline_figure(problem, placed.device_of, placed.step, until_s, links),
        timelines.WIDTH_IN,
        timelines.timeline_height_in(problem, links),
        f"timeline of {text(trial.graph)} on {text(trial.cluster)} by {name}",
    )
    drawing = as_svg(
        layers.layer_figure(problem, placed.device_of),
        layers.WIDTH_IN,
        layers.HEIGHT_IN,
        f"{text(trial.graph)} on {text(trial.cluster)} by layers, placed by {name}",
    )
    sent = f"{placed.step.transfer_bytes / 1e6:,.1f} MB sent"
    heading = f"<b>{placement_link(trial, name)}</b>: {milliseconds(placed.step.total_s)} ms, {sent}"
    return f"<div><p>{heading}</p>{chart(timeline)}{_device_table(placed)}{chart(drawing)}</div>"


def _device_table(placed: Placed) -> str:
    step, cluster = placed.step, placed.problem.cluster
    rows = [
        row(
            (
                text(device.name),
                f"{busy_s / step.total_s:.0%}" if step.total_s else "-",
                f"{peak / GIB:,.2f}",
                f"{device.memory_bytes / GIB:,.2f}",
                f"{peak / device.memory_bytes:.0%}",
            )
        )
        for device, busy_s, peak in zip(
            cluster.devices, step.busy_s.tolist(), step.peak_bytes.tolist(), strict=True
        )
    ]
    return table(("device", "busy", "memory, GiB", "of", "used"), rows)
