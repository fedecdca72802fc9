"""A device of each module: that on which most of its seconds are placed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable

import numpy as np

from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

TINY_S = 1e-15
"""Seconds that an op without time counts, so that modules of parameters alone have a device."""


class ModuleDevices:
    """The modules of a graph as a tree, with the seconds that each has on each device.

    Args:
        op_seconds: (n_ops, n_devices).
        device_of: device index of each op, int64 (n_ops,).

    Attributes:
        whole: modules that go to one device with all that is in them.
    """

    def __init__(self, graph: OpGraph, op_seconds: FloatArray, device_of: IntArray) -> None:
        self.whole: set[str] = set()
        self._groups: list[set[str]] = []
        n_devices = op_seconds.shape[1]
        self._own: dict[str, FloatArray] = defaultdict(lambda: np.zeros(n_devices))
        self._children: dict[str, dict[str, None]] = defaultdict(dict)
        self._holds: set[str] = set()
        for op, device in enumerate(device_of.tolist()):
            path = graph.modules[op]
            if graph.op_types[op] == "input":
                continue
            self._own[path][device] += max(float(op_seconds[op, device]), TINY_S)
            if graph.op_types[op] == "parameter":
                self._holds.add(path)
            while path:
                parent = path.rpartition(".")[0]
                self._children[parent][path] = None
                path = parent

    def join(self, paths: Iterable[str]) -> None:
        """Makes some modules share a device from now on, with all that they share one with already."""
        joined = set(paths)
        for group in [group for group in self._groups if group & joined]:
            joined |= group
            self._groups.remove(group)
        self._groups.append(joined)

    def keys(self) -> dict[str, int]:
        """Device of each module that a map must name; parameters below take that of the longest path."""
        keys = self._keys_below("")
        merged: list[set[str]] = []
        for group in self._groups:
            members = {key for path in group if (key := longest_prefix(path, keys)) is not None}
            members |= {key for key in keys for path in group if key.startswith(f"{path}.")}
            for other in [other for other in merged if other & members]:
                members |= other
                merged.remove(other)
            merged.append(members)
        for members in merged:
            seconds = sum((self._seconds(key) for key in members), np.zeros(1))
            keys |= dict.fromkeys(members, int(np.argmax(seconds)))
        return keys

    def _keys_below(self, path: str) -> dict[str, int]:
        seconds = self._seconds(path)
        if path in self.whole or np.count_nonzero(seconds) == 1 or not self._children[path]:
            return {path: int(np.argmax(seconds))}
        keys = {path: int(np.argmax(self._own[path]))} if path in self._holds else {}
        for child in self._children[path]:
            keys |= self._keys_below(child)
        return keys

    def _seconds(self, path: str) -> FloatArray:
        """Seconds of a module with all that is in it on each device, (n_devices,)."""
        total: FloatArray = self._own[path].copy()
        for child in self._children[path]:
            total += self._seconds(child)
        return total


def longest_prefix(path: str, keys: Container[str]) -> str | None:
    """Returns the innermost of the modules that a path is in, None if it is in none."""
    while path not in keys:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path
