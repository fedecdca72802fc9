"""List schedulers: they build a schedule op by op, each where it finishes or starts first."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState, placer
from agent.placers.heuristics.fill import first_feasible
from agent.placers.heuristics.list_kernels import schedule_earliest_start, schedule_in_order
from agent.placers.units import per_unit, units_of
from envs.problem import Problem
from graphs.levels import b_level
from graphs.system.array_types import FloatArray, IntArray


@placer("heft")
def heft(search: SearchState, rng: np.random.Generator) -> None:
    """Places ops by upward rank, each where it finishes first.

    Source: HEFT (Topcuoglu et al. 2002), without insertion into idle slots; links are occupied as the cluster
    says. Where devices run ops in program order, that order is tried as the priority list too. A placement
    unit goes where its first op does.
    """
    problem, units = search.problem, units_of(search.problem)
    orders = [upward_rank_order(problem)]
    if problem.cluster.schedule == "program":
        orders.append(np.flatnonzero(~problem.graph.is_source))
    for order in orders:

        def plan(limit_bytes: FloatArray, order: IntArray = order) -> IntArray:
            return per_unit(problem.graph, schedule_in_order(problem.arrays, units, order, limit_bytes))

        first_feasible(search, plan)


@placer("m-etf")
def m_etf(search: SearchState, rng: np.random.Generator) -> None:
    """Places, of all ready ops and devices with free memory, always the pair that can start first.

    Source: m-ETF of Baechi (Jeon et al., SoCC 2020), after ETF (Hwang et al. 1989). The time
    when inputs can be on a device is computed once, when the op becomes ready.
    """
    n_ops = search.problem.graph.n_ops
    place_earliest_start(search, np.full(n_ops, -1), np.zeros(n_ops))


def place_earliest_start(search: SearchState, favourite: IntArray, keep_s: FloatArray) -> None:
    """Scores what `schedule_earliest_start` plans, with less memory until that is feasible.

    Args:
        favourite: the favourite child of each op, -1 = none, int (n_ops,).
        keep_s: how long each op's device is kept for that, seconds, (n_ops,).
    """
    problem, units = search.problem, units_of(search.problem)

    def plan(limit_bytes: FloatArray) -> IntArray:
        device_of = schedule_earliest_start(problem.arrays, units, limit_bytes, favourite, keep_s)
        return per_unit(problem.graph, device_of)

    first_feasible(search, plan)


def upward_rank_order(problem: Problem) -> IntArray:
    """Sorts running ops by falling upward rank, mean seconds to the end of the step; ties in program order.

    Returns:
        Program indices of all ops but parameters and inputs, int (n_running,).
    """
    graph = problem.graph
    rank = b_level(graph, problem.op_seconds.mean(axis=1), problem.mean_transfer_s)
    running = np.flatnonzero(~graph.is_source)
    return running[np.argsort(-rank[running], kind="stable")]
