"""Speed of one simulation: against what the memory of the machine would allow, and against plain Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from envs.problem import Problem
from envs.simulator.arrays import empty_timeline
from envs.simulator.kernels import run_many
from envs.simulator.simulate import simulate_many, simulate_problem
from tests.benchmarks.cases import layered_graph, nodes_and_edges, random_placements, seconds_of, v100s
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure
from tests.specification.simulator import simulate_plainly

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
def test_against_the_reference(stopwatch: Stopwatch, record: Record, schedule: str) -> None:
    problem = problem_of(1_000, 4, schedule)
    device_of = random_placements(problem, 1)[0]
    seconds = stopwatch(lambda: simulate_problem(problem, device_of))
    plain_s = seconds_of(
        lambda: simulate_plainly(problem.graph, problem.cluster, device_of.tolist()), rounds=1
    )
    record(
        Figure(
            "One call of simulate_problem",
            f"{schedule}, memory, 4 devices, 1,000 ops",
            seconds * 1e6,
            "us",
            plain_s * 1e6,
            "the quadratic reference of the tests",
        )
    )


@pytest.mark.parametrize("schedule", ["program", "fifo"])
def test_many_placements(stopwatch: Stopwatch, record: Record, schedule: str) -> None:
    problem = problem_of(1_000, 4, schedule)
    placements = random_placements(problem, 2_048)
    timeline = empty_timeline(1_000, problem.graph.n_tensors, 4)
    total_s, peak = np.zeros(len(placements)), np.zeros((len(placements), 4))

    def on_one_core() -> None:
        run_many(problem.arrays, placements, timeline, True, total_s, peak)

    record(
        Figure(
            "simulate_many, all cores",
            f"{schedule}, memory, 4 devices, 1,000 ops",
            len(placements) / stopwatch(lambda: simulate_many(problem, placements)),
            "placements/s",
            len(placements) / seconds_of(on_one_core),
            "the same loop on one core",
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
