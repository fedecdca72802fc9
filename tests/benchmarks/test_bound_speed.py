"""The lower bound of a graph of 10,000 ops on devices that memory binds: processor seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agent.bounds.lower_bound import lower_bound_s
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from tests.benchmarks.cases import layered_graph
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure

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
