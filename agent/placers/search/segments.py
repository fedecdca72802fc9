"""Units that annealing moves together: segments of sequences of all units, and whole modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agent.placers.units import units_by_layer, units_by_program
from graphs.granularity import module_paths
from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray


class Segments(NamedTuple):
    """Units that move together, as the kernels read them; arrays are int64.

    In the last sequence the units of a module, with those of the modules in it, lie side by side. So do all
    calls of a module, forward and backward: those of a recurrent layer run all over the step.
    """

    sequences: IntArray  # (n_sequences, n_units)
    positions: IntArray  # (n_sequences, n_units) position of each unit in a sequence
    module_ptr: IntArray  # (n_units + 1,) modules that a unit is in, outermost first
    module_item: IntArray
    module_first: IntArray  # (n_modules,) position of its first unit in the last sequence
    module_end: IntArray  # (n_modules,) and that after its last


def segments_of(graph: OpGraph) -> Segments:
    """Lays out the units in program order, by layers and by modules.

    A module counts if it holds several units, but not all. Graphs without module paths have none.
    """
    paths = _module_paths(graph)
    rank = {path: at for at, path in enumerate(sorted(set(paths)))}
    by_path = np.argsort(np.array([rank[path] for path in paths], dtype=np.int64), kind="stable")
    sequences = np.stack([units_by_program(graph), units_by_layer(graph), by_path])
    positions = np.argsort(sequences, axis=1)
    modules, first, end = _modules(paths, positions[-1])
    return Segments(sequences, positions, modules.ptr, modules.items, first, end)


def _module_paths(graph: OpGraph) -> list[tuple[int, ...]]:
    """Numbers of the modules that each unit's first computing op is in, outermost first.

    Modules count up in program order, so paths sort in it.
    """
    names = module_paths(graph)
    compute_first = np.lexsort([np.arange(graph.n_ops), ~graph.is_compute])
    leader = np.empty(len(graph.units), dtype=np.int64)
    leader[graph.unit_of[compute_first[::-1]]] = compute_first[::-1]
    number: dict[str, int] = {}
    numbered = {path: _numbered(path, number) for path in dict.fromkeys(names[op] for op in leader)}
    return [numbered[names[op]] for op in leader]


def _numbered(path: str, number: dict[str, int]) -> tuple[int, ...]:
    parts = path.split(".") if path else []
    outer = (".".join(parts[: depth + 1]) for depth in range(len(parts)))
    return tuple(number.setdefault(module, len(number)) for module in outer)


def _modules(paths: Sequence[tuple[int, ...]], position: IntArray) -> tuple[Csr, IntArray, IntArray]:
    """Finds the modules that each unit is in, and where each begins and ends in the sequence by modules."""
    n_units = len(paths)
    units = np.repeat(np.arange(n_units), [len(path) for path in paths])
    modules = np.array([module for path in paths for module in path], dtype=np.int64)
    n_modules = modules.max(initial=-1) + 1
    first, end = np.full(n_modules, n_units), np.zeros(n_modules, dtype=np.int64)
    np.minimum.at(first, modules, position[units])
    np.maximum.at(end, modules, position[units] + 1)
    counts = (end - first > 1) & (end - first < n_units)
    return Csr.from_pairs(units[counts[modules]], modules[counts[modules]], n_units), first, end
