"""The order in which the host issues ops, searched with the placement: `... issue_order CLUSTER OUT`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.lab.trials import ALL, LARGE_OPS, sealed_graphs
from agent.placers.base import PLACERS, Budget, SearchState
from agent.placers.search.annealing import COOL_TEMPERATURE, LAST_TEMPERATURE, run_chain
from envs.cluster.presets import get_cluster
from envs.objective import STEP
from envs.problem import Problem
from envs.simulator.arrays import clear, empty_timeline
from envs.simulator.memory import peak_memory
from envs.simulator.program import issue
from envs.simulator.simulate import simulate_many, simulate_problem
from graphs.graph_columns import Csr
from graphs.levels import b_level
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel
from graphs.system.running_time import running_cpu_s

ROUNDS = 3
MOVES_SHARE = 0.2
"""Share of the seconds of a round, or of all, that moves of ops within the order get."""
BATCH = 64
SMALL_S, LARGE_S = 0.5, 2.0
COLUMNS = ["graph", "family", "n_ops", "cluster", "arm", "cpu_s", "step_s"]


def reordered(graph: OpGraph, order: IntArray) -> OpGraph:
    """Makes the graph whose program is a topological order of its ops, int (n_ops,); units stay the same."""
    position = np.argsort(order)
    texts = ("op_names", "op_types", "modules", "phases", "dtypes", "sources", "shapes")
    rows = [np.sort(position[graph.consumers.row(tensor)]) for tensor in range(graph.n_tensors)]
    return replace(
        graph,
        **{name: tuple(np.array(getattr(graph, name), dtype=object)[order]) for name in texts},
        **{name: getattr(graph, name)[order] for name in ("flops", "bytes_moved", "resident_bytes")},
        colocate=graph.unit_of[order],
        gemm=graph.gemm[order],
        image=graph.image[order],
        seconds={kind: values[order] for kind, values in graph.seconds.items()},
        tensor_producer=position[graph.tensor_producer],
        consumers=Csr(graph.consumers.ptr, np.concatenate(rows) if rows else graph.consumers.items),
    )


def in_order(problem: Problem, order: IntArray) -> Problem:
    """Makes the problem whose host issues the ops in another order."""
    return Problem(reordered(problem.graph, order), problem.cluster, problem.op_seconds[order])


@kernel(entry=True, allocates=True)
def list_schedule(seconds, device_of, transfer_s, level, producers, readers, n_devices, order):
    """Orders ops as a list scheduler with a placement: the earliest start first, of equal ones the longest.

    Args:
        seconds: of each op on its device, (n_ops,).
        transfer_s: of what each op makes, (n_ops,).
        level: priority, (n_ops,).
        producers, readers: `Csr` as pairs of arrays.
        order: int64 (n_ops,); written.
    """
    n = len(device_of)
    free, ready_s, finish = np.zeros(n_devices), np.zeros(n), np.zeros(n)
    waiting, ready, n_ready = np.empty(n, np.int64), np.empty(n, np.int64), 0
    for op in range(n):
        waiting[op] = producers[0][op + 1] - producers[0][op]
        if waiting[op] == 0:
            ready[n_ready] = op
            n_ready += 1
    for at in range(n):
        best, best_s = -1, np.inf
        for i in range(n_ready):
            op = ready[i]
            start = ready_s[op] if seconds[op] == 0.0 else max(ready_s[op], free[device_of[op]])
            if start < best_s or (start == best_s and level[op] > level[ready[best]]):
                best, best_s = i, start
        op = ready[best]
        n_ready -= 1
        ready[best] = ready[n_ready]
        order[at] = op
        finish[op] = best_s + seconds[op]
        if seconds[op] > 0.0:
            free[device_of[op]] = finish[op]
        for k in range(readers[0][op], readers[0][op + 1]):
            reader = readers[1][k]
            there = finish[op] + (transfer_s[op] if device_of[reader] != device_of[op] else 0.0)
            ready_s[reader] = max(ready_s[reader], there)
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready[n_ready] = reader
                n_ready += 1


def by_level(problem: Problem, device_of: IntArray) -> IntArray:
    """Orders ops by a list schedule of a placement, priority: b-level under the placement."""
    graph, cluster = problem.graph, problem.cluster
    seconds = problem.op_seconds[np.arange(graph.n_ops), device_of]
    bandwidth = cluster.bytes_per_s[0, 1]
    transfer_s = graph.tensor_bytes / bandwidth + cluster.latency_s[0, 1]
    crosses = np.zeros(graph.n_tensors)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    np.maximum.at(
        crosses, tensor, device_of[graph.tensor_producer[tensor]] != device_of[graph.consumers.items]
    )
    level = b_level(graph, seconds, crosses * transfer_s)
    longest = np.zeros(graph.n_ops)
    np.maximum.at(longest, graph.tensor_producer, transfer_s)
    order = np.empty(graph.n_ops, dtype=np.int64)
    producers, readers = graph.predecessors, graph.successors
    list_schedule(
        *(seconds, device_of, longest, level, (producers.ptr, producers.items)),
        *((readers.ptr, readers.items), problem.n_devices, order),
    )
    return order


def by_fifo(problem: Problem, device_of: IntArray) -> IntArray:
    """Orders ops by their starts where devices run what is ready first."""
    cluster = replace(problem.cluster, schedule="fifo")
    found = simulate_problem(Problem(problem.graph, cluster, problem.op_seconds), device_of)
    return np.lexsort((np.arange(problem.graph.n_ops), found.finish_s, found.start_s))


@kernel(entry=True, allocates=True)
def move_ops(p, device_of, order, position, producers, readers, n, timeline, score, track_memory, peak, rng):
    """Moves ops within the order; a move stays if the step is no longer and the memory suffices."""
    n_ops, accepted = len(order), 0
    for _ in range(n):
        k = int(rng.random() * n_ops)
        op, low, high = order[k], 0, n_ops - 1
        for i in range(producers[0][op], producers[0][op + 1]):
            low = max(low, position[producers[1][i]] + 1)
        for i in range(readers[0][op], readers[0][op + 1]):
            high = min(high, position[readers[1][i]] - 1)
        back = rng.random() < 0.5
        width = k - low if back else high - k
        if p.is_source[op] or width == 0:
            continue
        far = min(int(np.exp(rng.random() * np.log(width + 1.0))), width)
        to = k - far if back else k + far
        shift(order, position, k, to)
        clear(timeline)
        total = 0.0
        for at in range(n_ops):
            total = max(total, issue(p, device_of, timeline, order[at], None))
            if total > score[0]:
                break
        keeps = total <= score[0]
        if keeps and track_memory:
            peak_memory(p, device_of, timeline, total, peak)
            for device in range(len(peak)):
                keeps = keeps and peak[device] <= p.memory[device]
        if keeps:
            score[0] = total
            accepted += 1
        else:
            shift(order, position, to, k)
    return accepted


@kernel
def shift(order, position, source, target):
    """Takes the op at one position out and puts it at another."""
    op, step = order[source], 1 if target > source else -1
    at = source
    while at != target:
        order[at] = order[at + step]
        position[order[at]] = at
        at += step
    order[target] = op
    position[op] = target


class Found:
    """The best placement and order so far, in the numbers of the program's ops."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.step_s = problem, np.inf
        self.order = np.arange(problem.graph.n_ops)
        self.device_of = np.zeros(problem.graph.n_ops, dtype=np.int64)
        self.current = problem

    def offer(self, order: IntArray, device_of: IntArray, problem: Problem | None = None) -> bool:
        """Keeps an order and a placement if the step is shorter and fits."""
        problem = problem or in_order(self.problem, order)
        (total_s,), peak = simulate_many(problem, np.ascontiguousarray(device_of[order])[None])
        if total_s >= self.step_s or (peak > problem.cluster.memory_bytes).any():
            return False
        self.step_s, self.order, self.device_of, self.current = float(total_s), order, device_of, problem
        return True

    def improve_order(self, until_s: float, rng: np.random.Generator) -> None:
        """Reorders by list schedules, then moves ops until the processor clock shows some seconds."""
        for rule in (by_level, by_fifo):
            self.offer(rule(self.problem, self.device_of), self.device_of)
        problem, graph = self.problem, self.problem.graph
        order, position = self.order.copy(), np.argsort(self.order)
        producers, readers = graph.predecessors, graph.successors
        timeline = empty_timeline(graph.n_ops, graph.n_tensors, problem.n_devices)
        score, peak = np.array([self.step_s]), np.zeros(problem.n_devices)
        while running_cpu_s() < until_s:
            move_ops(
                *(problem.arrays, self.device_of, order, position, (producers.ptr, producers.items)),
                *((readers.ptr, readers.items), BATCH, timeline, score, not problem.always_fits, peak, rng),
            )
        self.offer(order, self.device_of)

    def place(self, seconds: float, rng: np.random.Generator, *, first: bool) -> None:
        """Places anew in the order so far: all of `refine` at first, then a chain from the best."""
        search = SearchState(self.current, Budget(None, seconds, running_cpu_s))
        if first:
            PLACERS["refine"].strategies[STEP](search, rng)
        else:
            search.score(np.ascontiguousarray(self.device_of[self.order])[None])
            run_chain(search, rng, COOL_TEMPERATURE, LAST_TEMPERATURE)
        device_of = np.empty_like(self.device_of)
        device_of[self.order] = search.best
        self.offer(self.order, device_of, self.current)


