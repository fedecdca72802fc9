"""Rows of single decodes of policies in each order, beside annealing and the rule `rollout`."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.lab.pivot import Rows
from agent.lab.trials import KEPT, LARGE_OPS, _opened
from agent.placers.base import Budget
from agent.placing.trial_runner import TrialRunner, make_placer
from agent.policy.decoding import INFEASIBLE_RATIO, greedy_ratios
from agent.policy.policy import torch_threads
from envs.cluster.presets import get_cluster
from envs.objective import Objective
from envs.problem import Problem
from graphs.io.graph_files import read_graphs
from graphs.orders import ORDERS
from graphs.system.progress import followed

REFERENCES = {"annealing": Budget(10_000), "rollout": Budget(1)}
NO_ORDER = "none"


@dataclass(frozen=True)
class OrderDecodes:
    """One greedy decode of each policy, and each reference once, on the graphs that are kept sealed.

    Attributes:
        policies: NAME=FOLDER of each; the folder may be `random-weights`.
        clusters: names of presets.
        families: families of graphs; none for all.
        orders: orders to decode in; large graphs are decoded in the first alone.
    """

    policies: tuple[str, ...]
    clusters: tuple[str, ...] = ("4xv100", "4xa100-pcie")
    families: tuple[str, ...] = ()
    orders: tuple[str, ...] = tuple(ORDERS)

    def rows(self, folder: Path) -> Rows:
        """Makes the rows, of step times in seconds."""
        named = dict(text.split("=", 1) for text in self.policies)
        policies = {name: _opened(path, folder).policy() for name, path in named.items()}
        graphs = [graph for graph in read_graphs(KEPT) if not self.families or graph.family in self.families]
        runner, rows = TrialRunner(), list[dict[str, object]]()
        pairs = list(itertools.product(graphs, map(get_cluster, self.clusters)))
        for problem in followed([Problem(*pair) for pair in pairs], "graphs on clusters"):
            if not problem.is_feasible:
                continue
            for name, budget in REFERENCES.items():
                result = runner.place(
                    make_placer(name, None, ""), Objective(problem), budget, order="", seed=0
                )
                step_s = result.step_time.total_s if result.feasible else np.inf
                rows.append(row_of(problem, name, NO_ORDER, step_s, result.cpu_s))
            orders = self.orders if problem.graph.n_ops < LARGE_OPS else self.orders[:1]
            for (name, policy), order in itertools.product(policies.items(), orders):
                began = time.process_time()
                with torch_threads(1):
                    (ratio,) = greedy_ratios(policy, [problem], order)
                step_s = np.inf if ratio == INFEASIBLE_RATIO else ratio * problem.scale_s
                rows.append(row_of(problem, name, order, step_s, time.process_time() - began))
        return rows


def row_of(problem: Problem, placer: str, order: str, step_s: float, cpu_s: float) -> dict[str, object]:
    """Makes a row, with the columns of `TrialRow` that tables read."""
    return {
        "graph": problem.graph.name,
        "family": problem.graph.family,
        "n_ops": problem.graph.n_ops,
        "cluster": problem.cluster.name,
        "granularity": "op",
        "seconds": None,
        "order": order,
        "placer": placer,
        "seed": 0,
        "step_s": float(f"{step_s:.7g}"),
        "cpu_s": round(cpu_s, 3),
        "single_s": float(f"{problem.scale_s:.7g}"),
    }
