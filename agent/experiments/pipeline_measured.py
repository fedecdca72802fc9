"""Pipelines that run on two processor cores: simulated against measured steps of different splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agent.calibration.quick import get_or_measure_cluster
from agent.evaluation.measured.fidelity import agreement
from agent.experiments.experiment import ExperimentError
from agent.experiments.launcher import UnfinishedError, followed
from agent.experiments.rows import axis, grouped, markdown_table, read_rows
from agent.pipelines.search import place_pipeline
from agent.placers.base import Budget
from envs.cluster.cluster import Cluster
from envs.pipeline.chain import Chain
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.problem import Problem
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.runnable_model import load_runnable
from envs.runtime.step_meter import StepMeter
from graphs.system import json_fields
from graphs.system.array_types import FloatArray
from graphs.system.journal import Journal

MODELS = ("gpt", "unet", "resnet")
CLUSTER, TIMEOUT_S = "2xcpu", 120.0
PLACERS = ("single", "equal-layers", "equal-params", "equal-time", "refine")
PLACED = "1f1b", 8
"""Schedule and microbatches of the placers."""
SPLITS: tuple[tuple[str, int, tuple[float, ...]], ...] = (
    ("1f1b", 8, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    ("1f1b", 4, (0.25, 0.45, 0.75)),
    ("gpipe", 8, (0.15, 0.35, 0.65)),
    ("gpipe", 2, (0.5,)),
    ("zero-bubble", 8, (0.25, 0.45, 0.85)),
    ("interleaved-1f1b:2", 8, (0.3, 0.5, 0.7)),
)
"""Schedules, microbatches, and shares of the compute time that the first core gets."""
PROFILE_STEPS, TIMED_STEPS = 10, 3
"""Steps that are timed of each model and of each split in a round."""
ALONE, BUSY = PROFILES = "alone", "both busy"
"""The state of the cores in which ops are timed."""
KEYS = frozenset({"model", "what", "round", "seconds"})


@dataclass(frozen=True)
class MeasuredPipelineRow:
    """One round of one split.

    Attributes:
        split: the placer, or the schedule and the share of the first core.
        alone_s, busy_s: simulated step, with ops timed on one core alone, and while both are busy; that of a
            single device is always the former.
        measured_s: median of the measured steps of this round.
    """

    model: str
    split: str
    schedule: str
    microbatches: int
    round: int
    alone_s: float
    busy_s: float
    measured_s: float


class Measurements:
    """Seconds by model, what was measured, and round; each is in a file as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._known: dict[tuple[str, str, int], list[float]] = {}
        self._journal = Journal(path, self._read)

    def get(self, model: str, what: str, round: int, measure: Callable[[], Sequence[float]]) -> FloatArray:
        """Returns seconds that were measured before, or measures them."""
        if (key := (model, what, round)) not in self._known:
            self._known[key] = list(measure())
            values = (*key, self._known[key])
            self._journal.append(dict(zip(("model", "what", "round", "seconds"), values, strict=True)))
        return np.array(self._known[key])

    def _read(self, value: object, where: str) -> None:
        record = json_fields.fields(value, where, KEYS)
        key = (
            json_fields.name(record["model"], f"{where}: model"),
            json_fields.name(record["what"], f"{where}: what"),
            json_fields.integer(record["round"], f"{where}: round"),
        )
        kept = json_fields.array(record["seconds"], f"{where}: seconds")
        self._known[key] = [json_fields.number(each, f"{where}: seconds") for each in kept]


