"""List scheduling with favourite children, which a linear program (LP) chooses."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState, placer
from agent.placers.heuristics.list_scheduling import place_earliest_start
from envs.problem import Problem
from graphs.system.array_types import FloatArray, IntArray

FAVOURITE_BELOW = 0.1
"""Share of its transfer that an edge pays in the LP, below which its child is the favourite."""
MAX_ITERATIONS = 200
"""Steps of the interior-point method; an LP that needs more has no favourites."""


@placer("m-sct", stands_alone=True)
def m_sct(search: SearchState, rng: np.random.Generator) -> None:
    """Places as m-ETF does, but reserves a device for the favourite child of the op that it ran last.

    After op `i`, its favourite child `j` has the device to itself until `finish_i + c_ij`, where `c_ij` is
    the time of the transfer from `i` to `j`. Favourites come from the LP of `_solve`; if
    that has no solution in time, there are none.

    Source: m-SCT of Baechi (Jeon et al., SoCC 2020), after SCT (Hanen and Munier 1995).
    """
    favourite, keep_s = favourite_children(search.problem, search.budget.seconds)
    place_earliest_start(search, favourite, keep_s)


def favourite_children(problem: Problem, limit_s: float | None = None) -> tuple[IntArray, FloatArray]:
    """Solves the LP of SCT.

    Args:
        limit_s: seconds after which the solver gives up; None = never.

    Returns:
        Favourite child of each op, -1 = none, int (n_ops,), and seconds of the transfer to it, (n_ops,).
    """
    edges, transfer_s = _edges(problem)
    favourite, keep_s = np.full(problem.graph.n_ops, -1), np.zeros(problem.graph.n_ops)
    if problem.n_devices == 1 or not len(edges):
        return favourite, keep_s
    paid = _solve(problem, edges, transfer_s, limit_s)
    chosen = np.flatnonzero(paid < FAVOURITE_BELOW)
    favourite[edges[chosen, 0]], keep_s[edges[chosen, 0]] = edges[chosen, 1], transfer_s[chosen]
    return favourite, keep_s


def _edges(problem: Problem) -> tuple[IntArray, FloatArray]:
    """Pairs of running ops, int (n_edges, 2), and the seconds of the tensors from one to the other."""
    graph = problem.graph
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    producer, consumer = graph.tensor_producer[tensor], graph.consumers.items
    runs = ~graph.is_source[producer] & ~graph.is_source[consumer]
    keys, index = np.unique(producer[runs] * graph.n_ops + consumer[runs], return_inverse=True)
    seconds = np.bincount(index, problem.mean_transfer_s[tensor[runs]], minlength=len(keys))
    return np.stack([keys // graph.n_ops, keys % graph.n_ops], axis=1), seconds.astype(np.float64)


def _solve(problem: Problem, edges: IntArray, transfer_s: FloatArray, limit_s: float | None) -> FloatArray:
    """Solves the linear relaxation of scheduling on any number of devices.

    With the seconds `p_i` of op `i`, on average over devices, and `c_ij` of the transfer of edge `(i, j)`:

        minimise w over s >= 0, 0 <= x <= 1, subject to
            s_i + p_i + c_ij x_ij <= s_j    for each edge (i, j): its child starts after the transfer
            s_i + p_i <= w                  for each op i: the step time is w
            sum_j (1 - x_ij) <= 1           for each parent i: one child has its data for free
            sum_i (1 - x_ij) <= 1           for each child j: one parent sends its data for free

    Returns:
        Share `x` of its transfer that each edge pays, (n_edges,); all 1 without a solution.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    n_ops, n_edges = problem.graph.n_ops, len(edges)
    parent, child = edges.T
    edge, op = np.arange(n_edges), np.arange(n_ops)
    share, step = n_ops + edge, np.full(n_ops, n_ops + n_edges)
    seconds = problem.op_seconds.mean(axis=1) / problem.scale_s
    n_children, n_parents = (np.bincount(ends, minlength=n_ops) for ends in (parent, child))
    entries = [
        (edge, parent, 1.0),
        (edge, child, -1.0),
        (edge, share, transfer_s / problem.scale_s),
        (n_edges + op, op, 1.0),
        (n_edges + op, step, -1.0),
        (n_edges + n_ops + parent, share, -1.0),
        (n_edges + 2 * n_ops + child, share, -1.0),
    ]
    rows, columns = (np.concatenate([entry[axis] for entry in entries]) for axis in (0, 1))
    values = np.concatenate([np.broadcast_to(np.asarray(value), len(row)) for row, _, value in entries])
    matrix = coo_array((values, (rows, columns)), shape=(n_edges + 3 * n_ops, n_ops + n_edges + 1))
    cost = np.zeros(n_ops + n_edges + 1)
    cost[-1] = 1.0
    solution = linprog(
        cost,
        A_ub=matrix.tocsr(),
        b_ub=np.concatenate([-seconds[parent], -seconds, 1.0 - n_children, 1.0 - n_parents]),
        bounds=[(0, None)] * n_ops + [(0, 1)] * n_edges + [(0, None)],
        method="highs-ipm",
        options={"maxiter": MAX_ITERATIONS} | ({} if limit_s is None else {"time_limit": limit_s}),
    )
    if solution.status != 0:
        return np.ones(n_edges)
    return np.asarray(solution.x[n_ops : n_ops + n_edges], dtype=np.float64)
