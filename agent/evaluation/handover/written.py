"""Hands over the best placements of an evaluation: files beside each, and whether one device does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from agent.evaluation.handover.files import write_handover, write_trace
from agent.evaluation.handover.pipeline import write_pipeline_handover
from agent.evaluation.results import Trial, name_of
from agent.evaluation.run import placement_path
from agent.evaluation.spec import EvaluationSpec
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import stages_of
from envs.placements.files import read_placement
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.capture.user_model import MODEL


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
    baselines, found = spec.baselines(pipelined), {}
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
