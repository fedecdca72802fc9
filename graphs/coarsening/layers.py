"""Boundaries in program order where a graph can be cut: layers, time steps of unrolled layers, modules."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray

LAYER, STEP, MODULE, INSIDE = range(4)
"""Boundaries between two ops, the best place to cut first; `INSIDE` is none."""


class Layers:
    """The layer, time step and module of each op, as numbers that are equal where they are the same.

    A layer is a module path up to its first number (`decoder.cells.0` of `decoder.cells.0.ih`); of a path
    without one, the module around it if it has no modules itself. All steps of an unrolled layer run the same
    modules, so the step is the number of the call in a captured op's name (`decoder.cells.0.ih@3`). Phases
    share no layer.

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

    def boundaries(self, ops: IntArray) -> IntArray:
        """Returns the boundary between each op, int (n,), and the next, int (n - 1,): `LAYER` to `INSIDE`."""
        before, after = ops[:-1], ops[1:]
        levels = (self.layer, self.step, self.module)
        return np.select([of[before] != of[after] for of in levels], [LAYER, STEP, MODULE], INSIDE)


def layer_of(path: str, has_modules: bool) -> str:
    """Returns the path of the layer that a module belongs to.

    Args:
        has_modules: whether ops run in modules inside it.
    """
    parts = path.split(".")
    for depth, part in enumerate(parts, 1):
        if part.isdecimal():
            return ".".join(parts[:depth])
    return path if has_modules or len(parts) == 1 else ".".join(parts[:-1])


def _paths_around(paths: Iterable[str]) -> set[str]:
    """Every module path that has another one inside."""
    around: set[str] = set()
    for path in set(paths):
        parts = path.split(".")
        around.update(".".join(parts[:depth]) for depth in range(1, len(parts)))
    return around


def _call(op_name: str, module: str) -> str:
    """The number of the call of its module that an op is from, as its name says; empty for the first."""
    _, _, rest = op_name.partition(f"{module}@") if "@" in op_name else ("", "", "")
    return rest.partition("/")[0]


def _numbered(keys: Iterable[object]) -> IntArray:
    number: dict[object, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