def program(found: Found, seconds: float, rng: np.random.Generator) -> None:
    """Searches placements in program order alone."""
    found.place(seconds, rng, first=True)


def rounds(found: Found, seconds: float, rng: np.random.Generator) -> None:
    """Alternates placing and ordering."""
    began_s = running_cpu_s()
    for at in range(ROUNDS):
        ends_s = began_s + seconds * (at + 1) / ROUNDS
        moves_s = MOVES_SHARE * seconds / ROUNDS
        found.place(ends_s - moves_s - running_cpu_s(), rng, first=at == 0)
        found.improve_order(ends_s, rng)


def rounds_in_program_order(found: Found, seconds: float, rng: np.random.Generator) -> None:
    """Places in as many rounds, and leaves the order as it is: what a chain anew brings alone."""
    began_s = running_cpu_s()
    for at in range(ROUNDS):
        found.place(began_s + seconds * (at + 1) / ROUNDS - running_cpu_s(), rng, first=at == 0)


def at_last(found: Found, seconds: float, rng: np.random.Generator) -> None:
    """Searches placements in program order, then the order of the best."""
    began_s = running_cpu_s()
    found.place(seconds * (1 - MOVES_SHARE), rng, first=True)
    found.improve_order(began_s + seconds, rng)


ARMS: dict[str, Callable[[Found, float, np.random.Generator], None]] = {
    "program order": program,
    "three rounds": rounds,
    "ordered at last": at_last,
    "three rounds, program order": rounds_in_program_order,
}


def main(cluster: str, out: Path, graphs: list[OpGraph] | None = None) -> None:
    """Writes the rows of all sealed graphs on a cluster; goes on where it was stopped."""
    graphs = sealed_graphs(ALL, first_seed=4000) if graphs is None else graphs
    done = {line["graph"] for line in csv.DictReader(out.open())} if out.exists() else set()
    warm = Problem(min(graphs, key=lambda graph: graph.n_ops), get_cluster(cluster))
    for arm in ARMS.values():
        arm(Found(warm), 0.2, np.random.default_rng(0))
    with out.open("a", newline="") as file:
        writer = csv.writer(file)
        if not done:
            writer.writerow(COLUMNS)
        for graph in sorted(graphs, key=lambda graph: graph.n_ops):
            if graph.name in done:
                continue
            problem = Problem(graph, get_cluster(cluster))
            seconds = LARGE_S if graph.n_ops >= LARGE_OPS else SMALL_S
            for name, arm in ARMS.items():
                found, began_s = Found(problem), running_cpu_s()
                arm(found, seconds, np.random.default_rng(0))
                cpu_s = running_cpu_s() - began_s
                writer.writerow((graph.name, graph.family, graph.n_ops, cluster, name, cpu_s, found.step_s))
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
