"""The fidelity of the simulator: predicted against measured step times of varied placements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

from agent.placers.base import PLACERS, Budget, names_of
from agent.placing.trial_runner import TrialRunner
from envs.objective import STEP, Objective
from envs.problem import Problem
from envs.runtime.step_meter import MeasuredStep, StepTimeStore, pooled
from envs.simulator.simulate import simulate_problem
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph
from graphs.step_settings import GRANULARITIES
from graphs.system.array_types import IntArray

BUDGET = 10_000
"""Evaluations of the searches whose placements are measured."""
STOPPED_BY_TIME = frozenset({"exact"})
"""Placers that may find another placement each time, as seconds end them; none is measured."""
ROUNDS, ROUND_STEPS = 3, 7
"""Rounds of measurements, and steps that are timed in each, after those that warm up."""
DRAWS = 10
"""Placements that are drawn for each that is measured."""


@dataclass(frozen=True)
class FidelityRow:
    """One placement: what the simulator says it takes, and what it took.

    Attributes:
        source: what made the placement.
        measured_s, low_s, high_s: median of the rounds' medians, least first and greatest ninth decile of the
            measured step times; None if it could not be run.
        first_s, last_s: medians of the first and the last round.
        transfer_bytes: what devices send to each other in a step.
        failure: why it could not be run, or "".
    """

    graph: str
    cluster: str
    granularity: str
    source: str
    predicted_s: float
    measured_s: float | None
    low_s: float | None
    high_s: float | None
    first_s: float | None
    last_s: float | None
    n_steps: int
    transfer_bytes: float
    failure: str


@dataclass(frozen=True)
class Fidelity:
    """The agreement of predictions with measurements, over the placements that could be run.

    Attributes:
        median_error, p90_error: of |predicted / measured - 1|.
        scaled_error: median error after one factor for all, as where the machine is slower than it was when
            its ops were timed.
        regret: measured time of the placement with the shortest prediction, over the shortest measured one,
            minus 1.
        retest: Kendall's rank correlation of the first round of measurements and the last: with itself, the
            machine agrees no better.
    """

    n_placements: int
    median_error: float
    p90_error: float
    scaled_error: float
    spearman: float
    kendall: float
    regret: float
    retest: float


def measure_fidelity(
    problem: Problem,
    measurements: StepTimeStore,
    count: int,
    granularity: str,
    report: Callable[[int, int], None],
) -> list[FidelityRow]:
    """Simulates and measures varied placements.

    They are measured in rounds, all once before any is measured again: a machine that is slower for a minute
    then makes none of them seem slow.

    Args:
        problem: the graph of `measurements`, at the granularity of that name.
        report: called with (measurements made, measurements in all) after each.
    """
    placements = list(varied_placements(problem, count))
    rounds: list[list[MeasuredStep]] = [[] for _ in placements]
    total = ROUNDS * len(placements)
    for round in range(ROUNDS):
        for (_, device_of), steps in zip(placements, rounds, strict=True):
            report(sum(map(len, rounds)), total)
            steps.append(measurements.measure(device_of, round=round, n_steps=ROUND_STEPS))
    report(total, total)
    return [
        _row(problem, granularity, source, device_of, steps)
        for (source, device_of), steps in zip(placements, rounds, strict=True)
    ]


def _row(
    problem: Problem, granularity: str, source: str, device_of: IntArray, rounds: Sequence[MeasuredStep]
) -> FidelityRow:
    measured = pooled(rounds)
    simulated = simulate_problem(problem, device_of)
    return FidelityRow(
        graph=problem.graph.name,
        cluster=problem.cluster.name,
        granularity=granularity,
        source=source,
        predicted_s=float(simulated.total_s),
        first_s=rounds[0].median_s if measured.feasible else None,
        last_s=rounds[-1].median_s if measured.feasible else None,
        transfer_bytes=float(np.sum(simulated.transfer_bytes)),
        **measured_cells(measured),
    )


def measured_cells(measured: MeasuredStep) -> dict[str, Any]:
    """Returns the columns of a row that a measurement fills; seconds are None if it could not be run."""
    times_s = {"measured_s": measured.median_s, "low_s": measured.low_s, "high_s": measured.high_s}
    cells: dict[str, Any] = dict(times_s) if measured.feasible else dict.fromkeys(times_s)
    return cells | {"n_steps": measured.n_steps, "failure": measured.failure}


def fidelity_of(rows: list[FidelityRow]) -> Fidelity | None:
    """Compares predictions with measurements; None with fewer than two placements that could be run."""
    ran = [row for row in rows if row.measured_s is not None]
    if len(ran) < 2:
        return None
    predicted, measured = np.array([(row.predicted_s, row.measured_s) for row in ran], dtype=float).T
    ratios = predicted / measured
    errors = np.abs(ratios - 1)
    return Fidelity(
        n_placements=len(ratios),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        scaled_error=float(np.median(np.abs(ratios / np.median(ratios) - 1))),
        spearman=float(spearmanr(predicted, measured).statistic),
        kendall=float(kendalltau(predicted, measured).statistic),
        regret=float(measured[np.argmin(predicted)] / measured.min() - 1),
        retest=float(kendalltau([row.first_s for row in ran], [row.last_s for row in ran]).statistic),
    )


def varied_placements(problem: Problem, count: int) -> Iterator[tuple[str, IntArray]]:
    """Makes different placements, from the worst to the best: the same problem always gives the same.

    First come each device alone and what the placers that learn nothing find. The others are draws whose
    simulated step times are spread evenly: the best of those placements with a share of its ops, modules,
    blocks or layers drawn anew, and draws of all of them.

    Yields:
        What made a placement, and the device of each op, int (n_ops,). Fewer than `count` where there are no
        more.
    """
    placements = list(_distinct(_found(problem)))[:count]
    yield from placements
    times = [simulate_problem(problem, device_of).total_s for _, device_of in placements]
    base = placements[int(np.argmin(times))][1]
    n_draws = DRAWS * (count - len(placements))
    draws = _draws(problem, base, n_draws, np.random.default_rng(0))
    pool = list(_distinct(draws, {device_of.tobytes() for _, device_of in placements}))
    yield from _spread(pool, problem, times, count - len(placements))


def _distinct(
    placements: Iterable[tuple[str, IntArray]], before: Iterable[bytes] = ()
) -> Iterator[tuple[str, IntArray]]:
    seen = {*before}
    for source, device_of in placements:
        if device_of.tobytes() not in seen:
            seen.add(device_of.tobytes())
            yield source, device_of


def _found(problem: Problem) -> Iterator[tuple[str, IntArray]]:
    for device in range(problem.n_devices):
        yield f"device {device}", np.full(problem.graph.n_ops, device)
    runner = TrialRunner()
    for name in names_of(STEP, learned=False):
        if name not in STOPPED_BY_TIME:
            result = runner.place(PLACERS[name], Objective(problem), Budget(BUDGET), order="", seed=0)
            yield name, result.placement.device_of


def _draws(
    problem: Problem, base: IntArray, count: int, rng: np.random.Generator
) -> Iterator[tuple[str, IntArray]]:
    graph = problem.graph
    levels = [level for level in GRANULARITIES if level == "op" or any(graph.modules)]
    for draw in range(count):
        level, share = levels[draw % len(levels)], rng.uniform()
        coarser = with_granularity(graph, level)
        drawn = rng.choice(
            problem.n_devices, p=rng.dirichlet(np.ones(problem.n_devices)), size=len(coarser.units)
        )
        is_drawn = rng.uniform(size=len(coarser.units)) < share
        mixed = np.where(is_drawn[coarser.unit_of], drawn[coarser.unit_of], base)
        yield f"{share:.0%} drawn per {level}", mixed[_first_ops(graph)][graph.unit_of]


def _first_ops(graph: OpGraph) -> IntArray:
    """First computing op of each unit, (n_units,), which the others of the unit follow."""
    compute_first = np.lexsort((np.arange(graph.n_ops), graph.is_source, graph.unit_of))
    return compute_first[np.unique(graph.unit_of[compute_first], return_index=True)[1]]


def _spread(
    pool: list[tuple[str, IntArray]], problem: Problem, times: list[float], count: int
) -> Iterator[tuple[str, IntArray]]:
    """Takes from a pool, one by one, the placement whose time is furthest from those of all taken."""
    logs = np.log([simulate_problem(problem, device_of).total_s for _, device_of in pool])
    distance = np.abs(logs[:, None] - np.log(times)[None, :]).min(axis=1)
    for _ in range(min(count, len(pool))):
        furthest = int(np.argmax(distance))
        yield pool[furthest]
        distance = np.minimum(distance, np.abs(logs - logs[furthest]))
        distance[furthest] = -1.0
