"""A policy as a placer of pipelines, beside search with as many processor seconds.

Every graph is placed on clusters of unequal devices that are drawn for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agent.evaluation.policies import make_pipeline_placer, open_policy
from agent.experiments.launcher import followed
from agent.pipelines.search import PipelineSearch
from agent.placers.base import Budget
from envs.domain_randomization import draw_cluster_for
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.op_graph import OpGraph

PLACERS = ("refine", "annealing", "equal-time", "policy", "policy-sample", "policy-refine")
PIPELINE = Pipeline("1f1b", 8)
UNEQUAL = 1.2
"""Step time on the slowest device over that on the fastest, at least."""


@dataclass(frozen=True)
class SearchRow:
    """The step that a placer finds within so many seconds, over that of the fastest single device."""

    graph: str
    family: str
    ops: int
    cluster: str
    placer: str
    seconds: float
    seed: int
    step_s: float
    feasible: bool
    evaluations: int
    cpu_s: float


class ProcessorSearch(PipelineSearch):
    """A search whose seconds are those of the processor."""

    @property
    def elapsed_s(self) -> float:
        return time.process_time() - self._cpu_began


def pipeline_rows(
    folder: Path, policy: str, families: Sequence[str], every: int, clusters: int, seconds: Sequence[float]
) -> Iterator[list[SearchRow]]:
    """Runs all placers, once to compile and then for the rows.

    Args:
        folder: not used.
        policy: folder of its run.
        families: of graphs that the policy was not trained on.
        every: 2 takes every other graph.
        clusters: drawn for each graph.
        seconds: budgets.
    """
    opened, found = open_policy(policy, []), list[SearchRow]()
    graphs = [graph for family in families for graph in load_family(family)[::every]]
    for index, graph in enumerate(followed(graphs, "graphs")):
        for draw in range(clusters):
            pipelined = PipelinedProblem(_problem(graph, draw), PIPELINE)
            for budget in (*([] if index or draw else [0.05]), *seconds):
                for name in PLACERS:
                    search = ProcessorSearch(pipelined, Budget(None, budget))
                    make_pipeline_placer(name, opened).strategy(search, np.random.default_rng(draw))
                    done = search.pipeline_result()
                    found.append(
                        SearchRow(
                            graph=graph.name,
                            family=graph.family,
                            ops=graph.n_ops,
                            cluster=f"{draw}",
                            placer=name,
                            seconds=budget,
                            seed=0,
                            step_s=done.step.total_s / pipelined.scale_s,
                            feasible=done.step.fits,
                            evaluations=done.evaluations,
                            cpu_s=done.cpu_s,
                        )
                    )
            if not index and not draw:
                del found[: len(PLACERS)]
    yield found


def _problem(graph: OpGraph, draw: int) -> Problem:
    """Draws clusters until the devices are unequal; pipelines need links of pairs and copies beside ops."""
    rng = np.random.default_rng([draw, *graph.name.encode()])
    while True:
        cluster = replace(draw_cluster_for(graph, rng), sharing="pair", copies="stream")
        problem = Problem(graph, cluster)
        if problem.is_feasible and np.ptp(np.log(problem.single_device_s)) > np.log(UNEQUAL):
            return problem
