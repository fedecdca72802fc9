"""Steps of `rollout-refine` or `auto` with windows over those without, on the large sealed graphs.

`python -m agent.lab.windows rollout-refine`
"""

from __future__ import annotations

import sys

import numpy as np

from agent.instances.best_known import DATA
from agent.placers.base import Budget, SearchState
from agent.placers.search import refine
from agent.placers.search.windows import decide_windows
from agent.policy import auto
from agent.policy.serialization import load_policy
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.io.graph_files import read_graphs
from graphs.system.running_time import running_cpu_s

CLUSTERS, SECONDS, SEEDS = ("4xv100", "4xa100-pcie"), (1.0, 3.0), (0, 1)


def main(name: str) -> None:
    """Prints a row for each graph and cluster, and geometric means for each cluster and budget."""
    policy, logarithms = load_policy("pretrained"), dict[tuple[str, float], list[float]]()

    def log_step(problem: Problem, seconds: float, seed: int) -> float:
        search = SearchState(problem, Budget(None, seconds=seconds, clock=running_cpu_s))
        rng = np.random.default_rng(seed)
        if name == "auto":
            auto.auto(search, rng, policy=policy, order="topo")
        else:
            refine.rollout_refine(search, rng)
        return float(np.log(search.best_score[1]))

    graphs = [graph for graph in read_graphs(DATA / "sealed.jsonl.gz") if "large-" in graph.name]
    graphs = [graph for graph in graphs if graph.name.endswith(("-4000", "-4001"))]
    log_step(Problem(graphs[0], get_cluster(CLUSTERS[0])), SECONDS[-1], 0)  # compiles
    for cluster in CLUSTERS:
        for graph in graphs:
            problem, row = Problem(graph, get_cluster(cluster)), []
            for seconds in SECONDS:
                means = []
                for windows in (lambda *_: None, decide_windows):
                    refine.decide_windows = auto.decide_windows = windows  # type: ignore[attr-defined]
                    means.append(np.mean([log_step(problem, seconds, seed) for seed in SEEDS]))
                row.append(means[1] - means[0])
                logarithms.setdefault((cluster, seconds), []).append(row[-1])
            print(cluster, graph.name, *(f"{np.exp(ratio):.4f}" for ratio in row), flush=True)
    for key, values in logarithms.items():
        error = np.std(values) / np.sqrt(len(values))
        print(*key, f"{np.exp(np.mean(values)):.4f}", f"+- {error:.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
