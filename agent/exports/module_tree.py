"""The modules of a model as the targets of exports see them: what they cut, and what they count as layers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from string import digits

from graphs.granularity import blocks
from graphs.graph_columns import LIST, MODULE
from graphs.op_graph import OpGraph

MTP = "mtp"
"""Part of the paths of modules for multi-token prediction."""


class ModuleTree:
    """The modules of a graph's model.

    Where a graph does not say its modules, they are those of its ops, and numbers that are left out are
    modules that do nothing.

    Attributes:
        kind: of each module by path, as `GraphColumns.tree`, in the order of registration.
        children: paths of the modules in each.
        layers: modules that repeat: numbered ones or, without any, those whose names end in numbers.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.layers = blocks(graph) or blocks(graph, named=True)
        self.children: dict[str, list[str]] = defaultdict(list)
        paths = dict.fromkeys([*graph.tree, *_paths_of_ops(graph)])
        for path in paths:
            if path:
                self.children[path.rpartition(".")[0]].append(path)
        own = {graph.modules[op] for op in self._forward()}
        self.kind = {path: graph.tree.get(path) or self._likely_kind(path, own) for path in paths}

    def modules(self, opens: Callable[[str], bool]) -> list[str]:
        """Outermost modules that a target does not open, in the order of registration; no empty lists."""
        found, left = [], self.children[""][::-1]
        while left:
            path = left.pop()
            if self.children.get(path) and opens(path):
                left += self.children[path][::-1]
            elif self.children.get(path) or self.kind[path] != LIST:
                found.append(path)
        return found

    def opens(self, path: str) -> bool:
        """Says whether a module is cut by what runs its parts one after the other: it has layers, or no own ops."""
        holds_layers = any(path in above(layer) for layer in self.layers)
        return self.kind[path] != MODULE or holds_layers

    def ops(self, modules: Sequence[str]) -> dict[str, list[int]]:
        """Forward ops that compute by module, in program order; a module without any follows the one before it."""
        known, found = set(modules), dict[str, list[int]]()
        for op in self._forward():
            if module := next((path for path in above(self.graph.modules[op]) if path in known), None):
                found.setdefault(module, []).append(op)
        order = list(found)
        for at, path in enumerate(modules):
            if path not in found:
                order.insert(order.index(modules[at - 1]) + 1 if at else 0, path)
        return {path: found.get(path, []) for path in order}

    def lists(self) -> dict[str, list[str]]:
        """The layers of each list by the path of the list, those of layers named `layer3` by `layer`."""
        layers = [path for path in self.modules(lambda path: path not in self.layers) if path in self.layers]
        return {name: self.members(name) for name in dict.fromkeys(map(list_of, layers))}

    def members(self, name: str) -> list[str]:
        """The modules in a list, or those with its name and a number."""
        numbered = re.compile(rf"{re.escape(name)}\d+")
        return self.children.get(name) or list(filter(numbered.fullmatch, self.kind))

    def after_tokens(self, layers: Iterable[str]) -> bool:
        """Says whether modules read what is looked up for an input, as a language model's layers do."""
        graph, known = self.graph, set(layers)
        given, tokens = [False] * graph.n_ops, [False] * graph.n_ops
        for op in range(graph.n_ops):
            reads = graph.predecessors.row(op).tolist()
            given[op] = graph.op_types[op] == "input" or any(given[each] for each in reads)
            tokens[op] = any(tokens[each] for each in reads)
            tokens[op] |= "embedding" in graph.op_types[op] and any(given[each] for each in reads)
            if tokens[op] and graph.phases[op] == "forward" and known & {*above(graph.modules[op])}:
                return True
        return False

    def predicted(self) -> list[str]:
        """Layers for multi-token prediction: numbered ones, or one module."""
        numbered = [path for path in self.kind if MTP in path.lower() and path[-1].isdecimal()]
        outermost = self.modules(lambda path: path not in numbered)
        named = self.modules(lambda path: MTP not in path.lower())
        found = [path for path in outermost if path in numbered]
        return found or [path for path in named if MTP in path.lower()]

    def _forward(self) -> Iterator[int]:
        graph = self.graph
        return (op for op in range(graph.n_ops) if graph.phases[op] == "forward" and not graph.is_source[op])

    def _likely_kind(self, path: str, own: set[str]) -> str:
        children = self.children.get(path, [])
        is_list = children and all(child.rpartition(".")[2].isdecimal() for child in children)
        return LIST if is_list and path not in own else MODULE


def above(path: str) -> Iterator[str]:
    """Yields a path and the modules that it is in, outer ones first."""
    return (path[:at] for at in range(1, len(path) + 1) if path[at : at + 1] in ("", "."))


def list_of(path: str) -> str:
    """Returns the list that a layer is in: `layers` of `layers.3`, `layer` of `layer3`."""
    return path.rstrip(digits).removesuffix(".")


def _paths_of_ops(graph: OpGraph) -> Iterator[str]:
    """Yields paths of modules, outer ones first, of graphs without a tree with the numbers before them."""
    for path in dict.fromkeys(graph.modules):
        for part in above(path):
            parent, _, number = part.rpartition(".")
            if number.isdecimal() and len(number) < 5 and not graph.tree:
                yield from (f"{parent}.{before}".removeprefix(".") for before in range(int(number)))
            yield part
