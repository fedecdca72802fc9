"""Run as a program: print the seconds that the first calls of some compiled loops take in this process.

Arguments: any of `simulate`, `decide` and `search`.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from agent.placers.base import PLACERS, Budget
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from tests.benchmarks.cases import layered_graph, v100s


def simulate(problem: Problem) -> None:
    """Time a placement."""
    simulate_problem(problem, np.zeros(problem.graph.n_ops, dtype=np.int64))


def decide(problem: Problem) -> None:
    """Take a first decision."""
    batch = EpisodeBatch([problem], 1)
    batch.begin(0, 0, 0, np.random.default_rng(0))
    batch.step(np.zeros(1, dtype=np.int64))


def search(problem: Problem) -> None:
    """Anneal."""
    PLACERS["annealing"].place(problem, Budget(evaluations=1_000), np.random.default_rng(0))


def main() -> None:
    """Do what the arguments say, on a problem so small that compiling or loading is all it takes."""
    problem = Problem(layered_graph(10), v100s(2, "program"))
    began = time.perf_counter()
    for call in (simulate, decide, search):
        if call.__name__ in sys.argv[1:]:
            call(problem)
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()
