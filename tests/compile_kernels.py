"""Run as a program: compiles every kernel into the user's cache, before several workers would wait for it.

It takes about two minutes on two cores after a kernel has changed; otherwise it takes some seconds.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np

from agent.contexts.local import train_a_moment
from agent.placers.base import PIPELINE_PLACERS, Budget, names_of
from agent.placing.trial_runner import compile_jobs, warm_up_graph
from envs.cluster.cluster import Cluster
from envs.objective import STEP
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.problem import Problem
from graphs.system.compiling import compile_ahead
from tests.agent.placement_cases import make_cluster


def clusters() -> list[Cluster]:
    """One for each set of rules that kernels are compiled for: see `ProblemArrays.detailed` and `slows`."""
    detailed = make_cluster(2, issue_s=1e-6)
    slowed = [replace(device, overlap_slowdown=1.5) for device in detailed.devices]
    return [replace(detailed, devices=tuple(slowed)), detailed, make_cluster(2)]


def place_pipelines(cluster: Cluster) -> None:
    """Places pipelines, unless copies slow ops: few tests have pipelines on such devices."""
    problem = Problem(warm_up_graph(), replace(cluster, sharing="pair"))
    for name in ("equal-time", "refine") if problem.arrays.slows is None else ():
        objective = PipelineObjective(problem, Pipeline("1f1b", 2))
        PIPELINE_PLACERS[name].place(objective, Budget(evaluations=30), np.random.default_rng(0))


def main() -> None:
    """Compiles what commands compile ahead, and what tests need beyond that."""
    names = names_of(STEP)
    compile_ahead(compile_jobs(names, clusters(), training=train_a_moment, pipelines=place_pipelines))


if __name__ == "__main__":
    import_module("tests.compile_kernels").main()  # workers know its functions by this name
