"""Placers on the instances of the field, in equal processor time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from agent.evaluation.answers import file_name
from agent.instances.instance import (
    DATA,
    SAME,
    Instance,
    find_instances,
    find_names,
    pipeline_of,
    read_best_known,
)
from agent.lab.pivot import ExperimentError, Row, Rows, Statistic, grouped, read_table, write_rows
from agent.placers.base import PLACERS_OF, Budget, names_of
from agent.placing.trial_runner import TrialRunner, make_placer, open_policy
from envs.objective import STEP, kind_of
from envs.placements.files import write_placement
from envs.placements.placement import Placement
from envs.simulator.simulate import simulate_many
from graphs.system.progress import followed
from graphs.system.running_time import running_cpu_s

OURS = ("auto", "refine", "annealing", "exact", "rollout-refine", "policy-refine")
"""Searches of this project, the default first; the others are methods of the field, in our code."""
LEVEL = 1e-3
"""Step times that differ by less, as a share, are level."""
LOOP_PLACEMENTS, LOOP_TRIES = 2_000, 7
REFERENCE_S = 0.064
"""Processor seconds of the calibrating loop on the machine that a normalised second is one of."""


@dataclass(frozen=True)
class BenchmarkRow:
    """A placer on an instance.

    Attributes:
        seconds: budget in normalised processor seconds; 0 for what others report.
        step_s: step time; infinite where the placement found is out of memory.
        cpu_s: normalised processor seconds that the placer took.
        bound_s: lower bound on the step of every placement.
        best_s: best known step, what was found here included.
    """

    instance: str
    placer: str
    seconds: float
    step_s: float
    evaluations: int
    cpu_s: float
    bound_s: float
    best_s: float


def calibrated_loop_s() -> float:
    """Times the loop that makes processor seconds of machines comparable: simulations of one instance.

    Returns:
        Processor seconds, the least of several tries.
    """
    (instance,) = find_instances(["doppler:transformer_layer"])
    devices = np.random.default_rng(0).integers(4, size=(LOOP_PLACEMENTS, len(instance.graph.units)))
    placements = np.ascontiguousarray(devices[:, instance.graph.unit_of])
    simulate_many(instance.problem, placements[:1])
    tries = []
    for _ in range(LOOP_TRIES):
        began_s = time.process_time()
        simulate_many(instance.problem, placements)
        tries.append(time.process_time() - began_s)
    return min(tries)


@dataclass(frozen=True)
class InstanceTrials:
    """Trials of placers on instances.

    Attributes:
        graphs: patterns of names of instances.
        placers: names; those that do not suit an objective are left out there.
        seconds: budget in normalised processor seconds.
    """

    graphs: tuple[str, ...]
    placers: tuple[str, ...]
    seconds: float

    def rows(self, folder: Path) -> Rows:
        """Makes the rows; the folder keeps those of each instance, and the best placement in `placements`.

        Raises:
            ExperimentError: an unknown placer, or none that suits an instance.
            InstanceError: an unknown instance.
        """
        names = dict.fromkeys(name for kind in PLACERS_OF for name in names_of(kind))
        if unknown := {*self.placers} - {*names}:
            raise ExperimentError(f"unknown placer '{min(unknown)}'; use some of {', '.join(names)}")
        trials = _Trials(self.seconds, not {*self.placers}.isdisjoint(names_of(STEP, learned=True)))
        rows: list[Row] = []
        title = f"{self.seconds:g} s, {trials.scale:.2f} of the reference"
        for name in followed(find_names(self.graphs), title):
            suiting = names_of(kind_of(pipeline_of(name)))
            rows += trials.kept(folder, name, [placer for placer in self.placers if placer in suiting])
        if not rows:
            raise ExperimentError(
                "none of the placers suits these instances: pipelines take placers such as refine and "
                "pipedream, steps of one batch such as refine and heft"
            )
        return _with_others(rows)


class _Trials:
    """Runs placers with a budget of normalised processor seconds."""

    def __init__(self, seconds: float, learned: bool) -> None:
        self.seconds, self.scale = seconds, calibrated_loop_s() / REFERENCE_S
        self._policy = open_policy("pretrained") if learned else None
        self._runner = TrialRunner()

    def kept(self, folder: Path, name: str, placers: Sequence[str]) -> Rows:
        """Makes the rows of an instance, or reads those that a folder has."""
        file = folder / "instances" / f"{file_name(name)}-{self.seconds:g}-s.csv"
        rows = read_table(file) if placers and file.exists() else []
        if [row["placer"] for row in rows] != placers:
            (instance,) = find_instances([name])
            placed = [self._place(instance, placer) for placer in placers]
            best, row = min(placed, key=lambda pair: pair[1].step_s)
            if row.step_s < np.inf:
                path = folder / "placements" / f"{file_name(name)}-{self.seconds:g}-s.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_placement(path, instance.graph, instance.cluster, best)
            rows = [asdict(row) for _, row in placed]
            write_rows(file, rows)
        return rows

    def _place(self, instance: Instance, name: str) -> tuple[Placement, BenchmarkRow]:
        budget = Budget(None, self.seconds * self.scale, running_cpu_s)
        placer = make_placer(name, self._policy, "topo", instance.objective.kind)
        result = self._runner.place(placer, instance.objective, budget, order="", seed=0)
        step_s = result.step_time.total_s if result.feasible else np.inf
        cpu_s, bound_s = result.cpu_s / self.scale, instance.bound_s
        return result.placement, BenchmarkRow(
            instance.name, name, self.seconds, step_s, result.evaluations, cpu_s, bound_s, best_s=step_s
        )


def _with_others(rows: Rows) -> Rows:
    """Adds what others report, and compares all with the best known answers of now."""
    bounds = {row["instance"]: row["bound_s"] for row in rows}
    reported = [
        asdict(BenchmarkRow(name, method, 0.0, row["step_time_s"], 0, 0.0, bounds[name], row["step_time_s"]))
        for row in read_table(DATA / "reported.csv")
        if (name := row["instance"]) in bounds and (method := f"{row['method']}, as reported")
    ]
    known_s = {name: row.step_time_s for name, row in read_best_known().items()}
    best = {
        name: min(known_s.get(name, np.inf), *(row["step_s"] for row in of_instance))
        for name, of_instance in grouped([*rows, *reported], lambda row: row["instance"]).items()
    }
    return [{**row, "best_s": best[row["instance"]]} for row in (*rows, *reported)]


def source_of(row: Row) -> str:
    """Returns the source of the instance of a row."""
    return str(row["instance"].partition(":")[0])


def ratios(rows: Rows) -> dict[str, float]:
    """Returns the step of the first of `OURS` over the best of others by instance; NaN without either."""
    ratio_of = {}
    for instance, of_instance in grouped(rows, lambda row: row["instance"]).items():
        steps = {row["placer"]: row["step_s"] for row in of_instance}
        ours_s = next((steps[placer] for placer in OURS if placer in steps), np.nan)
        others_s = min((step_s for placer, step_s in steps.items() if placer not in OURS), default=np.nan)
        ratio_of[instance] = 1.0 if ours_s == others_s else ours_s / others_s
    return ratio_of


def compared(test: Callable[[float], bool]) -> Statistic:
    """Makes a statistic that counts the instances whose ratio passes a test."""
    return lambda rows: str(sum(map(test, ratios(rows).values())))


def are_closed(rows: Rows) -> str:
    """Counts the instances whose best known step meets the bound."""
    return str(sum(row["best_s"] <= row["bound_s"] * (1 + SAME) for row in rows))


def behind_on(rows: Rows) -> str:
    """Names the instances of one source on which ours is behind, with the ratio."""
    behind = [
        f"{name.partition(':')[2]} {ratio:.3f}" for name, ratio in ratios(rows).items() if ratio > 1 + LEVEL
    ]
    return ", ".join(behind) if len({*map(source_of, rows)}) == 1 else ""


def instances(statistic: Statistic) -> Statistic:
    """Makes a statistic of the first row of each instance."""
    return lambda rows: statistic(
        [of_instance[0] for of_instance in grouped(rows, lambda row: row["instance"]).values()]
    )
