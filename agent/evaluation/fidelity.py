"""How true the simulator is: the predicted against the measured step time of varied placements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau, spearmanr

from agent.evaluation.trial_runner import TrialRunner
from agent.placers.base import PLACERS, Budget
from envs.execution.measurements import Measurements
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.granularity import with_granularity
from graphs.op_graph import FloatArray, IntArray, OpGraph
from graphs.step_settings import GRANULARITIES

BUDGETS = (10, 100, 1_000, 10_000)
"""Evaluations of the searches whose placements are measured."""


@dataclass(frozen=True)
class FidelityRow:
    """One placement: what the simulator says it takes, and what it took.

    Attributes:
        source: what made the placement.
        predicted_s: simulated step time.
        measured_s, low_s, high_s: median, first and ninth decile of the measured step times; None if it could
            not be run.
        n_steps: number of steps that were timed.
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
    n_steps: int
    transfer_bytes: float
    failure: str


@dataclass(frozen=True)
class Fidelity:
    """How well predictions agree with measurements, over the placements that could be run.

    Attributes:
        n_placements: how many those are.
        median_error, p90_error: of |predicted / measured - 1|.
        spearman, kendall: rank correlations.
        regret: measured time of the placement with the shortest prediction, over the shortest measured one,
            minus 1.
    """

    n_placements: int
    median_error: float
    p90_error: float
    spearman: float
    kendall: float
    regret: float


def measure_fidelity(
    problem: Problem,
    measurements: Measurements,
    count: int,
    granularity: str,
    report: Callable[[int, int], None],
) -> list[FidelityRow]:
    """Simulates and measures varied placements.

    Args:
        problem: the graph of `measurements`, at the granularity of that name.
        count: number of placements.
        report: called with (placements measured, placements in all) after each.
    """
    rows: list[FidelityRow] = []
    for source, device_of in varied_placements(problem, count):
        report(len(rows), count)
        rows.append(_row(problem, measurements, granularity, source, device_of))
    report(len(rows), count)
    return rows


def _row(
    problem: Problem, measurements: Measurements, granularity: str, source: str, device_of: IntArray
) -> FidelityRow:
    simulated = simulate_problem(problem, device_of)
    measured = measurements.measure(device_of)
    return FidelityRow(
        graph=problem.graph.name,
        cluster=problem.cluster.name,
        granularity=granularity,
        source=source,
        predicted_s=float(simulated.total_s),
        measured_s=measured.median_s if measured.feasible else None,
        low_s=measured.low_s if measured.feasible else None,
        high_s=measured.high_s if measured.feasible else None,
        n_steps=measured.n_steps,
        transfer_bytes=float(np.sum(simulated.transfer_bytes)),
        failure=measured.failure,
    )


def fidelity_of(rows: list[FidelityRow]) -> Fidelity | None:
    """Compares predictions with measurements; None with fewer than two placements that could be run."""
    pairs = [(row.predicted_s, row.measured_s) for row in rows if row.measured_s is not None]
    if len(pairs) < 2:
        return None
    predicted, measured = np.array(pairs).T
    errors = np.abs(predicted / measured - 1)
    return Fidelity(
        n_placements=len(pairs),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        spearman=float(spearmanr(predicted, measured).statistic),
        kendall=float(kendalltau(predicted, measured).statistic),
        regret=float(measured[np.argmin(predicted)] / measured.min() - 1),
    )


def varied_placements(problem: Problem, count: int) -> Iterator[tuple[str, IntArray]]:
    """Draws different placements, from the worst to the best: the same problem always gives the same.

    They are each device alone, what the placers that learn nothing find with several budgets, and draws of a
    device for every op, module, block or layer, with devices that are equally likely or not.

    Yields:
        What made a placement, and the device of each op, int (n_ops,). Fewer than `count` where there are no
        more.
    """
    seen: set[bytes] = set()
    for source, device_of in _candidates(problem, np.random.default_rng(0), 20 * count):
        if len(seen) < count and device_of.tobytes() not in seen:
            seen.add(device_of.tobytes())
            yield source, device_of


def _candidates(problem: Problem, rng: np.random.Generator, n_draws: int) -> Iterator[tuple[str, IntArray]]:
    graph, n_devices = problem.graph, problem.n_devices
    for device in range(n_devices):
        yield f"device {device}", np.full(graph.n_ops, device)
    runner = TrialRunner()
    for name, placer in PLACERS.items():
        for budget in BUDGETS if placer.uses_rng and name != "random" else BUDGETS[-1:]:
            found = runner.place(placer, problem, Budget(budget), order="", seed=0)
            yield f"{name} {budget}", found.placement.device_of
    levels = [level for level in GRANULARITIES if level == "op" or any(graph.modules)]
    for draw in range(n_draws):
        level = levels[draw % len(levels)]
        shares = rng.dirichlet(np.ones(n_devices))
        yield f"random per {level}", _drawn(graph, with_granularity(graph, level), shares, rng)


def _drawn(graph: OpGraph, coarser: OpGraph, shares: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draws a device for each unit of a coarser graph; each unit of the graph itself follows its first op."""
    device_of = rng.choice(len(shares), p=shares, size=len(coarser.units))[coarser.unit_of]
    compute_first = np.lexsort((np.arange(graph.n_ops), graph.is_source, graph.unit_of))
    _, first = np.unique(graph.unit_of[compute_first], return_index=True)
    drawn: IntArray = device_of[compute_first[first]][graph.unit_of]
    return drawn
