"""Greedy decodes in several orders against samples in one: `... ensemble CLUSTER OUT`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from agent.lab.trials import ALL, LARGE_OPS, sealed_graphs
from agent.placers.base import Budget, SearchState
from agent.placers.search.annealing import anneal_from_leaders
from agent.placers.search.refine import score_starts
from agent.placing.policies import EvaluatedPolicy, open_policy
from agent.policy.decoding import decode
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_many
from graphs.op_graph import OpGraph
from graphs.orders import ORDERS
from graphs.system.array_types import IntArray
from graphs.system.running_time import running_cpu_s

N = 10
TEN = [name for name in ORDERS if ":" not in name]
DRAWN = [f"drawn:{seed}" for seed in range(N)]
MOST_SAMPLES = 256
SMALL_S, LARGE_S, DECODING_SHARE = 0.3, 3.0, 0.5
"""Processor seconds of a search from a start, and the share of them in which decodes may begin."""
COLUMNS = ["graph", "family", "n_ops", "cluster", "arm", "decodes", "cpu_s", "step_s"]


def topological_order(graph: OpGraph, seed: int) -> IntArray:
    """Draws a topological order of the compute ops: of the ready ones, the one of the least drawn number."""
    import heapq

    drawn = np.random.default_rng([seed, graph.n_ops]).random(graph.n_ops)
    edges = graph.edges[graph.is_compute[graph.edges].all(axis=1)]
    waiting = np.bincount(edges[:, 1], minlength=graph.n_ops)
    readers: list[list[int]] = [[] for _ in range(graph.n_ops)]
    for producer, reader in edges.tolist():
        readers[producer].append(reader)
    ready = [(drawn[op], int(op)) for op in np.flatnonzero(graph.is_compute & (waiting == 0))]
    heapq.heapify(ready)
    visited = []
    while ready:
        _, op = heapq.heappop(ready)
        visited.append(op)
        for reader in readers[op]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, (drawn[reader], reader))
    return np.array(visited, dtype=np.int64)


for at, each in enumerate(DRAWN):
    ORDERS.register(each, lambda graph, rng, seed=at: topological_order(graph, seed))


class Decodes:
    """Decodes of one problem, with the processor seconds of each."""

    def __init__(self, policy: EvaluatedPolicy, problem: Problem) -> None:
        self._policy, self.problem = policy.policy, problem

    def greedy(self, order: str) -> tuple[IntArray, float]:
        """Returns the greedy placement in an order, (1, n_ops), and processor seconds."""
        return self._timed(order=order)

    def samples(self, n: int, seed: int = 0) -> tuple[IntArray, float]:
        """Returns the greedy placement in `topo` and drawn ones, (n, n_ops), and processor seconds."""
        return self._timed(n_samples=n - 1, rng=np.random.default_rng(seed))

    def _timed(self, **options: object) -> tuple[IntArray, float]:
        began_s = running_cpu_s()
        found = decode(self._policy, self.problem, clock=running_cpu_s, **options)
        return found, running_cpu_s() - began_s

    def step_s(self, placements: IntArray) -> float:
        """Returns the shortest step of those within the memory, seconds; infinite without one."""
        total_s, peak = simulate_many(self.problem, placements)[:2]
        fits = (peak <= self.problem.cluster.memory_bytes).all(axis=1)
        return float(np.where(fits, total_s, np.inf).min())

    def searched(self, batches: Iterator[str | int], seconds: float) -> tuple[int, float, float]:
        """Anneals from the heuristics and from decodes that begin within a share of the budget.

        Returns:
            Decodes, processor seconds, step in seconds.
        """
        search = SearchState(self.problem, Budget(None, seconds, running_cpu_s))
        rng, n = np.random.default_rng(0), 0
        score_starts(search, rng)
        for batch in batches:
            if search.elapsed_s > DECODING_SHARE * seconds:
                break
            found, _ = self.greedy(batch) if isinstance(batch, str) else self.samples(batch, seed=n)
            search.score(found, overdue=True)
            n += len(found)
        anneal_from_leaders(search, rng)
        result = search.result()
        return n, result.cpu_s, result.step_time.total_s if result.feasible else np.inf


def rows_of(decodes: Decodes) -> Iterator[tuple[str, int, float, float]]:
    """Yields arm, decodes, processor seconds and step of each arm on a problem."""
    found = {name: decodes.greedy(name) for name in (*TEN, *DRAWN)}
    for name in TEN:
        yield name, 1, found[name][1], decodes.step_s(found[name][0])
    time_s = {}
    for arm, names in (("ten orders", TEN), ("ten drawn topological orders", DRAWN)):
        time_s[arm] = sum(found[name][1] for name in names)
        yield arm, N, time_s[arm], decodes.step_s(np.concatenate([found[name][0] for name in names]))
    placements, cpu_s = decodes.samples(N)
    yield "ten samples", N, cpu_s, decodes.step_s(placements)
    n = int(np.clip(N * time_s["ten orders"] / cpu_s, N, MOST_SAMPLES))
    placements, cpu_s = decodes.samples(n)
    yield "samples in the time of ten orders", n, cpu_s, decodes.step_s(placements)
    seconds = LARGE_S if decodes.problem.graph.n_ops >= LARGE_OPS else SMALL_S
    starts = {"none": [], "topo": ["topo"], "ten orders": TEN, "ten samples": [1, N - 1]}
    starts["ten drawn topological orders"] = DRAWN
    for start, batches in starts.items():
        yield f"refine from {start}", *decodes.searched(iter(batches), seconds)


def main(cluster: str, out: Path, graphs: list[OpGraph] | None = None) -> None:
    """Writes the rows of all sealed graphs on a cluster; goes on where it was stopped."""
    policy = open_policy("pretrained")
    if graphs is None:
        graphs = sealed_graphs(ALL, first_seed=4000, how_seen=policy.stored.card.how_seen)
    done = {line["graph"] for line in csv.DictReader(out.open())} if out.exists() else set()
    with out.open("a", newline="") as file:
        writer = csv.writer(file)
        if not done:
            writer.writerow(COLUMNS)
        warm = Decodes(policy, Problem(min(graphs, key=lambda graph: graph.n_ops), get_cluster(cluster)))
        list(rows_of(warm))
        for graph in sorted(graphs, key=lambda graph: graph.n_ops):
            if graph.name in done:
                continue
            decodes = Decodes(policy, Problem(graph, get_cluster(cluster)))
            where = graph.name, graph.family, graph.n_ops, cluster
            writer.writerows([(*where, *row) for row in rows_of(decodes)])
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
