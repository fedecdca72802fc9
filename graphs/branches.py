"""Ops that a module runs itself between submodules that are independent, such as the experts of a mixture.

A device runs its ops in program order. If one device ran all the ops that a mixture of experts runs itself,
the gather for the second expert would wait there for what comes back from the first, so experts on other
devices would run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from operator import or_

from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph

PHASES = ("forward", "backward")


def with_branches(graph: OpGraph, paths: Sequence[str]) -> list[str]:
    """Moves the ops that a module runs for one of several independent submodules into that submodule.

    Submodules are independent if the forward pass of neither depends on the other. An op of the module goes
    to the nearest independent submodule that depends on it; if there is no single nearest one, to the nearest
    on which it depends. Otherwise it stays: it combines what several make. Dependencies are those of one
    pass, forward or backward.

    Args:
        paths: module path of each op, (n_ops,).

    Returns:
        Module path of each op, (n_ops,).
    """
    flow = _Flow(graph, paths)
    return [flow.branch(op) or path for op, path in enumerate(paths)]


class _Flow:
    """Dependencies between ops and modules; a set of modules is an int with a bit for each.

    Attributes:
        bit: bit of each module that runs forward ops, by path.
        needs: modules on whose ops each op depends, (n_ops,).
        serves: modules whose ops depend on each op, (n_ops,).
        before, after: modules on which each module depends in the forward pass, and those that depend on it.
        independent: submodules of each module that are independent of another one of its submodules.
    """

    def __init__(self, graph: OpGraph, paths: Sequence[str]) -> None:
        self.paths, self.phases = paths, graph.phases
        ops = [op for op in range(graph.n_ops) if graph.phases[op] in PHASES and not graph.is_source[op]]
        forward = [op for op in ops if graph.phases[op] == "forward"]
        self.bit = {path: 1 << index for index, path in enumerate(dict.fromkeys(paths[op] for op in forward))}
        self.path_of = {bit: path for path, bit in self.bit.items()}
        inside = {path: _union(self.bit.get(module, 0) for module in _around(path)) for path in set(paths)}
        bits = [0] * graph.n_ops
        for op in ops:
            bits[op] = inside[paths[op]]
        self.needs = _reached(ops, graph.phases, graph.predecessors, bits)
        self.serves = _reached(ops[::-1], graph.phases, graph.successors, bits)
        self.before, self.after = dict.fromkeys(self.bit, 0), dict.fromkeys(self.bit, 0)
        for op in forward:
            for path in _around(paths[op]):
                if path in self.bit:
                    self.before[path] |= self.needs[op]
                    self.after[path] |= self.serves[op]
        self.independent = self._independent()
        self.nearest = cache(self._nearest)

    def branch(self, op: int) -> str:
        """Returns the submodule that an op of a module belongs to, "" if none."""
        candidates = self.independent.get(self.paths[op], 0)
        if not candidates or self.phases[op] not in PHASES:
            return ""
        is_forward = self.phases[op] == "forward"
        return self.nearest(self.serves[op] & candidates, not is_forward) or self.nearest(
            self.needs[op] & candidates, is_forward
        )

    def _independent(self) -> dict[str, int]:
        submodules: dict[str, int] = {}
        for path, bit in self.bit.items():
            around = next((module for module in list(_around(path))[1:] if module in self.bit), None)
            if around is not None:
                submodules[around] = submodules.get(around, 0) | bit
        branches: dict[str, int] = {}
        for around, beside in submodules.items():
            for path in map(self.path_of.__getitem__, _bits(beside)):
                if beside & ~(self.before[path] | self.after[path] | self.bit[path]):
                    branches[around] = branches.get(around, 0) | self.bit[path]
        return branches

    def _nearest(self, modules: int, is_last: bool) -> str:
        """Returns the first (last) of a set of modules in the forward pass, "" if it is not a single one."""
        farther: Mapping[str, int] = self.before if is_last else self.after
        paths = [self.path_of[bit] for bit in _bits(modules)]
        left = modules & ~_union(farther[path] & ~self.bit[path] for path in paths)
        return self.path_of.get(left, "")


def _reached(order: Iterable[int], phases: Sequence[str], beside: Csr, inside: Sequence[int]) -> list[int]:
    """Returns the modules that a walk along edges within a phase reaches from each op, (n_ops,).

    Args:
        order: ops, each after those of its row of `beside`.
        own: modules that each op is in, (n_ops,).
    """
    reached = [0] * len(inside)
    for op in order:
        same = [other for other in beside.row(op).tolist() if phases[other] == phases[op]]
        reached[op] = _union(reached[other] | inside[other] for other in same)
    return reached


def _around(path: str) -> Iterator[str]:
    """Yields a module path and those of the modules around it, the root last."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def _bits(modules: int) -> Iterator[int]:
    while modules:
        bit = modules & -modules
        yield bit
        modules ^= bit


def _union(modules: Iterable[int]) -> int:
    return reduce(or_, modules, 0)
