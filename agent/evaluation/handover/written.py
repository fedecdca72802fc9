"""Hands over the best placements of an evaluation: files beside each, and whether one device does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from agent.evaluation.handover.files import write_handover, write_trace
from agent.evaluation.handover.pipeline import pipeline_baselines, write_pipeline_handover
from agent.evaluation.results import Trial, name_of
from agent.evaluation.run import placement_path
from agent.evaluation.spec import EvaluationSpec
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import stages_of
from envs.placement.files import read_placement
from envs.placement.placement import Placement
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
    if spec.pipeline is not None:
        return _write_pipelines(spec, spec.pipeline, folder, trials)
    lines: list[str] = []
    for _, group in groupby(kept_placements(spec, folder, trials), key=lambda each: each.problem):
        found: dict[WrittenPlacement, list[str]] = {}
        for kept in group:
            name = kept.path.with_suffix("").name
            if kept.problem.graph.family == MODEL:
                found[kept] = write_handover(kept.path.parent, name, kept.problem, kept.placement.device_of)
            elif trace:
                write_trace(kept.path.parent / f"{name}.trace.json", kept.problem, kept.placement.device_of)
        if found:
            best = min(found, key=lambda each: each.trial.rank)
            lines += ["", *_lines(best, found[best])]
    return lines


def _write_pipelines(
    spec: EvaluationSpec, pipeline: Pipeline, folder: Path, trials: Sequence[Trial]
) -> list[str]:
    """Writes files beside each pipeline; returns lines on the best one of each graph and cluster."""
    lines: list[str] = []
    for problem, group in groupby(kept_placements(spec, folder, trials), key=lambda each: each.problem):
        found: dict[WrittenPlacement, list[str]] = {}
        pipelined = PipelinedProblem(problem, pipeline)
        baselines = pipeline_baselines(pipelined)
        for kept in group:
            stages = stages_of(problem, kept.placement)
            name = kept.path.with_suffix("").name
            step = pipelined.simulate(stages)
            found[kept] = write_pipeline_handover(kept.path.parent, name, pipelined, stages, step, baselines)
        best = min(found, key=lambda each: each.trial.rank)
        lines += ["", *_lines(best, found[best])]
    return lines


def _lines(best: WrittenPlacement, lines: Sequence[str]) -> list[str]:
    placer = name_of(best.trial.placer, best.trial.order)
    return [f"{best.trial.graph} on {best.trial.cluster}, by {placer}: {lines[0]}", *lines[1:]]


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
