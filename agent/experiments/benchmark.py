"""Placers on the instances of the field, in equal processor time; what they find is kept as submissions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from unittest.mock import patch

import numpy as np

from agent.evaluation.policies import EvaluatedPolicy, make_placer, open_policy
from agent.evaluation.run import file_name
from agent.evaluation.trial_runner import TrialRunner
from agent.experiments.experiment import ExperimentError
from agent.experiments.launcher import followed
from agent.experiments.rows import grouped, markdown_table, mean_cell, read_rows, write_rows
from agent.instances.best_known import SAME, BestKnown, bound_of, read_best_known, read_reported
from agent.instances.instance import SOURCES, Instance, find_instances, find_names
from agent.instances.submissions import write_submission
from agent.pipelines.search import PIPELINE_PLACERS
from agent.placers.base import PLACERS, Budget
from agent.policy.placers import LEARNED
from agent.training.run_folder import git_commit
from envs.placement.placement import Placement
from envs.simulator.simulate import simulate_many

OURS = ("auto", "refine", "annealing", "exact", "rollout-refine", "policy-refine")
"""Searches of this project, the default first; the others are methods of the field, in our code."""
PLACEMENTS = "placements"
"""Folder of what is better than the best known."""
LEVEL = 1e-3
"""Step times that differ by less, as a share, are level."""
LOOP_PLACEMENTS, LOOP_TRIES = 2_000, 7
REFERENCE_S = 0.064
"""Processor seconds of the calibrating loop on the machine that a normalised second is one of."""


@dataclass(frozen=True)
class BenchmarkRow:
    """A placer on an instance.

    Attributes:
        seconds: budget, in normalised processor seconds; 0 for what others report.
        step_s: step time; infinite where the placement found is out of memory.
        cpu_s: normalised processor seconds that it took.
        bound_s: no placement has a shorter step.
        best_s: the best known step, what was found here included.
    """

    instance: str
    placer: str
    seconds: float
    step_s: float
    evaluations: int
    cpu_s: float
    bound_s: float
    best_s: float

    @property
    def source(self) -> str:
        """The source of the instance."""
        return self.instance.partition(":")[0]


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


def benchmark_rows(
    folder: Path, graphs: Sequence[str], placers: Sequence[str], seconds: float
) -> Iterator[list[BenchmarkRow]]:
    """Makes the rows of all placers; `folder/placements` gets what is better than the best known.

    Args:
        folder: keeps the rows of each instance.
        graphs: patterns of names of instances.
        placers: those that do not suit an objective are left out there.
        seconds: budget in normalised processor seconds.

    Raises:
        ExperimentError: an unknown placer.
        InstanceError: an unknown instance.
    """
    steps = (*PLACERS, *LEARNED)
    if unknown := {*placers} - {*steps, *PIPELINE_PLACERS}:
        names = ", ".join(dict.fromkeys((*steps, *PIPELINE_PLACERS)))
        raise ExperimentError(f"unknown placer '{min(unknown)}'; use some of {names}")
    scale = calibrated_loop_s() / REFERENCE_S
    policy = open_policy("pretrained", []) if {*placers} & {*LEARNED} else None
    runner, found = TrialRunner(), []
    for name in followed(find_names(graphs), f"{seconds:g} s, {scale:.2f} of the reference machine"):
        file = folder / "instances" / f"{file_name(name)}-{seconds:g}-s.csv"
        rows = read_rows(file, BenchmarkRow) if file.exists() else []
        is_pipeline = SOURCES[name.partition(":")[0]].pipeline is not None
        suiting = [each for each in placers if each in (PIPELINE_PLACERS if is_pipeline else steps)]
        if [row.placer for row in rows] != suiting:
            (instance,) = find_instances([name])
            rows = _rows_of(instance, suiting, seconds, scale, folder, runner, policy)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_rows(file, rows)
        found += rows
    known = read_best_known()
    found = [_up_to_date(row, known[row.instance]) if row.instance in known else row for row in found]
    yield [*found, *_reported({row.instance: row for row in found})]


def _up_to_date(row: BenchmarkRow, known: BestKnown) -> BenchmarkRow:
    """Compares a row that may be kept from earlier with the best known answer of now."""
    return replace(row, best_s=min(row.best_s, known.step_time_s), bound_s=max(row.bound_s, known.bound_s))


def _rows_of(
    instance: Instance,
    placers: Sequence[str],
    seconds: float,
    scale: float,
    folder: Path,
    runner: TrialRunner,
    policy: EvaluatedPolicy | None,
) -> list[BenchmarkRow]:
    known = read_best_known()
    bound_s = bound_of(instance, known)
    best_s = known[instance.name].step_time_s if instance.name in known else np.inf
    runs = []
    for placer in placers:
        run = _run(instance, placer, Budget(None, seconds * scale), runner, policy)
        runs.append((placer, run))
        bound_s = max(bound_s, run.proved_s)
        if run.step_s < best_s * (1 - SAME):
            best_s = run.step_s
            claims = {
                "step_time_s": run.step_s,
                "method": placer,
                "found_by": "Placewalk",
                "commit": (git_commit() or "unknown")[:7],
                "date": date.today().isoformat(),
                "seconds": round(run.cpu_s / scale, 3),
            }
            path = folder / PLACEMENTS / f"{file_name(instance.name)}.json"
            write_submission(path, instance, run.placement, claims)
    return [
        BenchmarkRow(
            instance.name, placer, seconds, run.step_s, run.evaluations, run.cpu_s / scale, bound_s, best_s
        )
        for placer, run in runs
    ]


@dataclass(frozen=True, eq=False)
class _Run:
    placement: Placement
    step_s: float
    evaluations: int
    cpu_s: float
    proved_s: float = 0.0


def _run(
    instance: Instance, name: str, budget: Budget, runner: TrialRunner, policy: EvaluatedPolicy | None
) -> _Run:
    """Runs a placer with a budget of processor seconds."""
    with patch("time.perf_counter", time.process_time):
        if instance.pipeline is not None:
            piped = runner.run_pipeline(name, instance.pipelined, budget, None, seed=0)
            assert piped.placement is not None, "a placer of pipelines makes a placement"
            step_s = piped.step_time_s if piped.fits else np.inf
            return _Run(piped.placement, step_s, piped.evaluations, piped.cpu_s)
        placer = make_placer(name, policy, "topo")
        found = runner.place(placer, instance.problem, budget, order="", seed=0)
    step_s = found.step_time.total_s if found.feasible else np.inf
    return _Run(found.placement, step_s, found.evaluations, found.cpu_s, found.lower_bound_s)


def _reported(own: Mapping[str, BenchmarkRow]) -> Iterator[BenchmarkRow]:
    """Yields what others report on the instances at hand."""
    for each in read_reported():
        if each.instance in own:
            row = own[each.instance]
            method = f"{each.method}, as reported"
            yield BenchmarkRow(each.instance, method, 0.0, each.step_time_s, 0, 0.0, row.bound_s, row.best_s)


def benchmark_tables(file: Path) -> Iterator[str]:
    """Yields step times over the best known by source, who is ahead on each source, and all instances."""
    rows = read_rows(file, BenchmarkRow)
    yield _placer_table(rows)
    yield _source_table(rows)
    yield _instance_table(rows)


def _placer_table(rows: Sequence[BenchmarkRow]) -> str:
    """Formats geometric means over the instances that a placer fits in memory."""
    sources = list(grouped(rows, lambda row: row.source))
    head = ["placer", *sources, "all over bound", "infeasible", "seconds, mean"]
    body = []
    for placer, own in grouped(rows, lambda row: row.placer).items():
        feasible = [row for row in own if row.step_s < np.inf]
        means = [
            mean_cell(row.step_s / row.best_s for row in feasible if row.source == source)
            for source in sources
        ]
        over = mean_cell(row.step_s / row.bound_s for row in feasible)
        spent = f"{np.mean([row.cpu_s for row in own]):.2f}" if own[0].seconds else ""
        body.append([placer, *means, over, str(len(own) - len(feasible)), spent])
    return markdown_table([head, *body])


def _source_table(rows: Sequence[BenchmarkRow]) -> str:
    """Formats how many instances are closed, and on how many ours are ahead of all others together."""
    head = ["source", "instances", "closed", "best known over bound", "ahead", "level", "behind", "behind on"]
    body = []
    for source, own in [*grouped(rows, lambda row: row.source).items(), ("all", list(rows))]:
        cells = [list(each) for each in grouped(own, lambda row: row.instance).values()]
        closed = sum(each[0].best_s <= each[0].bound_s * (1 + SAME) for each in cells)
        over = mean_cell(each[0].best_s / each[0].bound_s for each in cells)
        pairs = {each[0].instance: _ours_and_others(each) for each in cells}
        ratios = {
            name: 1.0 if ours_s == other.step_s else ours_s / other.step_s
            for name, (ours_s, other) in pairs.items()
        }
        behind = [
            f"{name.partition(':')[2]} {ratio:.3f}" for name, ratio in ratios.items() if ratio > 1 + LEVEL
        ]
        ahead = sum(ratio < 1 - LEVEL for ratio in ratios.values())
        counts = [len(cells), closed, over, ahead, len(cells) - ahead - len(behind), len(behind)]
        body.append([source, *map(str, counts), "" if source == "all" else ", ".join(behind)])
    return markdown_table([head, *body])


def _ours_and_others(rows: Sequence[BenchmarkRow]) -> tuple[float, BenchmarkRow]:
    """Returns the step of the first of `OURS` that placed an instance, and the best row of all others."""
    ours = [row for row in rows if row.placer in OURS]
    others = [row for row in rows if row.placer not in OURS]
    step_s = min(ours, key=lambda row: OURS.index(row.placer)).step_s if ours else np.inf
    return step_s, min(others or ours, key=lambda row: row.step_s)


def _instance_table(rows: Sequence[BenchmarkRow]) -> str:
    head = ["instance", "best known, ms", "over bound", "ours", "best of others", "by"]
    body = []
    for name, own in grouped(rows, lambda row: row.instance).items():
        ours_s, other = _ours_and_others(own)
        best_s = own[0].best_s
        over = ["optimal" if best_s <= own[0].bound_s * (1 + SAME) else f"{best_s / own[0].bound_s:.3f}"]
        ratios = [f"{step_s / best_s:.3f}" for step_s in (ours_s, other.step_s)]
        body.append([name, f"{best_s * 1e3:.6g}", *over, *ratios, other.placer])
    return markdown_table([head, *body])
