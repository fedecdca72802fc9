"""Speed of simulations, the environment and bounds: against memory bandwidth, and what they may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from agent.bounds.lower_bound import lower_bound_s
from envs.cluster.presets import get_cluster
from envs.placement.env import PlacementEnv
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.problem import Problem
from envs.simulator.arrays import empty_timeline
from envs.simulator.kernels import run_many
from tests.benchmarks.cases import (
    captured,
    decisions,
    layered_graph,
    nodes_and_edges,
    random_placements,
    seconds_of,
    v100s,
)
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure

Record = Callable[[Figure], None]

PER_ELEMENT = "ns/(node+edge)"
N_PLACEMENTS = 4


@cache
def problem_of(n_ops: int, n_devices: int, schedule: str) -> Problem:
    return Problem(layered_graph(n_ops), v100s(n_devices, schedule))


@cache
def memory_bytes_per_s() -> float:
    """Bytes that one core reads and writes per second, copying far more than any cache holds."""
    source = np.ones(2**25)
    target = np.empty_like(source)
    np.copyto(target, source)
    return 2 * source.nbytes / seconds_of(lambda: np.copyto(target, source), rounds=5)


def touched_bytes(problem: Problem, memory: bool) -> float:
    """Bytes that no simulation does without: each number it reads or fills in, 8 bytes, once."""
    graph = problem.graph
    per_op = 6  # device, whether free, seconds, first input, start, finish
    per_tensor = 2 + 2 * problem.n_devices  # producer, size; end of transfer and arrival at each device
    per_read = 1
    if memory:
        per_op, per_tensor = per_op + 1, per_tensor + 1  # resident bytes, where the tensor is at home
    if problem.cluster.schedule == "fifo":
        per_op, per_tensor = per_op + 1, per_tensor + 1  # outputs
    if memory or problem.cluster.schedule == "fifo":
        per_tensor, per_read = per_tensor + 1, per_read + 1  # consumers
    n_reads = len(graph.consumers.items)
    return 8.0 * (per_op * graph.n_ops + per_tensor * graph.n_tensors + per_read * n_reads)


@pytest.mark.parametrize("n_ops", [1_000, 10_000])
@pytest.mark.parametrize("n_devices", [4, 8])
@pytest.mark.parametrize("memory", [False, True], ids=["time", "memory"])
@pytest.mark.parametrize("schedule", ["program", "fifo"])
def test_one_core(
    stopwatch: Stopwatch, record: Record, schedule: str, memory: bool, n_devices: int, n_ops: int
) -> None:
    problem = problem_of(n_ops, n_devices, schedule)
    placements = random_placements(problem, N_PLACEMENTS)
    total_s, peak = np.zeros(N_PLACEMENTS), np.zeros((N_PLACEMENTS, n_devices))
    per_element = 1e9 / nodes_and_edges(problem)
    timeline = empty_timeline(n_ops, problem.graph.n_tensors, n_devices)
    seconds = stopwatch(lambda: run_many(problem.arrays, placements, timeline, memory, total_s, peak))
    record(
        Figure(
            "Simulator, one core, random placements",
            f"{schedule}{', memory' if memory else ''}, {n_devices} devices, {n_ops:,} ops",
            seconds / N_PLACEMENTS * per_element,
            PER_ELEMENT,
            touched_bytes(problem, memory) / memory_bytes_per_s() * per_element,
            "bytes touched over memory bandwidth, the limit",
        )
    )


@pytest.mark.parametrize("schedule", ["program", "fifo"])
def test_large_graph(stopwatch: Stopwatch, record: Record, schedule: str) -> None:
    problem = problem_of(100_000, 4, schedule)
    placements = random_placements(problem, 1)
    timeline = empty_timeline(100_000, problem.graph.n_tensors, 4)
    total_s, peak = np.zeros(1), np.zeros((1, 4))
    seconds = stopwatch(
        lambda: run_many(problem.arrays, placements, timeline, False, total_s, peak), rounds=20
    )
    record(
        Figure(
            "One simulation of 100,000 ops, 4 devices, one core",
            schedule,
            seconds * 1e3,
            "ms",
            12.0,
            "what it may take",
            touched_bytes(problem, memory=False) / memory_bytes_per_s() * 1e3,
        )
    )


N_EPISODES = 64


@pytest.mark.parametrize(("order", "way"), [("topo", "incremental"), ("bfs", "simulating each candidate")])
def test_lookahead(stopwatch: Stopwatch, record: Callable[[Figure], None], order: str, way: str) -> None:
    problem = captured("cifar10", 200)
    batch = EpisodeBatch([problem], N_EPISODES, EpisodeSettings([order]))
    rng = np.random.default_rng(0)
    actions = rng.integers(problem.n_devices, size=(decisions(problem), N_EPISODES))

    def walk_all() -> None:
        """Every episode from its first op to its last: late decisions look back on more than early ones."""
        for episode in range(N_EPISODES):
            batch.begin(episode, 0, 0, rng)
        for devices in actions:
            if batch.step(devices)[1].any():
                return

    env = PlacementEnv([problem], orders=[order])

    def walk_one() -> None:
        env.reset(seed=0)
        for device in actions[:, 0]:
            if env.step(device)[2]:
                return

    record(
        Figure(
            f"Lookahead, {decisions(problem)} decisions an episode, 4 devices, one core",
            f"{order}, {way}, {N_EPISODES} episodes",
            N_EPISODES * decisions(problem) / stopwatch(walk_all, rounds=5),
            "decisions/s",
            decisions(problem) / seconds_of(walk_one),
            "PlacementEnv, one episode",
        )
    )


N_OPS = 10_000
ALLOWED_S = 1.0
"""What a bound may take."""


@pytest.mark.parametrize("ops_per_unit", [1, 50])
@pytest.mark.parametrize("cluster", ["4xv100", "a100+v100", "3090+2080+titan"])
def test_bound(
    stopwatch: Stopwatch, record: Callable[[Figure], None], cluster: str, ops_per_unit: int
) -> None:
    resident = np.random.default_rng(0).lognormal(14.0, 1.0, N_OPS)
    units = np.arange(N_OPS) // ops_per_unit
    graph = replace(layered_graph(N_OPS), resident_bytes=resident, colocate=units)
    problem = Problem(graph, get_cluster(cluster))
    shares = np.linspace(0.3, 1.0, problem.n_devices)
    tight = problem.with_memory(shares * resident.sum())
    lower_bound_s(tight)  # compiles
    taken: list[float] = []

    def bound() -> None:
        began = time.process_time()
        lower_bound_s(tight)
        taken.append(time.process_time() - began)

    stopwatch(bound, rounds=3)
    group = f"lower bound of a graph of {N_OPS:,} ops, processor time"
    name = f"{cluster}, {ops_per_unit} ops a unit"
    record(Figure(group, name, min(taken), "s", ALLOWED_S, "what it may take"))
