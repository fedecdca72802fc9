"""Writes an evaluation for TensorBoard: placed graphs, pictures of them, and placers as hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tensorboard.compat.proto.event_pb2 import TaggedRunMetadata
from torch.utils.tensorboard.summary import hparams, image, scalar

from agent.evaluation.comparison.ratios import by_run, geometric_mean
from agent.evaluation.report import layers, timelines
from agent.evaluation.report.chosen import MOST, pairs
from agent.evaluation.report.details import Placed, read_placed
from agent.evaluation.report.figures import Draw, Palette, as_pixels
from agent.evaluation.results import Trial, best_times, name_of, ratio_to_best
from agent.evaluation.run import file_name
from agent.evaluation.spec import EvaluationSpec
from graphs.system.event_file import EventFile

FOLDER = "tensorboard"
STEP_TAG = "step"
MOST_ROWS = 60
"""Graphs of a heat map, the first ones."""


def write_events(spec: EvaluationSpec, folder: Path, trials: Sequence[Trial]) -> Path:
    """Writes the events below an evaluation's folder, in place of those that are there.

    Each placer (and order) is a run with its hyperparameters and final ratios; both placements of each graph
    that the report shows are runs with the placed graph and its pictures.

    Returns:
        The folder, for `tensorboard --logdir`.

    Raises:
        FileFormatError: a placement is damaged or not there.
    """
    target = folder / FOLDER
    for old in target.rglob("events.out.tfevents.*"):
        old.unlink()
    _write_heat_map(target / "all", trials)
    for (placer, order), by_where in by_run(trials).items():
        own = [trial for each in by_where.values() for trial in each]
        _write_placer(target / "placers" / file_name(name_of(placer, order)), spec, own, trials)
    for pair in pairs(trials)[:MOST]:
        sides = [read_placed(spec, folder, trial) for trial in (pair.left, pair.right)]
        until_s = max(side.step.total_s for side in sides)
        for side in sides:
            where = file_name(f"{side.trial.graph}.{side.trial.cluster}")
            _write_placed(target / "graphs" / where / file_name(side.name), side, until_s)
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


def _write_placed(folder: Path, placed: Placed, until_s: float) -> None:
    from agent.evaluation.tensorboard.graph_events import graph_def, run_metadata

    problem, device_of, step = placed.problem, placed.device_of, placed.step
    links = timelines.link_spans(problem, device_of)
    timeline = timelines.timeline_figure(problem, device_of, step, until_s, links)
    height_in = timelines.timeline_height_in(problem, links)
    with _opened(folder) as events:
        events.write(0, graph_def=graph_def(problem, device_of).SerializeToString())
        metadata = run_metadata(problem, device_of, step).SerializeToString()
        events.write(0, tagged_run_metadata=TaggedRunMetadata(tag=STEP_TAG, run_metadata=metadata))
        _write_image(events, "timeline", timeline, timelines.WIDTH_IN, height_in)
        _write_image(
            events, "layers", layers.layer_figure(problem, device_of), layers.WIDTH_IN, layers.HEIGHT_IN
        )


def _write_image(events: EventFile, tag: str, draw: Draw, width_in: float, height_in: float) -> None:
    pixels = as_pixels(draw, width_in, height_in)
    events.write(0, summary=image(tag, pixels, dataformats="HWC"))  # type: ignore[no-untyped-call]


def _write_heat_map(folder: Path, trials: Sequence[Trial]) -> None:
    """Writes the ratios to the best placement by graph and placer as a picture."""
    best = best_times(trials)
    runs = list(dict.fromkeys((trial.placer, trial.order) for trial in trials))
    wheres = list(dict.fromkeys((trial.graph, trial.cluster) for trial in trials))[:MOST_ROWS]
    ratios = np.full((len(wheres), len(runs)), np.nan)
    for trial in trials:
        ratio = ratio_to_best(trial, best)
        if ratio is not None and (trial.graph, trial.cluster) in wheres:
            at = wheres.index((trial.graph, trial.cluster)), runs.index((trial.placer, trial.order))
            ratios[at] = np.fmin(ratios[at], ratio)

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        shown = axes.imshow(np.ma.masked_invalid(ratios), aspect="auto", cmap="Oranges", vmin=1.0, vmax=1.5)
        axes.set_xticks(range(len(runs)), [name_of(*run) for run in runs], rotation=60, ha="right")
        axes.set_yticks(range(len(wheres)), [" on ".join(where) for where in wheres], fontsize=7)
        figure.colorbar(shown, label="step time / best found")

    with _opened(folder) as events:
        _write_image(events, "over the best found", draw, 3.0 + 0.4 * len(runs), 2.0 + 0.16 * len(wheres))