class MeasuredModel:
    """A model, and the splits of it that are measured."""

    def __init__(
        self, name: str, cluster: Cluster, processes: DeviceProcesses, known: Measurements, evaluations: int
    ) -> None:
        self.name, self._cluster, self._known = name, cluster, known
        model = load_runnable(f"{__package__}.pipeline_models:{name}", optimizer="sgd", training=True)
        self._graph = model.captured.graph
        self._meter = StepMeter(model.captured, model.module, model.inputs, processes)
        problem = self._problem(self._op_seconds(ALONE, 0))
        self.splits = distinct_splits(problem, evaluations)

    def measure(self, round: int) -> dict[str, float]:
        """Times the ops, and every split once, in a random order; returns seconds by split."""
        for profile in PROFILES:
            self._op_seconds(profile, round)
        found = {}
        for at in np.random.default_rng(round).permutation(len(self.splits)):
            name, stages, pipeline = self.splits[at]
            found[name] = float(
                self._known.get(self.name, name, round, lambda: [self._step_s(name, stages, pipeline)])[0]
            )
        return found

    def rows(self, rounds: Sequence[dict[str, float]]) -> Iterator[MeasuredPipelineRow]:
        """Makes the rows of all rounds; ops take the median over the rounds."""
        seconds = {
            profile: np.median([self._op_seconds(profile, at) for at in range(len(rounds))], axis=0)
            for profile in PROFILES
        }
        alone, busy = (self._problem(seconds[profile]) for profile in PROFILES)
        for name, stages, pipeline in self.splits:
            alone_s = PipelinedProblem(alone, pipeline).step_time_s(stages)
            is_single = len(stages.ranks) == 1
            busy_s = alone_s if is_single else PipelinedProblem(busy, pipeline).step_time_s(stages)
            for at, measured in enumerate(rounds):
                yield MeasuredPipelineRow(
                    self.name,
                    name,
                    pipeline.schedule,
                    pipeline.microbatches,
                    at,
                    alone_s,
                    busy_s,
                    measured[name],
                )

    def _problem(self, seconds: FloatArray) -> Problem:
        kind = self._cluster.devices[0].kind
        return Problem(replace(self._graph, seconds={kind: seconds}), self._cluster)

    def _op_seconds(self, profile: str, round: int) -> FloatArray:
        def measure() -> list[float]:
            found = self._meter.op_seconds(0, PROFILE_STEPS, all_busy=profile == BUSY)
            return found.tolist()

        return self._known.get(self.name, f"ops {profile}", round, measure)

    def _step_s(self, name: str, stages: Stages, pipeline: Pipeline) -> float:
        measured = self._meter.measure((stages, pipeline), TIMED_STEPS)
        if measured.failure:
            raise UnfinishedError(f"{self.name}, {name}: {measured.failure}; run the same command again")
        return measured.median_s


Split = tuple[str, Stages, Pipeline]


def distinct_splits(problem: Problem, evaluations: int) -> list[Split]:
    """Lists the plans of the placers and the splits at all shares, each once."""
    pipelined = PipelinedProblem(problem, Pipeline(*PLACED, is_plain=True))
    found: dict[tuple[object, ...], Split] = {}
    for placer in PLACERS:
        stages = place_pipeline(placer, pipelined, Budget(evaluations)).stages
        found.setdefault(_key(stages, pipelined.pipeline), (placer, stages, pipelined.pipeline))
    for schedule, microbatches, shares in SPLITS:
        pipeline = Pipeline(schedule, microbatches, is_plain=True)
        for share in shares:
            stages = stages_at(pipelined.chain, share, pipeline.stages_per_device)
            name = f"{schedule}, {microbatches}, {share:.0%}"
            found.setdefault(_key(stages, pipeline), (name, stages, pipeline))
    return list(found.values())


def _key(stages: Stages, pipeline: Pipeline) -> tuple[object, ...]:
    return pipeline.schedule, pipeline.microbatches, stages.stage_of.tobytes(), stages.device_of.tobytes()


def stages_at(chain: Chain, share: float, n_rounds: int) -> Stages:
    """Cuts a chain for two devices in turn, so that the first gets a share of the time of each round."""
    before = chain.seconds_before[0] / chain.seconds_before[0, -1]
    wanted = [(round + part) / n_rounds for round in range(n_rounds) for part in (0.0, share)]
    first = [int(np.abs(before[:-1] - each).argmin()) for each in wanted]
    return chain.stages(np.array(first), np.tile([0, 1], n_rounds))


