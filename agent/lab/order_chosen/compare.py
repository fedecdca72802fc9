"""Compares walks that choose, and orders found from them, with `topo`: `... compare HEADS OUT SECONDS`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from agent.lab.order_chosen.train import CLUSTERS, TUNED, training_problems
from agent.lab.order_chosen.walk import OrderHead, Walker, new_order_head
from agent.lab.trials import ALL, sealed_graphs
from agent.placing.trial_runner import open_policy
from agent.policy.compiled.policy import CompiledPolicy
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.io.graph_files import read_graphs
from graphs.orders import ORDERS
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.running_time import running_cpu_s

TEN = [name for name in ORDERS if ":" not in name]
SAMPLES, PENALTY, SEEDS = 48, 1.0, 3
EQUAL_TIME, ONE_DECODE = "chosen, over samples in topo", "chosen, over one decode in topo"
COLUMNS = ["part", "graph", "family", "n_ops", "cluster", "arm", "seed", "decodes"]
COLUMNS += ["cpu_s", "base_cpu_s", "step_s", "base_s"]


def features_of(problem: Problem) -> FloatArray:
    """Describes a problem to the regression, (n_features,)."""
    graph, cluster = problem.graph, problem.cluster
    depth = np.ones(graph.n_ops)
    producers = graph.predecessors
    for op in range(graph.n_ops):
        before = producers.items[producers.ptr[op] : producers.ptr[op + 1]]
        depth[op] = 1 + depth[before].max(initial=0)
    op_s = problem.op_seconds.mean(axis=1)
    longest = np.zeros(graph.n_ops)
    for op in range(graph.n_ops):
        before = producers.items[producers.ptr[op] : producers.ptr[op + 1]]
        longest[op] = op_s[op] + longest[before].max(initial=0.0)
    transfers_s = graph.tensor_bytes.sum() / cluster.bytes_per_s[0, 1]
    n = len(graph.units)
    values = (n, depth.max(), n / depth.max(), op_s.sum() / longest.max(), transfers_s / op_s.sum())
    values += (len(graph.edges) / graph.n_ops, op_s.max() / op_s.sum(), cluster.latency_s[0, 1] / op_s.mean())
    return np.log(values)


def decoded(walker: Walker, own: OrderHead, order: str | IntArray) -> float:
    """Decodes greedily in an order as the environment does; returns the step in seconds."""
    rng, is_topo = np.random.default_rng(0), isinstance(order, str) and order == "topo"
    visits = ORDERS[order](walker.problem.graph, rng) if isinstance(order, str) else order
    return float(walker.run(own, None, most=1, visits=visits, incremental=is_topo)[0])


class Regression:
    """A ridge regression of the log step of each of ten orders over `topo`."""

    def __init__(self, policy: CompiledPolicy) -> None:
        inputs, outputs = [], []
        for problem in training_problems():
            walker = Walker(policy, problem, 1)
            own = new_order_head(walker.n_inputs, 0, 0.0)
            steps = np.log([decoded(walker, own, name) for name in TEN])
            inputs.append(features_of(problem))
            outputs.append(steps - steps[TEN.index("topo")])
        x, y = np.array(inputs), np.array(outputs)
        self.mean, self.deviation, self.level = x.mean(0), x.std(0), y.mean(0)
        x = (x - self.mean) / self.deviation
        self.weights = np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ (y - self.level))

    def best(self, problem: Problem) -> str:
        """Predicts the best order."""
        x = (features_of(problem) - self.mean) / self.deviation
        return TEN[int(np.argmin(x @ self.weights + self.level))]


def rows_of(
    policy: CompiledPolicy, problem: Problem, heads: dict[tuple[str, int], dict], regression: Regression
) -> Iterator[tuple[str, int, int, float, float]]:
    """Yields arm, seed, decodes, processor seconds and step; first those of samples in `topo`, cumulated."""
    began_s = running_cpu_s()
    walker = Walker(policy, problem, 1)
    encoded_s = running_cpu_s() - began_s  # of the encoder, which each arm pays once
    own = new_order_head(walker.n_inputs, 0, 0.0)
    rng = np.random.default_rng(0)

    def timed(function, *arguments, **options):
        began_s = running_cpu_s()
        found = function(*arguments, **options)
        return running_cpu_s() - began_s, found

    spent_s, best = encoded_s, np.inf
    for n in range(1, SAMPLES + 1):
        cpu_s, (step,) = timed(walker.run, own, rng if n > 1 else None, most=1)
        spent_s, best = spent_s + cpu_s, min(best, step)
        yield "samples", 0, n, spent_s, best
    steps, times = {}, {}
    for name in TEN:
        times[name], steps[name] = timed(decoded, walker, own, name)
    yield "b-level", 0, 1, encoded_s + times["b-level"], steps["b-level"]
    yield "best of ten orders", 0, len(TEN), encoded_s + sum(times.values()), min(steps.values())
    cpu_s, name = timed(regression.best, problem)
    yield "predicted order", 0, 1, encoded_s + cpu_s + times[name], steps[name]
    for seed in range(SEEDS):
        random = new_order_head(walker.n_inputs, 100 + seed, 0.0)
        cpu_s, (step,) = timed(walker.run, random, None, incremental=False)
        yield "head of random weights", seed, 1, encoded_s + cpu_s, step
    first = new_order_head(walker.n_inputs, 0, -1e6)
    cpu_s, (step,) = timed(walker.run, first, None, incremental=False)
    yield "always the first ready", 0, 1, encoded_s + cpu_s, step
    for (arm, seed), found in heads.items():
        learned = OrderHead(*(found[name] for name in OrderHead._fields))
        shipped = walker.head
        if arm == "both":
            weights = {**policy.weights, **{name: found[name] for name in TUNED}}
            tuned = CompiledPolicy(policy.shape, weights, policy.mdp_config)
            walker.head = tuned.head_over(walker.contexts)
        cpu_s, (step,) = timed(walker.run, learned, None, incremental=False)
        visits = walker.visits()
        walker.head = shipped
        what = "order" if arm == "order" else "order and devices"
        yield f"learned {what}", seed, 1, encoded_s + cpu_s, step
        again_s, step = timed(decoded, walker, own, visits)
        yield f"learned {what}, distilled", seed, 2, encoded_s + cpu_s + again_s, step
        yield f"learned {what}, distilled beforehand", seed, 1, encoded_s + again_s, step


def main(folder: Path, out: Path, seconds: float, kept: Path | None) -> None:
    """Writes the rows of sealed graphs, the smallest first, until some processor seconds are spent."""
    stored = open_policy("pretrained")
    policy = stored.actor.compiled()
    heads = {}
    for path in sorted(folder.glob("*.npz")):
        arm, _, seed = path.stem.partition("-")
        heads[arm, int(seed)] = dict(np.load(path))
    sealed = sealed_graphs(ALL, first_seed=4000, how_seen=stored.card.how_seen) if kept is None else []
    graphs = sealed if kept is None else read_graphs(kept)
    began_s, regression = running_cpu_s(), Regression(policy)
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for graph in sorted(graphs, key=lambda graph: graph.n_ops):
            if running_cpu_s() - began_s > seconds:
                break
            for cluster in CLUSTERS:
                problem = Problem(graph, get_cluster(cluster))
                samples, chosen = [], regression.best(problem)
                for arm, seed, n, cpu_s, step in rows_of(policy, problem, heads, regression):
                    if arm == "samples":
                        samples.append((cpu_s, step))
                        continue
                    where = (graph.name, graph.family, graph.n_ops, cluster, arm, seed, n, f"{cpu_s:.4g}")
                    fit = max(sum(spent <= cpu_s for spent, _ in samples), 1)
                    for part, at in ((EQUAL_TIME, fit), (ONE_DECODE, 1)):
                        base_cpu_s, base = samples[at - 1]
                        writer.writerow((part, *where, f"{base_cpu_s:.4g}", f"{step:.8g}", f"{base:.8g}"))
                print(
                    graph.name, cluster, chosen, samples[0][1], round(running_cpu_s() - began_s), flush=True
                )
            file.flush()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]) if sys.argv[4:] else None
    )
