"""Regrets of what is found with few measurements, in worlds with other costs than those simulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.evaluation.comparison.intervals import Interval, nested_interval
from agent.experiments.adaptation.strategies import STRATEGIES, Case
from agent.experiments.adaptation.worlds import CONTENTION, Meter, draw_world
from agent.experiments.launcher import followed
from agent.experiments.rows import axis, grouped, markdown_table, read_rows, write_rows
from agent.placers.base import Budget, SearchState
from agent.placers.search.refine import refine
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.dataset import load_family
from graphs.families import FAMILIES
from graphs.system.array_types import IntArray

OPS = range(100, 401)
COUNTS = (1, 3, 5, 10, 20)
"""Numbers of measurements; the last one is for the first seed alone."""
BEST_KNOWN = 5
"""Times the evaluations of a search that the best known placement of a world is searched with."""
HARM = 0.01
"""Loss to the best of K that is counted."""


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
    seed: int
    contention: str
    strategy: str
    measurements: int
    ratio: float


def regret_rows(
    folder: Path, clusters: Sequence[str], known: int, seeds: int, evaluations: int
) -> Iterator[list[RegretRow]]:
    """Runs every strategy in every world, one world of each graph, cluster and seed.

    Args:
        folder: keeps the rows of each graph and cluster.
        known: greatest number of graphs of a family. The first of about the same size is left out, as the
            constants of `adapt` were chosen on it.
        evaluations: of a search.
    """
    small = [[graph for graph in load_family(family) if graph.n_ops in OPS] for family in FAMILIES]
    graphs = [graph for of_family in small for graph in of_family[1 : known + 1]]
    problems = [Problem(graph, get_cluster(name)) for graph in graphs for name in clusters]
    rows: list[RegretRow] = []
    for number, problem in enumerate(followed(problems, "adaptation")):
        path = folder / f"{problem.graph.name}-{problem.cluster.name}-{seeds}-{evaluations}.csv"
        if problem.is_feasible and not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            worlds = ((seed, CONTENTION[(number + seed) % len(CONTENTION)]) for seed in range(seeds))
            write_rows(path, list(_of_problem(problem, worlds, evaluations)))
        rows += read_rows(path, RegretRow) if problem.is_feasible else []
    yield rows


def _of_problem(problem: Problem, worlds: Iterable[tuple[int, str]], evaluations: int) -> Iterator[RegretRow]:
    found = {each.tobytes(): each for each in (_searched(problem, evaluations, k) for k in range(COUNTS[-1]))}
    starts = sorted(found.values(), key=lambda each: step_time_s(problem, each))
    name, cluster = problem.graph.name, problem.cluster.name
    for number, contention in worlds:
        seed = [number, *f"{name} {cluster}".encode()]
        world = draw_world(problem, contention, np.random.default_rng(seed))
        meters = {strategy: Meter(world, np.random.default_rng([*seed, 1])) for strategy in STRATEGIES}
        counts = COUNTS[:-1] if number else COUNTS
        for strategy, run in STRATEGIES.items():
            run(Case(problem, starts, meters[strategy], counts[-1], np.random.default_rng([*seed, 2])))
        known = [each for meter in meters.values() for each in meter.devices_of]
        best_s = step_time_s(world, _searched(world, BEST_KNOWN * evaluations, 0, known))
        for strategy, meter in meters.items():
            for count in counts:
                ratio = meter.answer_s(count) / best_s
                yield RegretRow(
                    name, problem.graph.family, cluster, number, contention, strategy, count, ratio
                )


def _searched(problem: Problem, evaluations: int, seed: int, known: Sequence[IntArray] = ()) -> IntArray:
    search = SearchState(problem, Budget(evaluations + len(known)))
    if known:
        search.score(np.stack(known))
    refine(search, np.random.default_rng(seed))
    return search.result().placement.device_of


def regret_tables(file: Path) -> Iterator[str]:
    """Yields the regrets by number of measurements, and after ten by what the world has else and by seed."""
    rows = read_rows(file, RegretRow)
    counts = {f"{count} measured": by_strategy for count, by_strategy in _split(rows, "measurements").items()}
    more = [["adapt over best of K"], [f"share of worlds lost by {HARM:.0%}"]]
    for column in counts.values():
        over = [
            RegretRow(**{**vars(own), "ratio": own.ratio / other.ratio})
            for own, other in zip(column["adapt"], column["best of K"], strict=True)
        ]
        more[0].append(str(_interval(over)))
        more[1].append(f"{np.mean([row.ratio > 1 + HARM for row in over]):.1%}")
    yield markdown_table([*_regrets(counts), *more])
    ten = [row for row in rows if row.measurements == COUNTS[3]]
    by_seed = {f"seed {seed}": by_strategy for seed, by_strategy in _split(ten, "seed").items()}
    yield markdown_table(_regrets({**_split(ten, "contention"), **by_seed}))


def _split(rows: Sequence[RegretRow], by: str) -> dict[str, dict[str, list[RegretRow]]]:
    groups = grouped(rows, lambda row: getattr(row, by))
    return {key: grouped(groups[key], lambda row: row.strategy) for key in sorted(groups)}


def _regrets(columns: dict[str, dict[str, list[RegretRow]]]) -> list[list[str]]:
    body = [["strategy", *columns]]
    for strategy in axis(name for by_strategy in columns.values() for name in by_strategy):
        means = [_interval(by_strategy[strategy]) for by_strategy in columns.values()]
        body.append([strategy, *(f"{m - 1:.1%} ({low - 1:.1%} to {high - 1:.1%})" for m, low, high in means)])
    return body


def _interval(rows: Sequence[RegretRow]) -> Interval:
    """Resamples families, the problems of a family, and the worlds of a problem."""
    families = grouped(rows, lambda row: row.family).values()
    problems = [grouped(family, lambda row: (row.graph, row.cluster)).values() for family in families]
    return nested_interval([[[float(np.log(row.ratio)) for row in of] for of in each] for each in problems])
