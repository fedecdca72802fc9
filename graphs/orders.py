"""Visit orders: the sequence in which an episode visits the compute ops of a graph.

A new order is one decorated function. Where ops tie, their names decide (compared as strings). So no order
depends on how tensors are stored, and only `topo` and `reversed-topo` depend on the choice of program order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from graphs.graph_columns import Csr
from graphs.levels import b_level as op_b_level
from graphs.levels import t_level
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import InputError
from graphs.system.registry import Registry
from graphs.system.user_code import user_line

if TYPE_CHECKING:
    from graphs.op_graph import OpGraph

NOMINAL_FLOPS_PER_S = 1e13
NOMINAL_BYTES_PER_S = 1e12
NOMINAL_LINK_BYTES_PER_S = 1e10


def nominal_op_s(graph: OpGraph) -> FloatArray:
    """Seconds of each op on a nominal device, so that an order depends on the graph alone.

    The mean of the seconds measured on any device kind; where there are none, the roofline of a device of 10
    TFLOP/s and 1 TB/s. Parameters and inputs take none.

    Returns:
        Seconds, (n_ops,).
    """
    roofline = np.maximum(graph.flops / NOMINAL_FLOPS_PER_S, graph.bytes_moved / NOMINAL_BYTES_PER_S)
    total, count = np.zeros(graph.n_ops), np.zeros(graph.n_ops)
    for kind in sorted(graph.seconds):
        is_known = ~np.isnan(graph.seconds[kind])
        total[is_known] += graph.seconds[kind][is_known]
        count += is_known
    mean = total / np.maximum(count, 1)
    return np.where(graph.is_source, 0.0, np.where(count > 0, mean, roofline))


VisitOrder = IntArray
"""Program indices of the compute ops (`OpGraph.is_compute`), each once."""
Order: TypeAlias = "Callable[[OpGraph, np.random.Generator], VisitOrder]"
"""Lists the ops to visit; only a random order draws from the generator."""


class OrderError(InputError):
    """An order that does not exist or visits other ops, or a name that is taken; says what would be right."""


class Orders(Registry[Order]):
    """Orders by name; each raises an `OrderError` if it does not visit the compute ops, each once."""

    def __getitem__(self, name: str) -> Order:
        """Returns the order of a name; an `OrderError` if it is unknown."""
        return partial(_checked, name, super().__getitem__(name))


def _checked(name: str, visit: Order, graph: OpGraph, rng: np.random.Generator) -> VisitOrder:
    """Returns the ops that an order visits, int64 (n_visits,)."""
    where = f"order '{name}' of graph '{graph.name}'"
    try:
        ops = np.array(visit(graph, rng))
    except InputError:
        raise
    except Exception as error:
        raise OrderError(f"{where} fails: {user_line(error)}: {type(error).__name__}: {error}") from error
    if ops.ndim != 1 or (ops.dtype.kind not in "iu" and len(ops)):
        raise OrderError(f"{where} returns {ops.dtype} {ops.shape}; return indices of ops, int (n_visits,)")
    if len(outside := ops[(ops < 0) | (ops >= graph.n_ops)]):
        raise OrderError(f"{where} visits op {outside[0]}, but ops are 0 to {graph.n_ops - 1}")
    visits = np.bincount(ops.astype(np.int64), minlength=graph.n_ops)
    wrong = np.flatnonzero(visits != graph.is_compute)
    if len(wrong):
        times = f"op '{graph.op_names[wrong[0]]}' {visits[wrong[0]]} times, and {len(wrong) - 1} more wrongly"
        raise OrderError(f"{where} visits {times}; visit each op of np.flatnonzero(graph.is_compute) once")
    return ops.astype(np.int64)


ORDERS = Orders("order", OrderError, group="placewalk.orders")


def order(visit: Callable[[OpGraph], VisitOrder]) -> Callable[[OpGraph], VisitOrder]:
    """Registers a function as an order, named as the function with dashes for underscores.

    Raises:
        OrderError: the name is taken.
    """
    name = visit.__name__.replace("_", "-")
    ORDERS.register(name, lambda graph, rng: visit(graph))
    return visit


def random_order(visit: Order) -> Order:
    """Registers, in the same way, a function that draws its order from a generator.

    Raises:
        OrderError: the name is taken.
    """
    return ORDERS.register(visit.__name__.replace("_", "-"), visit)


@order
def topo(graph: OpGraph) -> VisitOrder:
    """Producers before consumers: the program order, in which no ops tie."""
    return np.flatnonzero(graph.is_compute)


@order
def reversed_topo(graph: OpGraph) -> VisitOrder:
    """Consumers before producers: `topo`, backwards."""
    return topo(graph)[::-1]


@order
def dfs_preorder(graph: OpGraph) -> VisitOrder:
    """Depth first from the sources, an op before its consumers; sources and consumers by name."""
    return _depth_first(graph)[0]


@order
def dfs_postorder(graph: OpGraph) -> VisitOrder:
    """Depth first from the sources, an op after its consumers; sources and consumers by name."""
    return _depth_first(graph)[1]


@order
def bfs(graph: OpGraph) -> VisitOrder:
    """Breadth first from all sources at once; sources and consumers by name."""
    consumers, sources = _compute_consumers(graph)
    seen = set(sources)
    queue, visited = deque(sources), []
    while queue:
        op = queue.popleft()
        visited.append(op)
        fresh = [reader for reader in consumers[op] if reader not in seen]
        seen.update(fresh)
        queue.extend(fresh)
    return np.array(visited, dtype=np.int64)


@order
def alpha(graph: OpGraph) -> VisitOrder:
    """By op name, which is unique."""
    rank = _name_rank(graph)
    ops = topo(graph)
    return ops[np.argsort(rank[ops])]


@order
def lexico_topo(graph: OpGraph) -> VisitOrder:
    """Producers before consumers; of all ops whose producers were visited, the first by name."""
    consumers, sources = _compute_consumers(graph)
    rank = _name_rank(graph)
    by_rank = np.argsort(rank)
    waiting = np.bincount([reader for row in consumers for reader in row], minlength=graph.n_ops).tolist()
    ready, visited = [int(rank[op]) for op in sources], []
    heapq.heapify(ready)
    while ready:
        op = int(by_rank[heapq.heappop(ready)])
        visited.append(op)
        for reader in consumers[op]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, int(rank[reader]))
    return np.array(visited, dtype=np.int64)


@random_order
def random(graph: OpGraph, rng: np.random.Generator) -> VisitOrder:
    """A uniformly drawn permutation; equal generators permute the ops by name alike."""
    return rng.permutation(alpha(graph))


@order
def b_level(graph: OpGraph) -> VisitOrder:
    """Longest path to the end of the step first, at nominal costs; ties by depth, then by name.

    Depth (the most hops from a source) keeps producers before consumers where both cost nothing.
    """
    level = op_b_level(graph, nominal_op_s(graph), graph.tensor_bytes / NOMINAL_LINK_BYTES_PER_S)
    depth = t_level(graph, np.ones(graph.n_ops), np.zeros(graph.n_tensors))
    ops = topo(graph)
    return ops[np.lexsort((_name_rank(graph)[ops], depth[ops], -level[ops]))]


@order
def cost(graph: OpGraph) -> VisitOrder:
    """Most expensive op first, at nominal costs; ties by name."""
    ops = topo(graph)
    return ops[np.lexsort((_name_rank(graph)[ops], -nominal_op_s(graph)[ops]))]


def _name_rank(graph: OpGraph) -> IntArray:
    rank = np.empty(graph.n_ops, dtype=np.int64)
    rank[sorted(range(graph.n_ops), key=graph.op_names.__getitem__)] = np.arange(graph.n_ops)
    return rank


def _compute_consumers(graph: OpGraph) -> tuple[list[list[int]], list[int]]:
    """Compute ops that read from each compute op, and those that read from none; both by name."""
    rank = _name_rank(graph)
    producer, reader = graph.edges[graph.is_compute[graph.edges].all(axis=1)].T
    by_name = np.argsort(rank[reader], kind="stable")
    rows = Csr.from_pairs(producer[by_name], reader[by_name], graph.n_ops)
    ptr, items = rows.ptr.tolist(), rows.items.tolist()
    sources = graph.is_compute.copy()
    sources[reader] = False
    first = np.flatnonzero(sources)
    consumers = [items[ptr[op] : ptr[op + 1]] for op in range(graph.n_ops)]
    return consumers, first[np.argsort(rank[first])].tolist()


def _depth_first(graph: OpGraph) -> tuple[VisitOrder, VisitOrder]:
    """Ops in the sequence in which they are entered, and in which they are left."""
    consumers, sources = _compute_consumers(graph)
    seen: set[int] = set()
    entered: list[int] = []
    left: list[int] = []
    # A stack of iterators: recursion would end at a thousand ops.
    stack = [(-1, iter(sources))]
    while stack:
        op, readers = stack[-1]
        fresh = next((reader for reader in readers if reader not in seen), None)
        if fresh is not None:
            seen.add(fresh)
            entered.append(fresh)
            stack.append((fresh, iter(consumers[fresh])))
        else:
            stack.pop()
            left.append(op)
    return np.array(entered, dtype=np.int64), np.array(left[:-1], dtype=np.int64)
