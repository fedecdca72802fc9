"""Run as a program: compiles every kernel into the user's cache, before several workers would each do so.

It takes about two minutes on two cores and prints its progress after a kernel has changed; otherwise it
takes some seconds.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module

import numpy as np

from agent.bounds.lower_bound import lower_bound_s
from agent.placers.base import PLACERS, Budget, names_of
from agent.policy.serialization import read_policy
from envs.cluster.cluster import Cluster
from envs.objective import STEP, PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem
from tests.agent.placement_cases import make_cluster, training_graph
from tests.conftest import N_CORES


def clusters() -> list[Cluster]:
    """One for each set of rules that kernels are compiled for: see `ProblemArrays.detailed` and `slows`."""
    detailed = make_cluster(2, issue_s=1e-6)
    slowed = [replace(device, overlap_slowdown=1.5) for device in detailed.devices]
    return [replace(detailed, devices=tuple(slowed)), detailed, make_cluster(2)]


def compile_for(cluster: Cluster) -> None:
    """Decides, places and bounds."""
    problem, policy = Problem(training_graph(3, 2), cluster), read_policy("pretrained").policy()
    batch = EpisodeBatch([problem], 1)
    batch.begin(0, 0, 0, np.random.default_rng(0))
    batch.step(np.zeros(1, dtype=np.int64))
    placers = [PLACERS[name] for name in names_of(STEP, learned=False)]
    for placer in (*placers, PLACERS["policy-sample"].with_policy(policy, "topo")):
        placer.place(problem, Budget(evaluations=200), np.random.default_rng(0))
    lower_bound_s(problem)
    if problem.arrays.slows is None:  # few tests have pipelines on devices that copies slow
        in_pairs = Problem(problem.graph, replace(cluster, sharing="pair"))
        for name in ("equal-time", "refine"):
            objective = PipelineObjective(in_pairs, Pipeline("1f1b", 2))
            PLACERS[name].place(objective, Budget(evaluations=30), np.random.default_rng(0))


def main() -> None:
    """Compiles for every set of rules, on all cores."""
    with ProcessPoolExecutor(min(N_CORES, 3), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_for, clusters()))
    import_module("tests.warm_commands")  # trains, too


if __name__ == "__main__":
    main()
