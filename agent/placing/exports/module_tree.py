"""The modules of a model as the targets of exports see them: what they cut, and what they count as layers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import networkx as nx

from graphs.granularity import blocks
from graphs.op_graph import OpGraph

MTP = "mtp"
"""Part of the paths of modules for multi-token prediction."""


class ModuleTree:
    """The modules of a graph's model: its `tree`, or without one those of its ops.

    Attributes:
        children: paths of the modules in each module, in the order of registration.
        layers: numbered modules that repeat.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph, self.layers = graph, blocks(graph)
        self.forward = [
            op for op in range(graph.n_ops) if graph.phases[op] == "forward" and not graph.is_source[op]
        ]
        self.children: dict[str, list[str]] = defaultdict(list)
        parts = (part for path in graph.modules for part in above(path))
        for path in filter(None, dict.fromkeys([*graph.tree, *parts])):
            self.children[path.rpartition(".")[0]].append(path)
        self._own = {graph.modules[op] for op in self.forward}
        self._holders = {part for path in self.layers for part in above(path)} - self.layers

    def is_called(self, path: str) -> bool:
        """Says whether a module has a forward pass; without a `tree`, lists are guessed."""
        numbered = [child.rpartition(".")[2].isdecimal() for child in self.children.get(path, ())]
        return self.graph.tree.get(path, path in self._own or not numbered or not all(numbered))

    def opens(self, path: str) -> bool:
        """Says whether a module is cut between its parts: it holds layers, or runs its parts alone."""
        return path not in self.layers and (path in self._holders or path not in self._own)

    def modules(self, opens: Callable[[str], bool]) -> list[str]:
        """Outermost modules that a target does not open, in the order of registration; no empty lists."""
        modules, left = [], self.children[""][::-1]
        while left:
            path = left.pop()
            children = self.children.get(path, [])
            if children and opens(path):
                left += children[::-1]
            elif children or self.is_called(path):
                modules.append(path)
        return modules

    def ops(self, modules: Sequence[str]) -> dict[str, list[int]]:
        """Forward ops that compute by module, in program order; one without has those before it."""
        paths, ops_of = set(modules), dict[str, list[int]]()
        for op in self.forward:
            if module := next((path for path in above(self.graph.modules[op]) if path in paths), None):
                ops_of.setdefault(module, []).append(op)
        order = list(ops_of)
        for number, path in enumerate(modules):
            if path not in ops_of:
                order.insert(order.index(modules[number - 1]) + 1 if number else 0, path)
        last = next(iter(ops_of.values()), self.forward[:1])
        return {path: (last := ops_of.get(path, last)) for path in order}

    def lists(self, names: str) -> dict[str, list[str]]:
        """The layers of lists that are named, `layer3` in `layer`, or of all that repeat, by path."""
        if names:
            paths = [path for paths in self.children.values() for path in paths]
            named = {name: re.compile(rf"{re.escape(name)}(\.[^.]+|\d+)") for name in names.split(",")}
            return {name: [*filter(pattern.fullmatch, paths)] for name, pattern in named.items()}
        layers = [path for path in self.modules(lambda path: path not in self.layers) if path in self.layers]
        parents = dict.fromkeys(path.rpartition(".")[0] for path in layers)
        return {name: self.children[name] for name in parents if MTP not in name.lower()}

    def of_language(self, lists: dict[str, list[str]]) -> dict[str, list[str]]:
        """The lists that read what is looked up for an input, as those of language models do."""
        view, kinds = self.graph.to_networkx(), self.graph.op_types
        inputs = {op for op, kind in enumerate(kinds) if kind == "input"}
        lookups = [op for op in self.forward if "embedding" in kinds[op]]
        looked_up = [op for op in lookups if inputs & nx.ancestors(view, op)]
        after = set[int]().union(*(nx.descendants(view, op) for op in looked_up))
        return {
            name: layers
            for name, layers in lists.items()
            if any(not after.isdisjoint(ops) for ops in self.ops(layers).values())
        }

    def predicted(self) -> list[str]:
        """Layers for multi-token prediction: numbered modules, or one."""
        leaves = self.modules(lambda path: MTP not in path.lower() or not path[-1].isdecimal())
        predicting = [path for path in leaves if MTP in path.lower()]
        return [path for path in predicting if path[-1].isdecimal()] or predicting[:1]


def above(path: str) -> Iterator[str]:
    """Yields a path and the modules that it is in, outer ones first."""
    return (path[:end] for end in range(1, len(path) + 1) if path[end : end + 1] in ("", "."))
