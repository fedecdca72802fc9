"""Placers on the instances of the field, in equal processor time; what they find is kept as submissions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from agent.evaluation.run import file_name
from agent.experiments.experiment import ExperimentError
from agent.experiments.rows import grouped, markdown_table, mean_cell, read_rows, read_table, write_rows
from agent.instances.best_known import SAME, read_best_known
from agent.instances.instance import Instance, find_instances, find_names, pipeline_of
from agent.instances.profiles import DATA
from agent.pipelines.search import PIPELINE_PLACERS
from agent.placers.base import PLACERS, Budget
from agent.placing.policies import EvaluatedPolicy, make_placer, open_policy
from agent.placing.trial_runner import TrialRunner
from agent.policy.placers import LEARNED
from agent.training.run_folder import git_commit
from envs.placement.files import placement_to_json
from envs.placement.placement import Placement
from envs.simulator.simulate import simulate_many
from graphs.system.json_files import read_json, write_json_atomic
from graphs.system.progress import followed

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
    """Makes the rows of all placers; `folder/placements` gets the best placement of each instance.

    Args:
        folder: keeps the rows of each instance.
        graphs: patterns of names of instances.
        placers: those that do not suit an objective are left out there.
        seconds: budget in normalised processor seconds.

    Raises:
        ExperimentError: an unknown placer, or none that suits an instance.
        InstanceError: an unknown instance.
    """
    steps = (*PLACERS, *LEARNED)
    if unknown := {*placers} - {*steps, *PIPELINE_PLACERS}:
        known = ", ".join(dict.fromkeys((*steps, *PIPELINE_PLACERS)))
        raise ExperimentError(f"unknown placer '{min(unknown)}'; use some of {known}")
    scale = calibrated_loop_s() / REFERENCE_S
    policy = open_policy("pretrained", []) if {*placers} & {*LEARNED} else None
    runner, found = TrialRunner(), []
    for name in followed(find_names(graphs), f"{seconds:g} s, {scale:.2f} of the reference machine"):
        suiting = [each for each in placers if each in (PIPELINE_PLACERS if pipeline_of(name) else steps)]
        file = folder / "instances" / f"{file_name(name)}-{seconds:g}-s.csv"
        rows = read_rows(file, BenchmarkRow) if suiting and file.exists() else []
        if [row.placer for row in rows] != suiting:
            (instance,) = find_instances([name])
            placed = [_place(instance, each, seconds, scale, runner, policy) for each in suiting]
            best, row = min(placed, key=lambda pair: pair[1].step_s)
            _write_submission(folder / "placements" / f"{file_name(name)}.json", instance, best, row)
            rows = [row for _, row in placed]
            file.parent.mkdir(parents=True, exist_ok=True)
            write_rows(file, rows)
        found += rows
    if not found:
        raise ExperimentError(
            "none of the placers suits these instances: pipelines take placers such as refine and piper, "
            "steps of one batch such as refine and heft"
        )
    yield _with_others(found)


def _place(
    instance: Instance,
    name: str,
    seconds: float,
    scale: float,
    runner: TrialRunner,
    policy: EvaluatedPolicy | None,
) -> tuple[Placement, BenchmarkRow]:
    """Runs a placer with a budget of processor seconds."""
    budget = Budget(None, seconds * scale)
    with patch("time.perf_counter", time.process_time):
        if instance.pipeline is not None:
            piped = runner.run_pipeline(name, instance.pipelined, budget, None, seed=0)
            assert piped.placement is not None, "a placer of pipelines makes a placement"
            placement, evaluations, cpu_s = piped.placement, piped.evaluations, piped.cpu_s
        else:
            placer = make_placer(name, policy, "topo")
            found = runner.place(placer, instance.problem, budget, order="", seed=0)
            placement, evaluations, cpu_s = found.placement, found.evaluations, found.cpu_s
    step = instance.simulate(placement)
    step_s = step.total_s if step.fits else np.inf
    bound_s, cpu_s = instance.bound_s, cpu_s / scale
    return placement, BenchmarkRow(
        instance.name, name, seconds, step_s, evaluations, cpu_s, bound_s, best_s=step_s
    )


def _write_submission(path: Path, instance: Instance, placement: Placement, row: BenchmarkRow) -> None:
    """Writes the best placement of an instance for the table of best known answers.

    One that is infeasible, or no better than that of an earlier run, is left out.
    """
    before: Any = read_json(path) if path.exists() else {}
    if row.step_s < before.get("step_time_s", np.inf):
        path.parent.mkdir(parents=True, exist_ok=True)
        claims = {
            "step_time_s": row.step_s,
            "method": row.placer,
            "found_by": "Placewalk",
            "commit": (git_commit() or "unknown")[:7],
            "date": date.today().isoformat(),
            "seconds": round(row.cpu_s, 3),
        }
        write_json_atomic(path, placement_to_json(instance.graph, instance.cluster, placement) | claims)


def _with_others(rows: Sequence[BenchmarkRow]) -> list[BenchmarkRow]:
    """Adds what others report, and compares all with the best known answers of now."""
    bounds = {row.instance: row.bound_s for row in rows}
    reported = []
    for each in read_table(DATA / "reported.csv"):
        if (name := each["instance"]) in bounds:
            method, step_s = f"{each['method']}, as reported", each["step_time_s"]
            reported.append(BenchmarkRow(name, method, 0.0, step_s, 0, 0.0, bounds[name], step_s))
    known = {name: row.step_time_s for name, row in read_best_known().items()}
    best = {
        name: min(known.get(name, np.inf), *(row.step_s for row in own))
        for name, own in grouped([*rows, *reported], lambda row: row.instance).items()
    }
    return [replace(row, best_s=best[row.instance]) for row in (*rows, *reported)]


def benchmark_tables(file: Path) -> Iterator[str]:
    """Yields step times over the best known by source, and who is ahead on each source."""
    rows = read_rows(file, BenchmarkRow)
    yield _placer_table(rows)
    yield _source_table(rows)


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
        ratios = {each[0].instance: _ours_over_others(each) for each in cells}
        behind = [
            f"{name.partition(':')[2]} {ratio:.3f}" for name, ratio in ratios.items() if ratio > 1 + LEVEL
        ]
        ahead = sum(ratio < 1 - LEVEL for ratio in ratios.values())
        level = sum(1 - LEVEL <= ratio <= 1 + LEVEL for ratio in ratios.values())
        counts = [len(cells), closed, over, ahead, level, len(behind)]
        body.append([source, *map(str, counts), "" if source == "all" else ", ".join(behind)])
    return markdown_table([head, *body])


def _ours_over_others(rows: Sequence[BenchmarkRow]) -> float:
    """Step of the first of `OURS` that placed an instance, over the best of others; NaN without either."""
    ours = [row for row in rows if row.placer in OURS]
    others_s = min((row.step_s for row in rows if row.placer not in OURS), default=np.nan)
    step_s = min(ours, key=lambda row: OURS.index(row.placer)).step_s if ours else np.nan
    return 1.0 if step_s == others_s else step_s / others_s
