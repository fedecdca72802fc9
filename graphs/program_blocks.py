"""Where the program of a model can be cut: its layers, the time steps of an unrolled layer, its modules."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from graphs.op_graph import Csr, IntArray, OpGraph

LAYER, STEP, MODULE, INSIDE = range(4)
"""What lies between two ops, the best place to cut first."""


class Blocks:
    """The layer, time step and module of each op, as numbers that are equal where they are the same.

    A layer is a module path up to its first number (`decoder.cells.0` of `decoder.cells.0.ih`); of a path
    without one, the module around it if it has no modules itself. All steps of an unrolled layer run the same
    modules, so the step is the number of the call in a captured op's name (`decoder.cells.0.ih@3`). Phases
    never share either.

    Attributes:
        layer, step, module: int (n_ops,).
    """

    def __init__(self, graph: OpGraph) -> None:
        inner = _paths_around(graph.modules)
        layers = {path: layer_of(path, path in inner) for path in set(graph.modules)}
        layer = [(phase, layers[path]) for phase, path in zip(graph.phases, graph.modules, strict=True)]
        calls = list(map(_call, graph.op_names, graph.modules))
        self.layer = _numbered(layer)
        self.step = _numbered(zip(layer, calls, strict=True))
        self.module = _numbered(zip(graph.phases, graph.modules, calls, strict=True))

    def between(self, ops: IntArray) -> IntArray:
        """What lies between each op of a sequence and the next, int (n - 1,): from `LAYER` to `INSIDE`."""
        before, after = ops[:-1], ops[1:]
        levels = (self.layer, self.step, self.module)
        return np.select([of[before] != of[after] for of in levels], [LAYER, STEP, MODULE], INSIDE)


def layer_of(path: str, has_modules: bool) -> str:
    """Path of the layer that a module belongs to.

    Args:
        has_modules: whether ops run in modules inside it.
    """
    parts = path.split(".")
    for depth, part in enumerate(parts, 1):
        if part.isdecimal():
            return ".".join(parts[:depth])
    return path if has_modules or len(parts) == 1 else ".".join(parts[:-1])


def layer_order(graph: OpGraph, ops: IntArray, blocks: Blocks) -> IntArray:
    """A topological order that stays with a layer as long as it can, else goes on where the program is first.

    Stretches of the program within one time step of a layer stay whole.

    Args:
        ops: those to order, ascending.

    Returns:
        The ops, reordered.
    """
    starts = np.flatnonzero(np.concatenate([[True], blocks.between(ops) <= STEP]))
    stretch = np.full(graph.n_ops, -1, dtype=np.int64)
    stretch[ops] = np.repeat(np.arange(len(starts)), np.diff([*starts, len(ops)]))
    pairs = stretch[graph.edges]
    pairs = pairs[(pairs >= 0).all(axis=1) & (pairs[:, 0] != pairs[:, 1])]
    order = _stay(len(starts), pairs, blocks.layer[ops[starts]].tolist())
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return ops[np.argsort(rank[stretch[ops]], kind="stable")]


def topological_order(n: int, pairs: IntArray) -> list[int]:
    """The topological order of `n` items that always takes the least item it can.

    Args:
        pairs: (before, after), int (n_pairs, 2); they form no cycle.
    """
    return _stay(n, pairs, [0] * n)


def _stay(n: int, pairs: IntArray, layer: list[int]) -> list[int]:
    """A topological order that takes the least item of the present layer, else the least of all."""
    after = Csr.from_pairs(pairs[:, 0], pairs[:, 1], n)
    ptr, items = after.ptr.tolist(), after.items.tolist()
    waits_for = np.bincount(pairs[:, 1], minlength=n).tolist()
    ready = [item for item in range(n) if waits_for[item] == 0]
    in_layer: dict[int, list[int]] = {}
    for item in ready:
        in_layer.setdefault(layer[item], []).append(item)
    taken, order = [False] * n, list[int]()
    while len(order) < n:
        here = in_layer.get(layer[order[-1]]) if order else None
        item = heapq.heappop(here or ready)
        if taken[item]:
            continue
        taken[item] = True
        order.append(item)
        for reader in items[ptr[item] : ptr[item + 1]]:
            waits_for[reader] -= 1
            if waits_for[reader] == 0:
                heapq.heappush(ready, reader)
                heapq.heappush(in_layer.setdefault(layer[reader], []), reader)
    return order


def _paths_around(paths: Iterable[str]) -> set[str]:
    """Every path that has one of the paths inside."""
    around: set[str] = set()
    for path in set(paths):
        parts = path.split(".")
        around.update(".".join(parts[:depth]) for depth in range(1, len(parts)))
    return around


def _call(op_name: str, module: str) -> str:
    """Which call of its module an op is from, as its name says; empty for the first."""
    _, _, rest = op_name.partition(f"{module}@") if "@" in op_name else ("", "", "")
    return rest.partition("/")[0]


def _numbered(keys: Iterable[object]) -> IntArray:
    number: dict[object, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
