"""Granularity: how much of a step one decision places.

A coarser granularity changes nothing of a graph but which ops are colocated, so all that takes a graph takes
it. What autograd runs follows the forward op: the backward ops of a module stand at its module path.

A module may itself run ops between submodules that are independent, such as the experts of a mixture. A
device runs its ops in program order: if one device ran all of these, the gather for the second expert would
wait there for what comes back from the first, so experts on other devices would run one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from operator import or_

import numpy as np

from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph
from graphs.step_settings import GRANULARITIES
from graphs.system.errors import InputError

PASSES = ("forward", "backward")
SUM_OF_GRADIENTS = "aten.add"
"""Type of the backward op by which autograd adds the gradients of a tensor that several ops read."""


class GranularityError(InputError):
    """A granularity that is unknown, or a graph that cannot have it; the message says what would be right."""


def with_granularity(graph: OpGraph, granularity: str) -> OpGraph:
    """Colocates the ops that one decision places.

    - `op`: the graph as it is: an op, with the parameters that it reads first and their updates.
    - `module`: all ops of a module, forward, backward and update, with its parameters. An op that a module
      runs between its submodules belongs to that module, and so do all its calls; if it does so for one of
      several independent submodules, such as an expert, it belongs to that one (`with_branches`).
    - `block`: numbered modules (of a `ModuleList` or `Sequential`) that repeat, each whole; of nested ones
      the outermost. What is in none is placed by module.
    - `layer`: the same blocks, or the submodules of the model if there are none; everything else goes with
      the block before it, or with the first.

    Parameters that no op reads are placed by module.

    Returns:
        A graph that differs in `colocate` alone. Ops that were colocated still are: with the first that
        computes among them.

    Raises:
        GranularityError: no such granularity, or a graph without module paths.
    """
    if granularity not in GRANULARITIES:
        raise GranularityError(f"unknown granularity '{granularity}'; use one of {', '.join(GRANULARITIES)}")
    if granularity == "op":
        return graph
    if not any(graph.modules):
        raise GranularityError(f"graph '{graph.name}': its ops have no module paths; use granularity op")
    groups = _keep_together(graph, GROUPINGS[granularity](graph))
    for op in np.flatnonzero(np.isin(graph.unit_of, graph.unit_of[graph.unread])).tolist():
        groups[op] = f"unread {graph.modules[op]}"
    number: dict[str, int] = {}
    is_input = [kind == "input" for kind in graph.op_types]
    colocate = [
        -1 if free else number.setdefault(group, len(number))
        for group, free in zip(groups, is_input, strict=True)
    ]
    return replace(graph, colocate=np.array(colocate, dtype=np.int64))


def by_module(graph: OpGraph) -> list[str]:
    """Groups ops by module, those of a branch with the submodule that they belong to."""
    return with_branches(graph, module_paths(graph))


def module_paths(graph: OpGraph) -> list[str]:
    """Returns the module of each op; a sum of gradients goes where it is read first, to its producer."""
    paths = list(graph.modules)
    for op in reversed([op for op, path in enumerate(paths) if not path]):
        is_sum = graph.phases[op] == "backward" and graph.op_types[op].startswith(SUM_OF_GRADIENTS)
        if is_sum and len(readers := graph.successors.row(op)):
            paths[op] = paths[readers[0]]
    return paths


def by_block(graph: OpGraph) -> list[str]:
    """Groups ops by repeated block, those outside of blocks by module."""
    block_paths = blocks(graph)
    return [_block(path, block_paths) or path for path in by_module(graph)]


def by_layer(graph: OpGraph) -> list[str]:
    """Groups ops by repeated block, the others with the block before them.

    What a module that has blocks computes itself, such as a loss after them, goes op by op; any other module
    as a whole, where it is called first.
    """
    paths = by_module(graph)
    block_paths = blocks(graph) or {path.partition(".")[0] for path in paths if path}
    above = {path[:end] for path in block_paths for end, letter in enumerate(path) if letter == "."} | {""}
    group = {path: _block(path, block_paths) for path in dict.fromkeys(paths)}
    last = next(group[path] for path in paths if group[path])
    following = dict[str, str]()
    groups = []
    for path in paths:  # in program order
        last = group[path] or last
        following.setdefault(path, last)
        groups.append(last if path in above else following[path])
    return groups


GROUPINGS: dict[str, Callable[[OpGraph], list[str]]] = {
    "module": by_module,
    "block": by_block,
    "layer": by_layer,
}
"""Names the group of each op by a module path; ops of a group go on one device."""


def _keep_together(graph: OpGraph, groups: Sequence[str]) -> list[str]:
    """Gives colocated ops the group of the first that computes among them."""
    leader: dict[int, int] = {}
    compute_first = sorted(range(graph.n_ops), key=lambda op: (bool(graph.is_source[op]), op))
    for op in compute_first:
        leader.setdefault(int(graph.colocate[op]), op)
    return [
        groups[op if graph.colocate[op] < 0 else leader[int(graph.colocate[op])]] for op in range(graph.n_ops)
    ]


def blocks(graph: OpGraph) -> set[str]:
    """Returns paths of numbered modules beside which, or at which, one repeats another of the model.

    Modules repeat each other if their forward ops have equal types at equal paths below them.
    """
    ops_of = defaultdict[str, list[tuple[str, str]]](list)
    for op in range(graph.n_ops):
        if graph.phases[op] == "forward" and not graph.is_source[op]:
            parts = graph.modules[op].split(".")
            for end, part in enumerate(parts, 1):
                if part.isdecimal():
                    numbered = ".".join(parts[:end])
                    ops_of[numbered].append((graph.modules[op][len(numbered) :], graph.op_types[op]))
    alike = defaultdict[tuple[tuple[str, str], ...], list[str]](list)
    for path, ops in ops_of.items():
        alike[tuple(ops)].append(path)
    repeated = {path for paths in alike.values() if len(paths) > 1 for path in paths}
    containers = {path.rpartition(".")[0] for path in repeated}
    return {path for path in ops_of if path.rpartition(".")[0] in containers}


def _block(path: str, block_paths: Iterable[str]) -> str:
    """Returns the outermost of the blocks that a module is in, "" if none."""
    parts = path.split(".")
    beginnings = (".".join(parts[: count + 1]) for count in range(len(parts)))
    return next((beginning for beginning in beginnings if beginning in block_paths), "")


def graph_by_op(graph: OpGraph) -> OpGraph | None:
    """Returns the graph by op that `with_granularity` was given; None if it is by op, or was not made so."""
    by_op = _by_op(graph)
    if len(by_op.units) == len(graph.units) or not any(graph.modules):
        return None
    coarser = (with_granularity(by_op, name) for name in GROUPINGS)
    return by_op if any(np.array_equal(candidate.unit_of, graph.unit_of) for candidate in coarser) else None


def _by_op(graph: OpGraph) -> OpGraph:
    """Takes units apart into compute ops, each with the sources that it reads first.

    An update goes with the parameter whose name it bears, or else with the first of its module.
    """
    several = np.bincount(graph.unit_of[graph.is_compute], minlength=len(graph.units)) > 1
    group = np.where(several[graph.unit_of], np.arange(graph.n_ops), graph.n_ops + graph.unit_of)
    reader = np.full(graph.n_ops, graph.n_ops)
    np.minimum.at(reader, graph.edges[:, 0], graph.edges[:, 1])
    parameter: dict[tuple[int, str], int] = {}
    for op in np.flatnonzero(several[graph.unit_of]).tolist():
        unit = int(graph.unit_of[op])
        if graph.is_source[op] and reader[op] < graph.n_ops:
            group[op] = group[reader[op]]
            if graph.op_types[op] == "parameter":
                parameter.setdefault((unit, graph.modules[op]), op)
                parameter[unit, graph.op_names[op]] = op
        elif graph.phases[op] == "optimizer":
            updated = unit, graph.op_names[op].partition("/")[2]
            group[op] = group[parameter.get(updated, parameter.get((unit, graph.modules[op]), op))]
    return replace(graph, colocate=group)


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
        ops = [op for op in range(graph.n_ops) if graph.phases[op] in PASSES and not graph.is_source[op]]
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
        if not candidates or self.phases[op] not in PASSES:
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
        inside: modules that each op is in, (n_ops,).
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
