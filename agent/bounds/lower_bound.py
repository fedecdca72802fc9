"""Lower bounds on the step time of every placement."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import NamedTuple

import numpy as np

from agent.bounds.bound_kernels import earliest_starts
from envs.objective import PIPELINE, STEP, Objective
from envs.problem import Problem, kinds
from graphs.graph_columns import Csr
from graphs.limits import MIN_SECONDS, ROUNDING
from graphs.system.array_types import FloatArray, IntArray

ROUNDS = 100
"""Steps of dual ascent on the device weights."""
BOUNDS = {STEP: "agent.bounds.lower_bound:step_bound_s", PIPELINE: "agent.pipeline.search:pipeline_bound_s"}
"""Lower bound on each kind of objective, which is loaded when one is asked for."""


def bound_s(objective: Objective) -> float:
    """Lower bound on an objective under every feasible placement, in seconds."""
    return float(resolve_name(BOUNDS[objective.kind])(objective))


def step_bound_s(objective: Objective) -> float:
    """Lower bound on the step of one batch."""
    return lower_bound_s(objective.problem)


def lower_bound_s(problem: Problem) -> float:
    """Lower bound on the step time of every feasible placement, in seconds.

    The greatest of
    - the critical path: each op on its fastest device, not before what it reads can be there and not later
      than what reads it needs (`bound_kernels`: near-critical relatives of an op are on its device, one after
      the other, or pay a transfer);
    - the serial time of a placement unit on its best device, and the least time before and after it;
    - the work of the ops that run within a window of time, spread over all devices
      (Fernandez and Bussell 1973), for unrelated devices by weak duality: with any device weights that sum to
      1, the sum over ops of the least weighted seconds is at most the mean load, which is at most the window;
    - the time at which the one host thread has issued an op, and the least time from its start on.

    A device is idle for `op_gap_s` after each op but its last. Memory and contention on links are ignored.
    """
    seconds = problem.op_seconds
    fastest = seconds.min(axis=1)
    head, tail = heads_and_tails(problem)
    occupied = np.where(seconds > 0, seconds + problem.cluster.op_gap_s, 0.0)
    critical_path = float((head + fastest + tail).max())
    unit = _unit_bound(problem, occupied, head, tail)
    work = heaviest_window((occupied * device_weights(occupied)).min(axis=1), head, tail).least_s
    takes_time = fastest > 0
    n_issued = takes_time.cumsum() if problem.cluster.issue_per == "op" else takes_time
    issued_s = n_issued * problem.cluster.issue_s
    issue = float(np.where(takes_time, issued_s + fastest + tail, 0.0).max())
    gap_s = problem.cluster.op_gap_s * (1 + ROUNDING)
    return max(critical_path, unit - gap_s, work - gap_s, issue, 0.0)


def heads_and_tails(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Least seconds before the start of each op, and from its end to the end of the step, (n_ops,) each."""
    graph = problem.graph
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    earlier, later = _unit_chains(problem)
    producer = np.concatenate([graph.tensor_producer[tensor], earlier])
    consumer = np.concatenate([graph.consumers.items, later])
    apart_s = np.concatenate([_least_transfer_s(problem)[tensor], np.zeros(len(earlier))])
    last = graph.n_ops - 1
    gap_s = float(problem.cluster.op_gap_s)
    forward = _edges(consumer, producer, apart_s, graph.n_ops)
    backward = _edges(last - producer, last - consumer, apart_s, graph.n_ops)
    chosen, _ = kinds(problem.op_seconds)
    seconds = np.ascontiguousarray(problem.op_seconds[:, chosen])
    head: FloatArray = earliest_starts(*forward, graph.unit_of, seconds, gap_s)
    units, reversed_s = np.ascontiguousarray(graph.unit_of[::-1]), np.ascontiguousarray(seconds[::-1])
    tail: FloatArray = earliest_starts(*backward, units, reversed_s, gap_s)
    return head, tail[::-1]


def _unit_chains(problem: Problem) -> tuple[IntArray, IntArray]:
    """Ops that follow each other in a unit where devices run in program order: the earlier, the later one."""
    is_ordered = problem.cluster.schedule == "program"
    runs = np.flatnonzero((problem.op_seconds > 0).all(axis=1) & is_ordered)
    by_unit = runs[np.argsort(problem.graph.unit_of[runs], kind="stable")]
    unit_of = problem.graph.unit_of[by_unit]
    follows = np.flatnonzero(unit_of[:-1] == unit_of[1:])
    return by_unit[follows], by_unit[follows + 1]


