"""Writes an evaluation for TensorBoard: placed graphs, and placers as hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import TaggedRunMetadata
from torch.utils.tensorboard.summary import hparams, scalar

from agent.evaluation.comparison.ratios import by_run, geometric_mean
from agent.evaluation.report.chosen import MOST, pairs
from agent.evaluation.report.details import Placed, read_placed
from agent.evaluation.results import Trial, best_times, name_of, ratio_to_best
from agent.evaluation.run import file_name
from agent.evaluation.spec import EvaluationSpec
from graphs.system.event_file import EventFile

FOLDER = "tensorboard"
STEP_TAG = "step"


def write_events(spec: EvaluationSpec, folder: Path, trials: Sequence[Trial]) -> Path:
    """Writes the events below an evaluation's folder, in place of those that are there.

    Each placer (and order) is a run with its hyperparameters and final ratios; both placements of each graph
    that the report shows are runs with the placed graph.

    Returns:
        The folder, for `tensorboard --logdir`.

    Raises:
        FileFormatError: a placement is damaged or not there.
    """
    target = folder / FOLDER
    for old in target.rglob("events.out.tfevents.*"):
        old.unlink()
    for (placer, order), by_where in by_run(trials).items():
        own = [trial for each in by_where.values() for trial in each]
        _write_placer(target / "placers" / file_name(name_of(placer, order)), spec, own, trials)
    for pair in pairs(trials)[:MOST]:
        for placed in (read_placed(spec, folder, trial) for trial in (pair.left, pair.right)):
            where = file_name(f"{placed.trial.graph}.{placed.trial.cluster}")
            _write_placed(target / "graphs" / where / file_name(placed.name), placed)
    return target


def _opened(folder: Path) -> closing[EventFile]:
    folder.mkdir(parents=True, exist_ok=True)
    return closing(EventFile(folder))


def _write_placer(folder: Path, spec: EvaluationSpec, own: Sequence[Trial], trials: Sequence[Trial]) -> None:
    """Writes what a placer was given beside what it found, the ratio to one device first."""
    best = best_times(trials)
    ratios = {
        "final/to_single": geometric_mean(trial.ratio_to_single for trial in own),
        "final/to_best": geometric_mean(ratio_to_best(trial, best) for trial in own),
        "final/wall_s": float(np.mean([trial.wall_s for trial in own])),
    }
    found = {name: value for name, value in ratios.items() if value is not None}
    given = {
        "placer": own[0].placer,
        "order": own[0].order,
        "clusters": ", ".join(cluster.name for cluster in spec.clusters),
        "graphs": len({trial.graph for trial in own}),
        "budget_evaluations": spec.budget.evaluations or 0,
        "budget_s": spec.budget.seconds or 0.0,
    }
    with _opened(folder) as events:
        for summary in hparams(given, found):  # type: ignore[no-untyped-call]
            events.write(0, summary=summary)
        for name, value in found.items():
            events.write(0, summary=scalar(name, value))  # type: ignore[no-untyped-call]


def _write_placed(folder: Path, placed: Placed) -> None:
    from agent.evaluation.tensorboard.graph_events import graph_def, run_metadata

    problem, device_of, step = placed.problem, placed.device_of, placed.step
    with _opened(folder) as events:
        events.write(0, graph_def=graph_def(problem, device_of).SerializeToString())
        metadata = run_metadata(problem, device_of, step).SerializeToString()
        events.write(0, tagged_run_metadata=TaggedRunMetadata(tag=STEP_TAG, run_metadata=metadata))
