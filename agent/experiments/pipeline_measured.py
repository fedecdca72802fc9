"""Pipelines that run on two processor cores: simulated against measured steps of different splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agent.calibration.quick import get_or_measure_cluster
from agent.evaluation.measured.fidelity import agreement
from agent.experiments.experiment import ExperimentError
from agent.experiments.rows import grouped, markdown_table, read_rows
from agent.pipelines.search import place_pipeline
from agent.placers.base import Budget
from envs.cluster.cluster import Cluster
from envs.pipeline.chain import Chain
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.problem import Problem
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.device_program import ExecutionError
from envs.runtime.runnable_model import load_runnable
from envs.runtime.step_meter import StepMeter
from graphs.system.array_types import FloatArray
from graphs.system.json_files import read_json, write_json_atomic
from graphs.system.progress import followed

MODELS = ("gpt", "unet", "resnet")
CLUSTER, TIMEOUT_S = "2xcpu", 120.0
PLACERS = ("single", "equal-layers", "equal-params", "refine", "equal-time")
"""Placers, which plan for the first schedule and microbatches of `SPLITS`."""
EVALUATIONS = 1_000
SPLITS: tuple[tuple[str, int, tuple[float, ...]], ...] = (
    ("1f1b", 8, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    ("1f1b", 4, (0.25, 0.45, 0.75)),
    ("gpipe", 8, (0.15, 0.35, 0.65)),
    ("gpipe", 4, (0.3, 0.8)),
    ("gpipe", 2, (0.5,)),
    ("zero-bubble", 8, (0.25, 0.45, 0.85)),
    ("interleaved-1f1b:2", 8, (0.3, 0.5, 0.7)),
)
"""Schedules, microbatches, and shares of the compute time that the first core gets."""
PROFILE_STEPS, TIMED_STEPS = 10, 3
"""Steps that are timed in a round, of each model and of each split."""
OPS = "ops"
"""Key of the seconds of ops in the file of a round."""


@dataclass(frozen=True)
class MeasuredPipelineRow:
    """One round of one split.

    Attributes:
        split: the placer, or the schedule and the share of the first core.
        simulated_s: with ops timed on one core while the other one rests.
        measured_s: median of the measured steps of this round.
    """

    model: str
    split: str
    schedule: str
    microbatches: int
    round: int
    simulated_s: float
    measured_s: float


Splits = dict[str, tuple[Stages, Pipeline]]
"""Splits of a model by name, one device first."""


class MeasuredModel:
    """A model that is measured in rounds: all ops and all splits once, in a file for each round."""

    def __init__(self, name: str, cluster: Cluster, processes: DeviceProcesses, folder: Path) -> None:
        model = load_runnable(f"{__package__}.pipeline_models:{name}", optimizer="sgd", training=True)
        self.name, self._cluster, self._folder = name, cluster, folder
        self._graph = model.captured.graph
        self._meter = StepMeter(model.captured, model.module, model.inputs, processes)

    def measured(self, round: int, splits: Splits) -> dict[str, list[float]]:
        """Measures the seconds of ops and of each split; reads them where the folder has them."""
        path = self._folder / f"{self.name}-{round}.json"
        if not path.exists():
            found = {OPS: self._meter.op_seconds(0, PROFILE_STEPS).tolist()}
            for name in np.random.default_rng(round).permutation(list(splits)):
                step = self._meter.measure(splits[name], TIMED_STEPS)
                if step.failure:
                    raise ExecutionError(f"{self.name}, {name}: {step.failure}; run the same command again")
                found[name] = [step.median_s]
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json_atomic(path, found)
        kept: Any = read_json(path)
        if kept.keys() != {OPS, *splits}:
            raise ExperimentError(f"{path}: holds other splits; remove it, or give another --out")
        return dict(kept)

    def problem(self, seconds: Sequence[float] | FloatArray) -> Problem:
        """Makes the problem with seconds of the ops."""
        times = {self._cluster.devices[0].kind: np.array(seconds)}
        return Problem(replace(self._graph, seconds=times), self._cluster)

    def rows(self, splits: Splits, rounds: Sequence[dict[str, list[float]]]) -> Iterator[MeasuredPipelineRow]:
        """Makes the rows of all rounds; an op takes the median of them."""
        problem = self.problem(np.median([each[OPS] for each in rounds], axis=0))
        for name, (stages, pipeline) in splits.items():
            simulated_s = PipelinedProblem(problem, pipeline).step_time_s(stages)
            about = self.name, name, pipeline.schedule, pipeline.microbatches
            for at, each in enumerate(rounds, 1):
                yield MeasuredPipelineRow(*about, at, simulated_s, each[name][0])


def splits_of(problem: Problem) -> Splits:
    """Lists the plans of the placers and the splits at all shares, each once, by name."""
    found: dict[tuple[object, ...], tuple[str, tuple[Stages, Pipeline]]] = {}

    def add(name: str, stages: Stages, pipeline: Pipeline) -> None:
        where = stages.stage_of.tobytes(), stages.device_of.tobytes()
        found.setdefault((pipeline, *where), (name, (stages, pipeline)))

    placed = PipelinedProblem(problem, Pipeline(*SPLITS[0][:2], may_recompute=False))
    for placer in PLACERS:
        add(placer, place_pipeline(placer, placed, Budget(EVALUATIONS)).stages, placed.pipeline)
    for schedule, microbatches, shares in SPLITS:
        pipeline = Pipeline(schedule, microbatches, may_recompute=False)
        for share in shares:
            stages = stages_at(placed.chain, share, pipeline.stages_per_device)
            add(f"{schedule}, {microbatches}, {share:.0%}", stages, pipeline)
    return dict(found.values())


def stages_at(chain: Chain, share: float, n_rounds: int) -> Stages:
    """Cuts a chain for two devices in turn, so that the first gets a share of the time of each round."""
    before = chain.seconds_before[0] / chain.seconds_before[0, -1]
    wanted = [(round + part) / n_rounds for round in range(n_rounds) for part in (0.0, share)]
    first = [int(np.abs(before[:-1] - each).argmin()) for each in wanted]
    return chain.stages(np.array(first), np.tile([0, 1], n_rounds))


def measured_rows(folder: Path, graphs: Sequence[str], rounds: int) -> Iterator[list[MeasuredPipelineRow]]:
    """Makes the rows of all models.

    Raises:
        ExperimentError: an unknown model, no round, or the folder holds other splits.
        ExecutionError: a split cannot be run.
    """
    if rounds < 1:
        raise ExperimentError(f"{rounds} rounds; give at least 1")
    if unknown := sorted({*graphs} - {*MODELS}):
        raise ExperimentError(f"unknown model '{unknown[0]}'; known are {', '.join(MODELS)}")
    cluster = get_or_measure_cluster(CLUSTER)
    with DeviceProcesses(len(cluster.devices), TIMEOUT_S) as processes:
        models = [MeasuredModel(name, cluster, processes, folder) for name in graphs or MODELS]
        first = [model.problem(model.measured(0, {})[OPS]) for model in models]
        splits = [splits_of(problem) for problem in first]
        pairs = list(zip(models, splits, strict=True))
        found = [
            [model.measured(at, own) for model, own in pairs]
            for at in followed(range(1, rounds + 1), "rounds")
        ]
    yield [
        row
        for (model, own), each in zip(pairs, zip(*found, strict=True), strict=True)
        for row in model.rows(own, each)
    ]


def measured_tables(file: Path) -> Iterator[str]:
    """Yields the agreement of simulated with measured seconds, and the plans of placers over one device."""
    head = ["model", "splits", "Kendall", "regret", "error over one device", "error of a step"]
    agreements = [[*head, "Kendall of halves"]]
    plans = [["measured (simulated) over one device", "one device", *PLACERS[1:], "best", "worst"]]
    for model, own in grouped(read_rows(file, MeasuredPipelineRow), lambda row: row.model).items():
        splits = grouped(own, lambda row: row.split)
        measured, *halves = steady(_of_microbatch(splits, "measured_s"))
        simulated = _of_microbatch(splits, "simulated_s")[:, 0]
        agreements.append([model, *_agreement(simulated, measured, *halves)])
        over_one = zip(measured / measured[0], simulated / simulated[0], strict=True)
        cells = {
            name: f"{one:.3f} ({other:.3f})" for name, (one, other) in zip(splits, over_one, strict=True)
        }
        ends = ([*splits][int(at)] for at in (measured.argmin(), measured.argmax()))
        of_placers = (cells.get(placer, "") for placer in PLACERS[1:])
        plans.append(
            [model, f"{measured[0] * 1e3:.1f} ms", *of_placers, *(f"{name}: {cells[name]}" for name in ends)]
        )
    yield markdown_table(agreements)
    yield markdown_table(plans)


def _of_microbatch(splits: Mapping[str, Sequence[MeasuredPipelineRow]], column: str) -> FloatArray:
    """Seconds of a column over the number of microbatches, (n_splits, n_rounds)."""
    return np.array([[getattr(row, column) / row.microbatches for row in rows] for rows in splits.values()])


def _agreement(simulated: FloatArray, measured: FloatArray, first: FloatArray, last: FloatArray) -> list[str]:
    found = agreement(simulated, measured, first, last)
    ratios = simulated / simulated[0] / (measured / measured[0])
    errors = found.regret, float(np.median(np.abs(ratios - 1)[1:])), found.median_error
    counts = str(found.n_placements), f"{found.kendall:.3f}"
    return [*counts, *(f"{each:.1%}" for each in errors), f"{found.retest:.3f}"]


def steady(steps: FloatArray) -> list[FloatArray]:
    """Takes the median over rounds of steps over the mean step of their round, so that drift cancels.

    Args:
        steps: seconds, (n_splits, n_rounds).

    Returns:
        Seconds over all rounds, their first half and their second half, each (n_splits,).
    """
    means = np.exp(np.log(steps).mean(axis=0))
    scaled, half = steps / means * np.median(means), steps.shape[1] // 2
    return [np.median(each, axis=1) for each in (scaled, scaled[:, : half or None], scaled[:, half:])]
