"""Hands over the best placements of an evaluation: files beside each, exports, explanations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from agent.evaluation.results import Trial, name_of
from agent.evaluation.run import placement_path
from agent.evaluation.spec import EvaluationSpec
from agent.placing.exports.export import EXPORTS, PlacedModules, export_text
from agent.placing.handover.files import write_handover, write_trace
from agent.placing.handover.pipeline import write_pipeline_handover
from envs.objective import PipelineObjective
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import stages_of
from envs.placements.files import read_placement
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.capture.user_model import MODEL
from graphs.system.errors import InputError
from graphs.system.json_files import write_bytes_atomic


@dataclass(frozen=True, eq=False)
class WrittenPlacement:
    """A placement that an evaluation keeps: that of the best seed."""

    trial: Trial
    problem: Problem
    placement: Placement
    path: Path


def write_handovers(spec: EvaluationSpec, folder: Path, trials: Sequence[Trial], *, trace: bool) -> list[str]:
    """Writes files beside the placements of a model, and the traces of all placements if they are asked for.

    Returns:
        Lines: what bounds the best placement of the model on each cluster, or that one device does.
    """
    lines: list[str] = []
    for problem, group in groupby(kept_placements(spec, folder, trials), key=lambda each: each.problem):
        if spec.pipeline is not None:
            found = _write_pipelines(spec, PipelinedProblem(problem, spec.pipeline), group)
        elif problem.graph.family == MODEL:
            found = {
                kept: write_handover(*_beside(kept), problem, kept.placement.device_of) for kept in group
            }
        else:
            for kept in group if trace else ():
                parent, name = _beside(kept)
                write_trace(parent / f"{name}.trace.json", problem, kept.placement.device_of)
            continue
        best = min(found, key=lambda each: each.trial.rank)
        placer, (first, *others) = name_of(best.trial.placer, best.trial.order), found[best]
        lines += ["", f"{best.trial.graph} on {best.trial.cluster}, by {placer}: {first}", *others]
    return lines


def _write_pipelines(
    spec: EvaluationSpec, pipelined: PipelinedProblem, group: Iterable[WrittenPlacement]
) -> dict[WrittenPlacement, list[str]]:
    """Writes files beside each pipeline of a graph and cluster; returns the lines on each."""
    objective, found = spec.objective(pipelined.problem.graph, pipelined.problem.cluster), {}
    assert isinstance(objective, PipelineObjective)
    baselines = objective.baselines
    for kept in group:
        stages = stages_of(pipelined.problem, kept.placement)
        step = pipelined.simulate(stages)
        found[kept] = write_pipeline_handover(*_beside(kept), pipelined, stages, step, baselines)
    return found


def _beside(kept: WrittenPlacement) -> tuple[Path, str]:
    """Folder of a placement, and the beginning of the names of the files beside it."""
    return kept.path.parent, kept.path.with_suffix("").name


def kept_placements(
    spec: EvaluationSpec, folder: Path, trials: Sequence[Trial]
) -> Iterator[WrittenPlacement]:
    """Yields the placement of the best seed of each placer and order, by graph and cluster."""
    for graph in spec.graphs:
        for cluster in spec.clusters:
            problem = Problem(graph, cluster)
            best: dict[Path, Trial] = {}
            for trial in trials:
                is_here = (trial.graph, trial.cluster) == (graph.name, cluster.name)
                if is_here and trial.is_placement:
                    path = placement_path(folder, trial)
                    best[path] = min(best.get(path, trial), trial, key=lambda each: (each.rank, each.seed))
            for path, trial in best.items():
                yield WrittenPlacement(trial, problem, read_placement(path, graph, cluster), path)


def write_exports(
    spec: EvaluationSpec, folder: Path, trials: Sequence[Trial], names: Sequence[str], layers: str = ""
) -> tuple[list[str], list[str]]:
    """Writes each export of each placement, where the target can run it; `layers` as in `PlacedModules`.

    Returns:
        Lines: how many files of an export were written, and why others were not; exports without a file.
    """
    kept = [(each, _placed_modules(spec, each, layers)) for each in kept_placements(spec, folder, trials)]
    lines, without = [], []
    for name in names:
        written, refused = 0, dict[str, int]()
        for each, placed in kept:
            try:
                text = export_text(name, placed)
            except InputError as error:
                refused[str(error)] = refused.get(str(error), 0) + 1
                continue
            stem = each.path.with_suffix("").name
            write_bytes_atomic(each.path.parent / f"{stem}{EXPORTS[name].ending}", text.encode())
            written += 1
        lines.append(
            f"export {name}: {written} of {len(kept)} placements have a file *{EXPORTS[name].ending}"
        )
        lines += (f"export {name}: not for {count}: {reason}" for reason, count in refused.items())
        without += [] if written else [name]
    return lines, without


def _placed_modules(spec: EvaluationSpec, kept: WrittenPlacement, layers: str) -> PlacedModules:
    stages = None if spec.pipeline is None else stages_of(kept.problem, kept.placement)
    return PlacedModules(kept.problem, kept.placement, spec.pipeline, stages, layers)
