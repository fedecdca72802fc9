"""The rows of the experiment: networks are fitted on some graphs, and placers compared on others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from agent.experiments.fidelity.models import GraphCache
from agent.experiments.neighbourhoods.choosers import AllUnits, Bandit, Fixed, Learned
from agent.experiments.neighbourhoods.learning import fit_moves, fit_sets
from agent.experiments.neighbourhoods.networks import Net
from agent.experiments.neighbourhoods.samples import move_samples, set_samples
from agent.experiments.neighbourhoods.search import refine_with
from agent.experiments.neighbourhoods.sets import KINDS
from agent.experiments.recorded import NeighbourhoodRow
from agent.placers.base import PLACERS, Budget, SearchState, Strategy
from envs.cluster.presets import get_preset
from envs.problem import Problem
from graphs.dataset import capture_draw
from graphs.families import FAMILIES
from graphs.op_graph import OpGraph

CLUSTERS = ("4xv100", "4xa100-pcie")
TESTED = (
    *("llama-700", "llama-701", "t5-700", "t5-701", "switch-700", "moe-700"),
    *("resnet-701", "nmt-701", "randwire-700", "ptb-700", "ssm-701", "bert-701"),
)
LEAST_UNITS = 150
"""Units of a graph to learn from."""
SHARE = 0.3
"""Share of the proposals that the filter lets pass."""
LONG = ("refine", "annealing", "all units", "any kind", "learned", "learned moves")
"""Placers that get the longer budget."""
WARM_S = 0.15


def neighbourhood_rows(
    folder: Path, seconds: Sequence[float], draws: int
) -> Iterator[list[NeighbourhoodRow]]:
    """Fits the networks, and compares all placers in equal processor time.

    Args:
        folder: takes the captured graphs.
        seconds: budgets.
        draws: of each family, to learn from.
    """
    graphs = GraphCache(folder)
    clock = SimpleNamespace(perf_counter=time.process_time, process_time=time.process_time)
    with patch("agent.placers.base.time", clock):  # budgets are processor seconds
        placers = strategies(*fitted(graphs, draws))
        yield list(compared(graphs, placers, seconds))


def fitted(graphs: GraphCache, draws: int) -> tuple[Net, Net, Net, Net]:
    """Fits both networks; each comes with the same with random weights."""
    rng = np.random.default_rng(0)
    problems = [
        Problem(graph, get_preset(cluster))
        for seed in range(draws)
        for family in FAMILIES
        if len((graph := drawn(graphs, f"{family}-{seed}")).units) >= LEAST_UNITS
        for cluster in CLUSTERS
    ]
    first = [set_samples(problem, Fixed(), hot=n % 4 > 1, rng=rng) for n, problem in enumerate(problems)]

    def fit() -> tuple[Net, Net]:
        x, rate = (np.concatenate([own[part] for own in first]) for part in range(2))
        state = np.repeat(np.arange(len(x)), x.shape[1])
        return fit_sets(x.reshape(-1, x.shape[-1]), rate.ravel(), state)

    chooser = Learned(fit()[0])
    for n, problem in enumerate(problems):  # states that the network leads to
        first.append(set_samples(problem, chooser if n % 3 else Fixed(), hot=n % 4 > 1, rng=rng))
    moves = [move_samples(problem, hot=n % 4 > 1, rng=rng) for n, problem in enumerate(problems)]
    x, gain, weight = (np.concatenate([own[part] for own in moves]) for part in range(3))
    return *fit(), *fit_moves(x, gain, weight)


def strategies(sets: Net, random_sets: Net, moves: Net, random_moves: Net) -> dict[str, Strategy]:
    """Makes all that is compared, by name."""
    scanned = partial(AllUnits, scans=True)
    return {
        **{name: PLACERS[name].strategy for name in ("refine", "annealing", "local-search")},
        "all units": refine_with(AllUnits),
        **{kind: refine_with(partial(Fixed, number)) for number, kind in enumerate(KINDS)},
        "any kind": refine_with(Fixed),
        "bandit": refine_with(Bandit),
        "learned": refine_with(partial(Learned, sets)),
        "random weights": refine_with(partial(Learned, random_sets)),
        "learned moves": refine_with(scanned, moves, SHARE),
        "random moves": refine_with(scanned, random_moves, SHARE),
    }


def compared(
    graphs: GraphCache, placers: dict[str, Strategy], seconds: Sequence[float]
) -> Iterator[NeighbourhoodRow]:
    """Runs the placers; only some with the longest of several budgets and with further seeds."""
    for cluster in CLUSTERS:  # loads the kernels
        for strategy in placers.values():
            run(Problem(drawn(graphs, "gpt-1"), get_preset(cluster)), strategy, WARM_S, 0)
    for name in TESTED:
        for cluster in CLUSTERS:
            problem = Problem(drawn(graphs, name), get_preset(cluster))
            for budget in seconds:
                is_long = budget == max(seconds) > min(seconds)
                for seed in range(1 if is_long else 3):
                    for placer, strategy in placers.items():
                        if (is_long and placer not in LONG) or (seed and placer in KINDS):
                            continue
                        search = run(problem, strategy, budget, seed)
                        over_bytes, step_s = search.best_score
                        yield NeighbourhoodRow(
                            graph=name,
                            family=problem.graph.family,
                            ops=problem.graph.n_ops,
                            cluster=cluster,
                            placer=placer,
                            seconds=budget,
                            seed=seed,
                            step_s=step_s,
                            feasible=over_bytes == 0.0,
                            evaluations=search.evaluations,
                            cpu_s=search.elapsed_s,
                        )


def run(problem: Problem, strategy: Strategy, seconds: float, seed: int) -> SearchState:
    """Runs a strategy for some seconds."""
    search = SearchState(problem, Budget(None, seconds))
    strategy(search, np.random.default_rng(seed))
    return search


def drawn(graphs: GraphCache, name: str) -> OpGraph:
    """Returns the graph of a family and seed."""
    family, _, seed = name.rpartition("-")
    return graphs.graph(name, partial(capture_draw, family, int(seed)))
