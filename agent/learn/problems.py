"""The problems that a configuration trains a policy on, and those that validate it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agent.learn.config import ConfigError, TrainConfig
from envs.cluster.presets import RANDOM, get_cluster
from envs.domain_randomization import draw_problem, randomize_domain
from envs.problem import Problem
from graphs.dataset import Split
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph


def training_problems(graphs: Sequence[OpGraph], config: TrainConfig, seed: int) -> list[Problem]:
    """Makes the problems to train on: on the clusters as they are, or on randomizations of them.

    Where the cluster is `random`, each graph, or each randomization of it, gets a cluster drawn for it.
    """
    if not config.randomizations:
        return problems_of(at_granularities(graphs, config.granularity), config.cluster)
    problems = []
    for index, graph in enumerate(at_granularities(graphs, config.granularity)):
        for draw in range(config.randomizations):
            rng = np.random.default_rng([seed, index, draw])
            name = config.cluster[int(rng.integers(len(config.cluster)))]
            problem = _problem(graph, name, rng)
            problems.append(randomize_domain(problem, rng, all_devices=name == RANDOM))
    return [problem for problem in problems if problem.is_feasible]


def validation_problems(graphs: Sequence[OpGraph], config: TrainConfig) -> list[Problem]:
    """Makes the problems to validate on: all graphs on all clusters, or each on one if randomized."""
    graphs = at_granularities(graphs, config.granularity)
    if not config.randomizations:
        return problems_of(graphs, config.cluster)
    named = itertools.cycle(config.cluster)
    return [problem for graph in graphs for problem in problems_of([graph], [next(named)])]


def at_granularities(graphs: Sequence[OpGraph], granularities: Sequence[str]) -> list[OpGraph]:
    """Gives each graph every granularity; its name says which, if that is not `op`.

    Raises:
        GranularityError: a graph without module paths.
    """
    placed = []
    for graph in graphs:
        for granularity in granularities:
            name = graph.name if granularity == "op" else f"{graph.name} by {granularity}"
            placed.append(replace(with_granularity(graph, granularity), name=name))
    return placed


def problems_of(graphs: Sequence[OpGraph], clusters: Sequence[str]) -> list[Problem]:
    """Makes a problem of every graph on every cluster where a placement is feasible."""
    return [problem for problem in _all_problems(graphs, clusters) if problem.is_feasible]


def _all_problems(graphs: Sequence[OpGraph], clusters: Sequence[str]) -> list[Problem]:
    """The graph's name is the seed of `random`, so trainings of all seeds validate alike."""
    pairs = itertools.product(clusters, graphs)
    return [_problem(graph, name, np.random.default_rng([*graph.name.encode()])) for name, graph in pairs]


def _problem(graph: OpGraph, cluster: str, rng: np.random.Generator) -> Problem:
    return draw_problem(graph, rng) if cluster == RANDOM else Problem(graph, get_cluster(cluster))


def left_out(graphs: Split, config: TrainConfig) -> list[str]:
    """Names graphs that `problems_of` leaves out, two for each cluster, as `2xk80: a, b and 3 more`.

    Raises:
        InfeasibleError: all that could be trained on.
        ConfigError: a graph without compute ops.
        GranularityError: a graph without module paths.
    """
    clusters = list(dict.fromkeys(config.cluster))
    train = at_granularities(graphs.train, config.granularity)
    everything = at_granularities((*graphs.train, *graphs.validation, *graphs.held_out), config.granularity)
    for graph in everything:
        if not graph.is_compute.any():
            raise ConfigError(f"graph '{graph.name}' has only parameters and inputs; nothing to place")
    if not problems_of(train, clusters):
        _all_problems(train[:1], clusters[:1])[0].check_feasible()
    names: dict[str, list[str]] = {}
    for problem in _all_problems(everything, clusters):
        if not problem.is_feasible:
            names.setdefault(problem.cluster.name, []).append(problem.graph.name)
    return [
        f"{cluster}: {', '.join(infeasible[:2])}" + f" and {len(infeasible) - 2} more" * (len(infeasible) > 2)
        for cluster, infeasible in names.items()
    ]