def measured_rows(
    folder: Path, graphs: Sequence[str], evaluations: int, rounds: int
) -> Iterator[list[MeasuredPipelineRow]]:
    """Makes the rows of all models, in rounds.

    Raises:
        ExperimentError: an unknown model.
        UnfinishedError: a split cannot be run.
    """
    if unknown := sorted({*graphs} - {*MODELS}):
        raise ExperimentError(f"unknown model '{unknown[0]}'; known are {', '.join(MODELS)}")
    cluster, known = get_or_measure_cluster(CLUSTER), Measurements(folder / "measurements.jsonl")
    with DeviceProcesses(cluster.n_devices, TIMEOUT_S) as processes:
        models = [MeasuredModel(name, cluster, processes, known, evaluations) for name in graphs or MODELS]
        found = [[model.measure(round) for model in models] for round in followed(range(rounds), "rounds")]
    yield [row for at, model in enumerate(models) for row in model.rows([each[at] for each in found])]


def measured_tables(file: Path) -> Iterator[str]:
    """Yields the agreement of simulated with measured seconds, and the plans of placers over one device."""
    head = ["model", "ops timed", "splits", "Kendall", "regret", "error over one device", "error of a step"]
    agreements, plans = (
        [[*head, "Kendall of halves"]],
        [["model", *PLACERS[1:], "simulated best", "best", "worst"]],
    )
    for model, own in grouped(read_rows(file, MeasuredPipelineRow), lambda row: row.model).items():
        simulated, measured, halves = seconds_of(own)
        for profile, seconds in zip(PROFILES, simulated, strict=True):
            found = agreement(seconds, measured, *halves)
            over_one = (seconds / seconds[0] / (measured / measured[0]))[1:]
            errors = [found.regret, float(np.median(np.abs(over_one - 1))), found.median_error]
            shares = [f"{each:.1%}" for each in errors]
            counts = [str(found.n_placements), f"{found.kendall:.3f}"]
            agreements.append([model, profile, *counts, *shares, f"{found.retest:.3f}"])
        names = axis(row.split for row in own)
        busy = simulated[1]
        chosen = {name: names.index(name) for name in PLACERS[1:] if name in names}
        plans.append(
            [
                model,
                *(_over_one(chosen[name], measured, busy) if name in chosen else "" for name in PLACERS[1:]),
                *(
                    f"{names[at]}: {_over_one(at, measured, busy)}"
                    for at in (busy.argmin(), measured.argmin(), measured.argmax())
                ),
            ]
        )
    yield markdown_table(agreements)
    yield markdown_table(plans)


def _over_one(at: int, measured: FloatArray, simulated: FloatArray) -> str:
    return f"{measured[at] / measured[0]:.3f} ({simulated[at] / simulated[0]:.3f})"


def seconds_of(
    rows: Sequence[MeasuredPipelineRow],
) -> tuple[tuple[FloatArray, FloatArray], FloatArray, tuple[FloatArray, FloatArray]]:
    """Finds the seconds per microbatch of the splits of a model, one device first, all (n_splits,).

    Measured steps are divided by the mean of their round, so that drift cancels. The median over the rounds
    counts.

    Returns:
        Simulated with ops timed alone, and busy; measured; measured in the first and the second half of the
        rounds.
    """
    splits = list(grouped(rows, lambda row: row.split).values())
    count = np.array([own[0].microbatches for own in splits])
    steps = np.array([[row.measured_s for row in own] for own in splits]) / count[:, None]
    means = np.exp(np.log(steps).mean(axis=0))
    measured, half = steps / means * np.median(means), steps.shape[1] // 2
    parts = measured, measured[:, : half or None], measured[:, half:]
    whole, first, last = (np.median(part, axis=1) for part in parts)
    alone, busy = (
        np.array([getattr(own[0], name) for own in splits]) / count for name in ("alone_s", "busy_s")
    )
    return (alone, busy), whole, (first, last)
