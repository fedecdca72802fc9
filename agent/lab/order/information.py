"""What features say of the device of an optimal placement, by order: `... information OUT`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from agent.lab.pivot import Row, read_table, write_rows
from agent.lab.questions import RESULTS
from agent.placers.base import PLACERS, Budget
from envs.cluster.presets import get_cluster
from envs.placement.episodes import EpisodeBatch
from envs.placement.observation.features import columns_of
from envs.problem import Problem
from envs.simulator.simulate import step_times_s
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph
from graphs.orders import ORDERS
from graphs.system.array_types import FloatArray, IntArray

FEATURES = {"all": "rollout", "equal": "consumers"}
WALKS, FOLDS, FIFTHS, PENALTY, SEARCHES = 4, 5, 5, 1e-2, 8
MOST_WORK, SAME, CHUNK = 130_000_000, 1e-9, 1 << 14
TEN = [name for name in ORDERS if ":" not in name]


class Decision(NamedTuple):
    """A decision on the way to an optimum."""

    case: int  # index of the problem
    share: float  # of the walk that is decided
    features: FloatArray  # (n_candidates, n_features)
    optimal: FloatArray  # (n_candidates,) 1 where an optimum with the same prefix has the device


def closed(graphs: dict[str, OpGraph], coarsen: object) -> Iterator[tuple[Problem, float, int]]:
    """Yields the closed problems on which one device is not optimal, the optimum in seconds, placements."""
    rows = {(row["graph"], row["cluster"]): row for row in read_table(RESULTS / "optimality.csv")}
    for row in rows.values():
        if row["single"] <= 1.0 + SAME:
            continue
        name, _, size = str(row["graph"]).rpartition("-in-")
        if name:
            graph = coarsen(graphs[name], int(size)).coarse
        else:
            name, _, level = str(row["graph"]).rpartition("-by-")
            graph = with_granularity(graphs[name], level)
        graph = replace(graph, name=row["graph"])
        yield Problem(graph, get_cluster(row["cluster"])), row["optimum_s"], int(row["placements"])


def relabelled(devices: IntArray) -> IntArray:
    """Numbers the devices of placements, (n, n_units), by their first use from left to right; each once."""
    found = np.full_like(devices, -1)
    names = np.full((len(devices), devices.max() + 1), -1)
    used = np.zeros(len(devices), dtype=np.int64)
    rows = np.arange(len(devices))
    for at in range(devices.shape[1]):
        device = devices[:, at]
        is_new = names[rows, device] < 0
        names[rows[is_new], device[is_new]] = used[is_new]
        used += is_new
        found[:, at] = names[rows, device]
    return np.unique(found, axis=0)


def optima(problem: Problem, optimum_s: float, n_placements: int) -> IntArray:
    """Finds optimal placements by unit: all where they can be tried, else what search and its moves reach."""
    graph, n_units, n = problem.graph, len(problem.graph.units), problem.n_devices

    def steps(devices: IntArray) -> FloatArray:
        return step_times_s(problem, np.ascontiguousarray(devices[:, graph.unit_of]))

    if n**n_units <= 1 << 20 and n_placements * graph.n_ops <= MOST_WORK:
        best, least = [], np.inf
        codes = np.arange(n ** (n_units - 1))  # the first unit is on the first device
        for chunk in np.array_split(codes, len(codes) // CHUNK + 1):
            digits = [(chunk // n**at) % n for at in range(n_units - 1)]
            devices = np.stack([np.zeros_like(chunk), *digits], axis=1)
            found = steps(devices)
            if found.min() < least * (1 - SAME):
                least, best = found.min(), []
            best.append(devices[found <= least * (1 + SAME)])
        return relabelled(np.concatenate(best))
    known: dict[bytes, IntArray] = {}
    for seed in range(SEARCHES):
        result = PLACERS["refine"].place(problem, Budget(20_000), np.random.default_rng(seed))
        devices = result.placement.device_of[graph.units.items[graph.units.ptr[:-1]]]
        if result.step_time.total_s <= optimum_s * (1 + 1e-6):
            (row,) = relabelled(devices[None])
            known[row.tobytes()] = row
            if seed >= SEARCHES // 4:
                break
    if not known:
        return np.zeros((0, n_units), dtype=np.int64)
    waiting = list(known.values())
    while waiting and len(known) < 4_096:
        row = waiting.pop()
        moves = np.repeat(row[None], n_units * n, axis=0)
        moves[np.arange(n_units * n), np.repeat(np.arange(n_units), n)] = np.tile(np.arange(n), n_units)
        for other in relabelled(moves[steps(moves) <= optimum_s * (1 + SAME)]) if n_units else ():
            if other.tobytes() not in known:
                known[other.tobytes()] = other
                waiting.append(other)
    return np.stack(list(known.values()))


def decisions(case: int, problem: Problem, best: IntArray, order: str) -> Iterator[Decision]:
    """Walks to some optima in an order, and yields the decisions on the way."""
    rng, graph = np.random.default_rng(case), problem.graph
    batch = EpisodeBatch([problem], 1, orders=(order,), mask="none")
    visits = ORDERS[order](graph, np.random.default_rng(case))
    _, first = np.unique(graph.unit_of[visits], return_index=True)
    units = graph.unit_of[visits][np.sort(first)]
    named = relabelled(best[:, units])
    for row in named[rng.permutation(len(named))[:WALKS]]:
        batch.begin(0, 0, 0, np.random.default_rng(case))
        alive = np.ones(len(named), dtype=bool)
        for at, device in enumerate(row.tolist()):
            assert graph.unit_of[batch.observation.op[0, 0]] == units[at]
            n = min(int(row[:at].max(initial=-1)) + 2, problem.n_devices)
            good = np.bincount(named[alive, at], minlength=n)[:n] > 0
            seen = batch.observation.devices[0, :n].astype(float)
            yield Decision(case, at / len(row), seen, good.astype(float))
            alive &= named[:, at] == device
            batch.step(np.array([device]))


def fitted(x: FloatArray, present: FloatArray, optimal: FloatArray) -> FloatArray:
    """Fits weights of a conditional logistic regression, (n_features,), to x, (n, n_candidates, n_features)."""

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        scores = np.where(present > 0, x @ weights, -np.inf)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        right = p * optimal
        mass = np.maximum(right.sum(axis=1, keepdims=True), 1e-12)
        gradient = np.einsum("ndk,nd->k", x, p - right / mass) / len(x)
        return float(-np.log(mass).mean() + PENALTY * weights @ weights), gradient + 2 * PENALTY * weights

    return minimize(loss, np.zeros(x.shape[2]), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x


def measured(found: Sequence[Decision], columns: Sequence[int], fold_of: IntArray) -> dict[int, Row]:
    """Measures a probe that never saw the family: by problem, hits in each fifth of the walk, and bits."""
    most = max(len(each.optimal) for each in found)
    x = np.zeros((len(found), most, len(columns)))
    present, optimal = np.zeros((2, len(found), most))
    for at, each in enumerate(found):
        n = len(each.optimal)
        x[at, :n], present[at, :n], optimal[at, :n] = each.features[:, columns], 1.0, each.optimal
    case, share = np.array([each.case for each in found]), np.array([each.share for each in found])
    hits, mass = np.zeros((2, len(found)))
    counts = present.sum(axis=1) > optimal.sum(axis=1)  # else every candidate is right
    for fold in range(FOLDS):
        test = fold_of[case] == fold
        train = ~test & counts
        rows = x[train][present[train] > 0]
        middle, scale = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-6)
        z = np.clip((x - middle) / scale, -5, 5)
        scores = np.where(present > 0, z @ fitted(z[train], present[train], optimal[train]), -np.inf)[test]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        hits[test] = optimal[test][np.arange(test.sum()), scores.argmax(axis=1)]
        mass[test] = (p * optimal[test]).sum(axis=1) / p.sum(axis=1)
    chance = optimal.sum(axis=1) / present.sum(axis=1)
    fifth = np.minimum((share * FIFTHS).astype(int), FIFTHS - 1)
    rows_of: dict[int, Row] = {}
    for own in np.unique(case):
        mine = case == own
        curve = [hits[mine & (fifth == at)].mean() for at in range(FIFTHS)]
        n_walks = (mine & (share == 0)).sum()
        rows_of[int(own)] = {
            **{f"fifth_{at + 1}": round(float(value), 4) for at, value in enumerate(curve)},
            "area": round(float(np.mean(curve)), 4),
            "chance": round(float(np.mean([chance[mine & (fifth == at)].mean() for at in range(FIFTHS)])), 4),
            "bits": round(float(-np.log2(np.maximum(mass[mine], 1e-12)).sum() / n_walks), 4),
        }
    return rows_of


def main(graphs: dict[str, OpGraph], coarsen: object, out: Path) -> None:
    """Writes a row for each problem, order and set of features."""
    cases: list[tuple[Problem, IntArray]] = []
    for problem, optimum_s, n_placements in closed(graphs, coarsen):
        cluster = problem.cluster
        assert len({device.kind for device in cluster.devices}) == 1
        best = optima(problem, optimum_s, n_placements)
        print(len(cases), problem.graph.name, cluster.name, len(best), flush=True)
        if len(best):
            cases.append((problem, best))
    families = sorted({problem.graph.family for problem, _ in cases})
    fold_of = np.array([families.index(problem.graph.family) % FOLDS for problem, _ in cases])
    rows: list[Row] = []
    for order in TEN:
        found = list(
            itertools.chain.from_iterable(
                decisions(case, problem, best, order) for case, (problem, best) in enumerate(cases)
            )
        )
        for features, name in FEATURES.items():
            for case, row in measured(found, columns_of(name), fold_of).items():
                problem, best = cases[case]
                where = {"graph": problem.graph.name, "family": problem.graph.family}
                where |= {"cluster": problem.cluster.name, "optima": len(best), "order": order}
                rows.append({**where, "features": features, **row})
            print(order, features, np.mean([row["area"] for row in rows[-len(cases) :]]), flush=True)
    write_rows(out, rows)


if __name__ == "__main__":
    from graphs.coarsening.coarsen import coarsen as coarsened  # in git at e46ed42

    from agent.lab.trials import sealed_graphs

    main({graph.name: graph for graph in sealed_graphs()}, coarsened, Path(sys.argv[1]))
