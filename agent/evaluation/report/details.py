"""Single graphs of the report: the steps of two placers, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from agent.evaluation.comparison.cells import milliseconds
from agent.evaluation.report import timelines
from agent.evaluation.report.chosen import MOST, Pair
from agent.evaluation.report.figures import as_svg
from agent.evaluation.report.rendering import Table, render
from agent.evaluation.results import Trial, name_of
from agent.evaluation.run import placement_path
from agent.evaluation.spec import EvaluationSpec
from agent.placing.handover.pipeline import stage_rows
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages, stages_of
from envs.placements.files import read_placement
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.system.array_types import IntArray
from graphs.system.json_files import FileFormatError
from graphs.system.numbers import four_digits

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
    problem, placement = _read(spec, folder, trial)
    device_of = placement.device_of
    return Placed(trial, problem, device_of, simulate_problem(problem, device_of))


def _read(spec: EvaluationSpec, folder: Path, trial: Trial) -> tuple[Problem, Placement]:
    graph = next(each for each in spec.graphs if each.name == trial.graph)
    cluster = next(each for each in spec.clusters if each.name == trial.cluster)
    return Problem(graph, cluster), read_placement(placement_path(folder, trial), graph, cluster)


@dataclass(frozen=True, eq=False)
class PlacedPipeline:
    """A pipeline of a trial, and the step under it."""

    trial: Trial
    pipelined: PipelinedProblem
    stages: Stages
    step: PipelineTime


def read_pipeline(spec: EvaluationSpec, pipeline: Pipeline, folder: Path, trial: Trial) -> PlacedPipeline:
    """Reads the pipeline that an evaluation keeps of a placer, and simulates the step.

    Raises:
        FileFormatError: it is damaged or not there.
        PipelineError: it is no pipeline.
    """
    problem, placement = _read(spec, folder, trial)
    pipelined, stages = PipelinedProblem(problem, pipeline), stages_of(problem, placement)
    return PlacedPipeline(trial, pipelined, stages, pipelined.simulate(stages))


def detail_section(spec: EvaluationSpec, folder: Path, pairs: Sequence[Pair]) -> Markup:
    """Shows the graphs on which two placers differ most, one at a time; empty where there are none."""
    graphs = []
    for pair in pairs[:MOST]:
        name = f"{pair.left.graph} on {pair.left.cluster}"
        try:
            graphs.append({"name": name, "sides": _sides(spec, folder, (pair.left, pair.right), name)})
        except (FileFormatError, PipelineError):  # someone has removed or changed the file
            continue
    return render("details.html", graphs=graphs, n_pairs=len(pairs)) if graphs else Markup()


def _sides(spec: EvaluationSpec, folder: Path, trials: Sequence[Trial], name: str) -> list[dict[str, object]]:
    """Shows the placements of two trials of a graph, or their pipelines, on one scale of time."""
    if spec.pipeline is not None:
        pipelines = [read_pipeline(spec, spec.pipeline, folder, trial) for trial in trials]
        until_s = max(each.step.total_s for each in pipelines)
        return [_pipeline_side(each, name, until_s) for each in pipelines]
    placements = [read_placed(spec, folder, trial) for trial in trials]
    until_s = max(each.step.total_s for each in placements)
    return [_side(each, name, until_s) for each in placements]


def _pipeline_side(placed: PlacedPipeline, graph: str, until_s: float) -> dict[str, object]:
    """A pipeline as `details.html` shows it."""
    pipelined, step = placed.pipelined, placed.step
    rows = [
        (
            str(row.stage),
            row.device,
            f"{row.first_op} to {row.last_op}",
            milliseconds(row.forward_s),
            milliseconds(row.backward_s),
            f"{row.peak_bytes / GIB:,.2f}",
            f"{row.memory_bytes / GIB:,.2f}",
        )
        for row in stage_rows(pipelined, placed.stages, step)
    ]
    columns = ("stage", "device", "forward ops", "forward, ms", "backward, ms", "memory, GiB", "of")
    return {
        "name": placed.trial.placer,
        "href": placement_path(Path(), placed.trial).as_posix(),
        "step": milliseconds(step.total_s),
        "more": f"{four_digits(step.throughput_per_s)} microbatches a second, {step.bubble_share:.0%} bubble",
        "devices": Table(columns, rows),
        "timeline": as_svg(
            timelines.pipeline_timeline_figure(pipelined, step, until_s),
            timelines.WIDTH_IN,
            timelines.timeline_height_in(pipelined.problem),
            f"pipeline of {graph} by {placed.trial.placer}",
        ),
    }


def _side(placed: Placed, graph: str, until_s: float) -> dict[str, object]:
    """A placement as `details.html` shows it."""
    problem, device_of = placed.problem, placed.device_of
    links = timelines.link_spans(problem, device_of)
    return {
        "name": placed.name,
        "href": placement_path(Path(), placed.trial).as_posix(),
        "step": milliseconds(placed.step.total_s),
        "more": f"{placed.step.transfer_bytes / 1e6:,.1f} MB sent",
        "devices": _device_table(placed),
        "timeline": as_svg(
            timelines.timeline_figure(problem, device_of, placed.step, until_s, links),
            timelines.WIDTH_IN,
            timelines.timeline_height_in(problem, len(links)),
            f"timeline of {graph} by {placed.name}",
        ),
    }


def _device_table(placed: Placed) -> Table:
    step, cluster = placed.step, placed.problem.cluster
    rows = [
        (
            device.name,
            f"{busy_s / step.total_s:.0%}" if step.total_s else "-",
            f"{peak / GIB:,.2f}",
            f"{device.memory_bytes / GIB:,.2f}",
            f"{peak / device.memory_bytes:.0%}",
        )
        for device, busy_s, peak in zip(cluster.devices, step.busy_s, step.peak_bytes, strict=True)
    ]
    return Table(("device", "busy", "memory, GiB", "of", "used"), rows)