def _edges(
    reader: IntArray, producer: IntArray, apart_s: FloatArray, n_ops: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """Rows of what each op reads: bounds of the rows, producers, and the least seconds of a transfer."""
    rows = Csr.from_pairs(reader, np.arange(len(reader)), n_ops)
    return rows.ptr, producer[rows.items], apart_s[rows.items]


def _least_transfer_s(problem: Problem) -> FloatArray:
    """Seconds of a transfer of each tensor over the fastest link, (n_tensors,); 0 with one device."""
    arrays, apart = problem.arrays, ~np.eye(problem.n_devices, dtype=bool)
    n_bytes = problem.graph.tensor_bytes
    least = np.full(len(n_bytes), np.inf if apart.any() else 0.0)
    for rate, latency, n_half in {
        (float(rate), float(latency), float(n_half))
        for rate, latency, n_half in zip(
            arrays.bandwidth[apart], arrays.latency[apart], arrays.n_half[apart], strict=True
        )
    }:
        least = np.minimum(least, (n_bytes + n_half) / rate + latency)
    return least


def device_weights(occupied: FloatArray) -> FloatArray:
    """Device weights that maximize, nearly, the dual bound on the makespan of unrelated devices.

    Args:
        occupied: seconds that each op takes on each device, (n_ops, n_devices).

    Returns:
        (n_devices,), not negative, with sum 1: the best of `ROUNDS` steps of exponentiated-gradient ascent.
        The first weights are proportional to speed, which is optimal where devices differ by a factor.
    """
    load = np.maximum(occupied.sum(axis=0), MIN_SECONDS)
    weights: FloatArray = (1.0 / load) / (1.0 / load).sum()
    if len(kinds(occupied)[0]) == 1:  # equal weights are optimal
        return weights
    best = weights
    best_bound = -1.0
    for step in range(ROUNDS):
        weighted = occupied * weights
        device = weighted.argmin(axis=1)
        bound = float(weighted.min(axis=1).sum())
        if bound > best_bound:
            best, best_bound = weights, bound
        loads = np.bincount(device, occupied[np.arange(len(device)), device], minlength=len(weights))
        weights = weights * np.exp(loads / max(loads.max(), MIN_SECONDS) / (1.0 + step))
        weights = weights / weights.sum()
    return best


def _unit_bound(problem: Problem, occupied: FloatArray, head: FloatArray, tail: FloatArray) -> float:
    unit_of, n_units = problem.graph.unit_of, len(problem.graph.units)
    serial = np.zeros((n_units, problem.n_devices))
    np.add.at(serial, unit_of, occupied)
    first, last = np.full(n_units, np.inf), np.full(n_units, np.inf)
    takes_time = occupied.max(axis=1) > 0
    np.minimum.at(first, unit_of[takes_time], head[takes_time])
    np.minimum.at(last, unit_of[takes_time], tail[takes_time])
    busy = np.isfinite(first)
    return float((serial.min(axis=1)[busy] + first[busy] + last[busy]).max(initial=0.0))


WINDOWS = 64
"""Earliest starts at which windows begin."""


class Window(NamedTuple):
    """The ops that start at `since_s` or later and have `after_s` or more after them.

    `least_s` is `since_s`, their work, and `after_s`.
    """

    least_s: float
    since_s: float
    after_s: float


def heaviest_window(work: FloatArray, head: FloatArray, tail: FloatArray) -> Window:
    """Finds, among many windows, the one with the greatest sum of its start, its work and the time after it.

    Args:
        work: seconds of each op, (n_ops,); at least one op.
        head, tail: least seconds before the start and after the end of each op, (n_ops,).
    """
    longest_tail_first = np.argsort(-tail, kind="stable")
    work, head, tail = work[longest_tail_first], head[longest_tail_first], tail[longest_tail_first]
    starts = np.unique(np.quantile(head, np.linspace(0, 1, WINDOWS), method="lower"))
    inside = head >= starts[:, None]
    window = starts[:, None] + np.where(inside, work, 0.0).cumsum(axis=1) + tail
    start, last = np.unravel_index(np.where(inside, window, -np.inf).argmax(), window.shape)
    return Window(float(window[start, last]), float(starts[start]), float(tail[last]))
