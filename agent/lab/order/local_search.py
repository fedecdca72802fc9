"""Descents that take units in an order instead of drawing them: `... local_search CLUSTER OUT`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from agent.lab.trials import ALL, sealed_graphs
from agent.placers.base import Budget, SearchState
from agent.placers.search.annealing import STARTS, _new_chain, layout_of
from agent.placers.search.annealing_kernels import accept
from agent.placers.search.annealing_moves import (
    ENERGY,
    ONE,
    SEGMENT,
    WITH_NEIGHBOURS,
    device_of_unit,
    draw,
    draw_target,
    first_moved,
    move,
    move_segment,
    move_with_neighbours,
    put,
)
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.resume import commit, run_moved
from graphs.op_graph import OpGraph
from graphs.orders import ORDERS
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel
from graphs.system.running_time import running_cpu_s

EVALUATIONS, SEEDS = 2_000, 3
TEN = [name for name in ORDERS if ":" not in name]
COLUMNS = ["graph", "family", "n_ops", "cluster", "order", "seed", "cpu_s", "start_s", "step_s"]


@kernel
def propose_of(units, segments, chain, n_devices, unit, rng):
    """Proposes one of the moves of local search, but those of modules, of a given unit."""
    kind = rng.random()
    if kind < SEGMENT:
        target = draw_target(units, chain, unit, n_devices, rng)
        if kind < ONE:
            return move(units, chain, np.int64(0), unit, target)
        if kind < WITH_NEIGHBOURS:
            return move_with_neighbours(units, chain, unit, target)
        return move_segment(units, segments, chain, unit, target, rng)
    source = device_of_unit(units, chain, unit)
    other = draw(len(units.footprint_bytes), rng)
    n_moved = move(units, chain, np.int64(0), unit, device_of_unit(units, chain, other))
    return move(units, chain, n_moved, other, source) if n_moved else 0


@kernel(entry=True)
def descend(p, units, segments, chain, sequence, n, scale_s, track_memory, rng):
    """Makes proposals of the units of a sequence in turn, of drawn ones where it is empty; keeps no worse."""
    run_moved(p, chain.device_of, chain.pair, np.int64(0), np.inf, chain.work_s)
    commit(chain.pair)
    for at in range(n):
        unit = sequence[at % len(sequence)] if len(sequence) else draw(len(units.footprint_bytes), rng)
        n_moved = propose_of(units, segments, chain, len(p.memory), unit, rng)
        if n_moved == 0:
            continue
        limit = chain.energy[ENERGY]
        if accept(p, chain, first_moved(units, chain, n_moved), limit, scale_s, track_memory):
            continue
        for i in range(n_moved - 1, -1, -1):
            put(units, chain, chain.moved[i], chain.back[i])


def sequence_of(graph: OpGraph, order: str, rng: np.random.Generator) -> IntArray:
    """Lists the units by their first visit, int (n_units,)."""
    units = graph.unit_of[ORDERS[order](graph, rng)]
    return units[np.sort(np.unique(units, return_index=True)[1])]


def main(cluster: str, out: Path, graphs: list[OpGraph] | None = None) -> None:
    """Writes the rows of all sealed graphs on a cluster; goes on where it was stopped."""
    graphs = sealed_graphs(ALL, first_seed=4000) if graphs is None else graphs
    done = {line["graph"] for line in csv.DictReader(out.open())} if out.exists() else set()
    with out.open("a", newline="") as file:
        writer = csv.writer(file)
        if not done:
            writer.writerow(COLUMNS)
        for graph in sorted(graphs, key=lambda graph: graph.n_ops):
            if graph.name in done:
                continue
            problem = Problem(graph, get_cluster(cluster))
            search, layout = SearchState(problem, Budget(1_000)), layout_of(problem)
            for start in STARTS:
                start(search, np.random.default_rng(0))
            leader = search.leaders[0]
            for seed in range(SEEDS):
                for order in ("drawn", *TEN):
                    rng, began_s = np.random.default_rng(seed), running_cpu_s()
                    sequence = np.zeros(0, dtype=np.int64)
                    if order != "drawn":
                        sequence = sequence_of(graph, order, rng)
                    chain = _new_chain(problem, leader)
                    descend(
                        *(problem.arrays, *layout, chain, sequence, EVALUATIONS),
                        *(problem.scale_s, not problem.always_fits, rng),
                    )
                    over_bytes, step_s = chain.best_score
                    where = (graph.name, graph.family, graph.n_ops, cluster, order, seed)
                    step_s = np.inf if over_bytes else step_s
                    row = (round(running_cpu_s() - began_s, 4), leader.score[1], step_s)
                    writer.writerow((*where, *row))
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
