"""A device of each module: that on which most of its seconds are placed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

TINY_S = 1e-15
"""Seconds that an op without time counts, so that modules of parameters alone have a device."""
ROOT = ""


@dataclass
class Keys:
    """The modules that a map must name; what is below one, but in no other, has its device.

    Attributes:
        devices: device of each, of split ones that of their own tensors; the model itself is always one.
        split: modules with others below.
        main: first GPU of the map, for inputs, tensors of the model itself and ops of modules on CPUs.
        is_cpu: whether each device is a CPU.
    """

    devices: dict[str, int]
    split: set[str]
    main: int
    is_cpu: Sequence[bool]

    def key_of(self, path: str) -> str:
        """Returns the innermost of the modules that a path is in."""
        return next(inside for inside in around(path) if inside in self.devices)

    def runs_on(self, key: str) -> int:
        """Returns the device on which accelerate runs a module; weights on a CPU come to the main device."""
        device = self.devices[key]
        return self.main if self.is_cpu[device] else device


class ModuleDevices:
    """The modules of a graph as a tree, with the seconds that each has on each device.

    Args:
        op_seconds: (n_ops, n_devices).
        device_of: device index of each op, int64 (n_ops,).
        is_cpu: of each device.

    Attributes:
        whole: modules that go to one device with all that is in them.
        stateful: modules with tensors of their own or in them, to which accelerate adds hooks.
        bare: modules without tensors that are registered several times: a hook on one is on all.
    """

    def __init__(
        self, graph: OpGraph, op_seconds: FloatArray, device_of: IntArray, is_cpu: Sequence[bool]
    ) -> None:
        self.whole: set[str] = set()
        self.stateful: set[str] = set()
        self._groups: list[set[str]] = []
        self._is_cpu = is_cpu
        self._own: dict[str, FloatArray] = defaultdict(lambda: np.zeros(len(is_cpu)))
        self._total: dict[str, FloatArray] = defaultdict(lambda: np.zeros(len(is_cpu)))
        self._children: dict[str, dict[str, None]] = defaultdict(dict)
        self._holds: set[str] = set()
        placed: dict[str, int] = {}
        for op, device in enumerate(device_of.tolist()):
            if graph.op_types[op] == "parameter":
                placed[graph.op_names[op]] = device
                self._hold(graph.modules[op], device)
            elif graph.op_types[op] != "input":
                self._add(graph.modules[op], device, float(op_seconds[op, device]))
        for paths in graph.tied:
            if paths[0] in placed:
                parents = {path.rpartition(".")[0] for path in paths}
                for parent in parents:
                    self._hold(parent, placed[paths[0]])
                self.join(parents)
        self.bare = {path for paths in graph.tied for path in paths if paths[0] not in placed}

    def _hold(self, path: str, device: int) -> None:
        self._holds.add(path)
        self.stateful.update(around(path))
        self._add(path, device, 0.0)

    def _add(self, path: str, device: int, seconds: float) -> None:
        self._own[path][device] += max(seconds, TINY_S)
        for inside in around(path):
            self._total[inside][device] += max(seconds, TINY_S)
            if inside:
                self._children[inside.rpartition(".")[0]][inside] = None

    def join(self, paths: Iterable[str]) -> None:
        """Makes some modules share a device from now on, with all that they share one with already."""
        joined = set(paths)
        for group in [group for group in self._groups if group & joined]:
            joined |= group
            self._groups.remove(group)
        self._groups.append(joined)

    def keys(self) -> Keys:
        """Finds the coarsest modules that are on one device each, and those with tensors between them."""
        devices = self._keys_below(ROOT)
        split = {above for key in devices for above in list(around(key))[1:]}
        keys = Keys(devices, split, devices.setdefault(ROOT, self.cost_of_whole(ROOT)[1]), self._is_cpu)
        groups = [self.joined(paths, keys) for paths in self._groups]
        for group in groups:
            devices |= dict.fromkeys(group, int(np.argmax(self._seconds(group, split))))
        if split:
            used = [device for key, device in devices.items() if key != ROOT]
            keys.main = min(used, key=lambda device: (self._is_cpu[device], device))
            for group in [*({key} for key in split & devices.keys()), *groups]:
                devices |= dict.fromkeys(group, self.cost_of_joining(group, keys)[1])
        return keys

    def joined(self, paths: Iterable[str], keys: Keys) -> set[str]:
        """Returns the modules of a map that share a device if some do."""
        joined = {keys.key_of(path) for path in paths}
        groups = [{keys.key_of(path) for path in group} for group in self._groups]
        while near := [group for group in groups if group & joined and not group <= joined]:
            joined.update(*near)
        return joined

    def cost_of_joining(self, group: Set[str], keys: Keys) -> tuple[float, int]:
        """Returns the seconds that change their device if modules of a map share one, and that device."""
        seconds = self._seconds(group, keys.split)
        device = int(np.argmax(seconds))
        # Weights that wait on a CPU cannot have hooks for other devices below.
        if ROOT in group & keys.split or (self._is_cpu[device] and group & keys.split):
            device = keys.main
        return float(seconds.sum() - seconds[device]), device

    def cost_of_whole(self, path: str) -> tuple[float, int]:
        """Returns the seconds that change their device if a module is on one, and that device."""
        seconds = self._total[path]
        return float(seconds.sum() - seconds.max()), int(np.argmax(seconds))

    def _keys_below(self, path: str) -> dict[str, int]:
        if path in self.bare:
            return {}
        seconds = self._total[path]
        if path in self.whole or np.count_nonzero(seconds) == 1 or not self._children[path]:
            return {path: int(np.argmax(seconds))}
        keys = {path: int(np.argmax(self._own[path]))} if path in self._holds else {}
        for child in self._children[path]:
            keys |= self._keys_below(child)
        return keys

    def _seconds(self, group: Iterable[str], split: Container[str]) -> FloatArray:
        """Seconds of modules on each device, of split ones without their submodules; (n_devices,)."""
        parts = [self._own[key] if key in split else self._total[key] for key in sorted(group)]
        return np.asarray(np.sum(parts, axis=0), dtype=np.float64)


def around(path: str) -> Iterator[str]:
    """Yields a module path and those of the modules around it, the model itself last."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def is_inside(path: str, module: str) -> bool:
    """Says whether a module is another one or in it."""
    return not module or path == module or path.startswith(f"{module}.")
