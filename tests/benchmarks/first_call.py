"""Run as a program: print the seconds that the first calls of the compiled loops take in this process."""

from __future__ import annotations

import time

import numpy as np

from agent.placers import PLACERS
from agent.placers.base import Budget
from envs.episodes import EpisodeBatch
from envs.problem import Problem
from envs.simulator import simulate_problem
from tests.benchmarks.cases import layered_graph, v100s


def main() -> None:
    """Simulate, walk and search once, on problems so small that compiling or loading is all it takes."""
    rng = np.random.default_rng(0)
    problem = Problem(layered_graph(10), v100s(2, "program"))
    began = time.perf_counter()
    simulate_problem(problem, np.zeros(problem.graph.n_ops, dtype=np.int64))
    batch = EpisodeBatch([problem], 1)
    batch.begin(0, 0, 0, rng)
    batch.step(np.zeros(1, dtype=np.int64))
    PLACERS["annealing"].place(problem, Budget(evaluations=1_000), rng)
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()
