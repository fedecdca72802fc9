"""Regrets of what is found with few measurements, in worlds with other costs than those simulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from agent.evaluation.comparison.intervals import nested_interval
from agent.experiments.adaptation.strategies import STRATEGIES, Case
from agent.experiments.adaptation.worlds import CONTENTION, Meter, draw_world
from agent.experiments.equal_time.sealed import sealed_graphs
from agent.experiments.equal_time.sealed_models import SEALED_FAMILIES
from agent.experiments.launcher import followed
from agent.experiments.rows import axis, markdown_table, read_rows
from agent.placers.base import Budget, SearchState
from agent.placers.search.refine import refine
from agent.policy.seen import NOT_SEEN
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.system.array_types import IntArray

COUNTS = (1, 5, 10, 20)
BEST_KNOWN = 5
"""Times the evaluations of a search that the best known placement of a world is searched with."""
TRUE_COSTS = "search with true costs"


@dataclass(frozen=True)
class RegretRow:
    """The answer of a strategy in a world after some measurements.

    Attributes:
        contention: how the rules of the world differ, of `CONTENTION`.
        ratio: true step time of the answer over that of the best known placement.
    """

    graph: str
    family: str
    cluster: str
    world: int
    contention: str
    strategy: str
    measurements: int
    ratio: float


def regret_rows(
    folder: Path,
    clusters: Sequence[str],
    families: Sequence[str],
    new: int,
    first_seed: int,
    worlds: int,
    evaluations: int,
) -> Iterator[list[RegretRow]]:
    """Runs every strategy in every world.

    Args:
        families: of the sealed set; none for all that are in no benchmark.
        new, first_seed: as `sealed_graphs` takes them.
        worlds: of each graph and cluster.
        evaluations: of a search.
    """
    graphs = sealed_graphs(
        Path("runs") / "sealed",
        n_known=0,
        n_new=new,
        how_seen=lambda graph: NOT_SEEN,
        families=families or tuple(SEALED_FAMILIES),
        first_seed=first_seed,
    )
    problems = [Problem(graph, get_cluster(name)) for graph in graphs for name in clusters]
    feasible = [problem for problem in problems if problem.is_feasible]
    yield [row for each in followed(feasible, "adapt") for row in _of_problem(each, worlds, evaluations)]


def _of_problem(problem: Problem, worlds: int, evaluations: int) -> Iterator[RegretRow]:
    found = [_searched(problem, evaluations, seed) for seed in range(COUNTS[-1])]
    distinct = list({each.tobytes(): each for each in found}.values())
    starts = sorted(distinct, key=lambda each: step_time_s(problem, each))
    name, cluster = problem.graph.name, problem.cluster.name
    for number in range(worlds):
        seed = [crc32(f"{name} {cluster}".encode()), number]
        contention = CONTENTION[sum(seed) % len(CONTENTION)]
        world = draw_world(problem, contention, np.random.default_rng(seed))
        meters = {}
        for strategy, run in STRATEGIES.items():
            meters[strategy] = Meter(world, np.random.default_rng([*seed, 1]))
            run(Case(problem, starts, meters[strategy], COUNTS[-1], np.random.default_rng([*seed, 2])))
        known = [each for meter in meters.values() for each in meter.devices_of]
        best_s = step_time_s(world, _searched(world, BEST_KNOWN * evaluations, 0, known))
        informed_s = step_time_s(world, _searched(world, evaluations, 1))
        for count in COUNTS:
            answers = {strategy: meter.answer_s(count) for strategy, meter in meters.items()}
            for strategy, step_s in {**answers, TRUE_COSTS: informed_s}.items():
                yield RegretRow(
                    name,
                    problem.graph.family,
                    cluster,
                    number,
                    contention,
                    strategy,
                    count,
                    step_s / min(best_s, informed_s),
                )


def _searched(problem: Problem, evaluations: int, seed: int, known: Sequence[IntArray] = ()) -> IntArray:
    search = SearchState(problem, Budget(evaluations + len(known)))
    if known:
        search.score(np.stack(known))
    refine(search, np.random.default_rng(seed))
    return search.result().placement.device_of


def regret_tables(file: Path) -> Iterator[str]:
    """Yields the regrets by number of measurements, and after ten by what the simulator has wrong."""
    rows = read_rows(file, RegretRow)
    counts = axis(row.measurements for row in rows)
    yield _table(
        rows, {f"{count} measured": [row for row in rows if row.measurements == count] for count in counts}
    )
    ten = [row for row in rows if row.measurements == COUNTS[2]]
    yield _table(
        rows, {f"contention: {name}": [row for row in ten if row.contention == name] for name in CONTENTION}
    )


def _table(rows: Sequence[RegretRow], columns: dict[str, list[RegretRow]]) -> str:
    body = [
        [name, *(_cell([row for row in column if row.strategy == name]) for column in columns.values())]
        for name in axis(row.strategy for row in rows)
    ]
    return markdown_table([["strategy", *columns], *body])


def _cell(rows: Sequence[RegretRow]) -> str:
    """Formats the mean regret; its 95 % interval is from resampling families, graphs and worlds."""
    groups: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row.family][row.graph, row.cluster].append(float(np.log(row.ratio)))
    if not groups:
        return ""
    mean, low, high = nested_interval([list(group.values()) for group in groups.values()])
    return f"{mean - 1:.1%} ({low - 1:.1%} to {high - 1:.1%})"
