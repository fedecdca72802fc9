"""Device maps for accelerate: a device of each module, and what placing by module path loses.

`accelerate.dispatch_model` moves the parameters of each module that the map names to its device and, when the
module is called, its arguments too; the longest path wins. What a module computes between its submodules runs
where its values are, and values on two devices cannot be combined.

So a map has fewer choices than a placement by module, which `Plan.compile` runs as it is: there an op between
submodules may have the device of one of them (`graphs.branches`). A map counts such ops as moved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agent.evaluation.handover.module_devices import ModuleDevices, longest_prefix
from envs.cluster.cluster import Cluster
from envs.cluster.kinds import CPU_KINDS
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.errors import InputError
from graphs.system.numbers import in_ms


class DeviceMapError(InputError):
    """A graph that no device map can be made of; the message says why."""


@dataclass(frozen=True, eq=False)
class DeviceMap:
    """A placement by module path.

    Attributes:
        devices: what `accelerate.dispatch_model` takes: index of a GPU, or `cpu`, by module path.
        device_names: the same by the names of the cluster.
        device_of: device index of each op when the map is run, int (n_ops,).
        n_changed: ops that run elsewhere than placed, parameters and inputs included.
        placed_s, total_s: simulated step of the placement and of the map, seconds.
    """

    devices: Mapping[str, int | str]
    device_names: Mapping[str, str]
    device_of: IntArray
    n_changed: int
    placed_s: float
    total_s: float
    fits: bool

    def __str__(self) -> str:
        memory = "" if self.fits else ", out of memory"
        changed = (
            "no op moves" if not self.n_changed else f"{self.n_changed:,} of {len(self.device_of):,} ops move"
        )
        return (
            f"device map: {changed}; a step takes {in_ms(self.total_s)} "
            f"(placed: {in_ms(self.placed_s)}){memory}"
        )


def project(problem: Problem, device_of: IntArray) -> DeviceMap:
    """Makes the device map nearest to a placement that accelerate can run.

    The coarsest modules whose ops share a device go there; of a module that is placed in parts and has
    parameters of its own, those go where most of its seconds are. Where an op would combine values of two
    devices, its module goes to one device whole or, if all of them come from its submodules, those join.

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.

    Raises:
        DeviceMapError: the ops have no module paths.
    """
    graph = problem.graph
    if not any(graph.modules):
        raise DeviceMapError(
            f"graph '{graph.name}': its ops have no module paths; no device map can name them"
        )
    modules = ModuleDevices(graph, problem.op_seconds, device_of)
    keys = modules.keys()
    run = _Run(graph, keys)
    while run.whole or run.joined:
        modules.whole |= run.whole
        for paths in run.joined:
            modules.join(paths)
        before, keys = keys, modules.keys()
        if keys == before:  # nothing in between helps
            modules.whole.add("")
            keys = modules.keys()
        run = _Run(graph, keys)
    placed, mapped = simulate_problem(problem, device_of), simulate_problem(problem, run.device_of)
    named = accelerate_devices(problem.cluster)
    return DeviceMap(
        devices={path: named[device] for path, device in keys.items()},
        device_names={path: problem.cluster.devices[device].name for path, device in keys.items()},
        device_of=run.device_of,
        n_changed=int((run.device_of != device_of).sum()),
        placed_s=placed.total_s,
        total_s=mapped.total_s,
        fits=mapped.fits,
    )


def accelerate_devices(cluster: Cluster) -> list[int | str]:
    """Names the devices of a cluster as accelerate does: `cpu`, or the index among the GPUs."""
    names: list[int | str] = []
    for device in cluster.devices:
        is_cpu = device.kind.startswith(CPU_KINDS)
        names.append("cpu" if is_cpu else sum(name != "cpu" for name in names))
    return names


class _Run:
    """The device of each op under a device map, and the ops that would combine values of two devices.

    Attributes:
        device_of: int64 (n_ops,).
        whole: modules that are to be placed whole, since they combine a value from outside with one of a
            submodule that is elsewhere.
        joined: paths of the map that are to share a device.
    """

    def __init__(self, graph: OpGraph, keys: Mapping[str, int]) -> None:
        self.graph, self.keys = graph, keys
        self.whole: set[str] = set()
        self.joined: list[frozenset[str]] = []
        self.key_of = {path: longest_prefix(path, keys) for path in set(graph.modules)}
        self.split = _containers(keys)
        self.main = min(keys.values())
        self.device_of = np.full(graph.n_ops, -1, dtype=np.int64)
        self.came_from: list[frozenset[str]] = [frozenset()] * graph.n_ops
        forward: dict[str, int] = {}
        for op in range(graph.n_ops):
            path = graph.modules[op]
            if graph.phases[op] == "forward":
                self._run(op)
                forward[path] = int(self.device_of[op])
            else:
                self._follow(op, forward)
        self._settle_inputs()

    def _run(self, op: int) -> None:
        path = self.graph.modules[op]
        key = self.key_of[path]
        if self.graph.op_types[op] == "input":
            return
        if key is not None and (path not in self.split or self.graph.is_source[op]):
            self.device_of[op], self.came_from[op] = self.keys[key], frozenset({key})
            return
        seconds: Counter[int] = Counter()
        came_from: set[str] = set()
        for producer in self.graph.predecessors.row(op).tolist():
            inside = key is None or _is_in(self.graph.modules[producer], key)
            device = int(self.device_of[producer]) if inside else self.keys[key or ""]
            if device >= 0:
                seconds[device] += 1
                came_from |= self.came_from[producer] if inside else {key or ""}
        if len(seconds) > 1:
            self._settle(path, frozenset(came_from))
        # What is made of inputs and constants alone can be made where it is read.
        self.device_of[op] = seconds.most_common(1)[0][0] if seconds else -1
        self.came_from[op] = frozenset(came_from)

    def _settle(self, path: str, came_from: frozenset[str]) -> None:
        if all(key != path and _is_in(key, path) for key in came_from):
            self.joined.append(came_from)
        else:
            self.whole.add(path)

    def _follow(self, op: int, forward: Mapping[str, int]) -> None:
        """A backward op runs where the forward pass of its module ran, an update where its parameter is."""
        path = self.graph.modules[op]
        key = self.key_of[path]
        reads = [at for at in self.graph.predecessors.row(op).tolist() if self.device_of[at] >= 0]
        if key is not None:
            self.device_of[op] = self.keys[key]
        if path in forward and (key is None or path in self.split) and self.graph.phases[op] == "backward":
            self.device_of[op] = forward[path]
        if self.device_of[op] < 0:
            self.device_of[op] = self.device_of[reads[0]] if reads else self.main

    def _settle_inputs(self) -> None:
        """Inputs and constants are where they are read first."""
        for op in np.flatnonzero(self.device_of < 0)[::-1].tolist():
            readers = self.graph.successors.row(op)
            self.device_of[op] = self.device_of[readers[0]] if len(readers) else self.main


def _containers(keys: Mapping[str, int]) -> set[str]:
    """Returns the modules above the paths of a map, "" among them."""
    above = defaultdict[str, int](int)
    for key in keys:
        parts = key.split(".")
        for count in range(len(parts)):
            above[".".join(parts[:count])] += 1
    return set(above) - ({""} if set(keys) == {""} else set())


def _is_in(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")
