"""Device maps for accelerate: a device of each module, and what placing by module path loses.

`accelerate.dispatch_model` moves the tensors of each module that the map names to its device and, when the
module is called, its arguments too. The inputs, the tensors of the model itself and, for each call, modules
on CPUs come to the main device, the first GPU of the map. What a module computes between its submodules runs
where its values are, and values on two devices cannot be combined. A tensor with several paths is tied again.
The eager module is taken to run the captured ops, and what `forward` makes on `x.device` to be where the
values of its module are.

So a map has fewer choices than a placement by module, which `Plan.compile` runs as it is: there an op between
submodules may have the device of one of them (`graphs.granularity`). A map counts such ops as moved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from agent.placing.handover.module_devices import ROOT, Keys, ModuleDevices, around, is_inside
from envs.cluster.cluster import Cluster
from envs.cluster.kinds import CPU_KINDS
from envs.objective import fastest_single
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.errors import InputError, in_ms

SCALAR_BYTES = 8


class DeviceMapError(InputError):
    """A graph that no device map can be made of; the message says why."""


@dataclass(frozen=True, eq=False)
class DeviceMap:
    """A placement by module path.

    Attributes:
        devices: what `accelerate.dispatch_model` takes: index of a GPU, or `cpu`, by the path of a module, or
            of a tensor of the model itself.
        device_names: the same by the names of the cluster.
        device_of: device index of each op when the map is run, int (n_ops,).
        n_changed: ops that run elsewhere than placed, parameters and inputs included.
        placed_s, total_s: simulated step of the placement and of the map, seconds.
        fits: whether that step fits; the hooks of accelerate hold copies longer than it does.
        advice: where one device is faster: a line that says so, with its map; else "".
    """

    devices: Mapping[str, int | str]
    device_names: Mapping[str, str]
    device_of: IntArray
    n_changed: int
    placed_s: float
    total_s: float
    fits: bool
    advice: str

    def __str__(self) -> str:
        memory = "" if self.fits else ", out of memory"
        changed = (
            "no op moves" if not self.n_changed else f"{self.n_changed:,} of {len(self.device_of):,} ops move"
        )
        return (
            f"device map: {changed}; a step takes {in_ms(self.total_s)} "
            f"(placed: {in_ms(self.placed_s)}){memory}\n{self.advice}"
        ).rstrip()


def project(problem: Problem, device_of: IntArray) -> DeviceMap:
    """Makes the device map nearest to a placement that accelerate can run.

    The coarsest modules whose ops share a device go there; of a module that is placed in parts and has
    tensors of its own, those go where most of its seconds are. Where an op would combine values of two
    devices, its module goes to one whole, or the modules that they come from join: what moves fewer seconds.

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
    named = accelerate_devices(problem.cluster)
    same = np.array([named.index(name) for name in named])  # accelerate knows one CPU
    is_cpu = [name == "cpu" for name in named]
    modules = ModuleDevices(graph, problem.op_seconds, same[device_of], is_cpu)
    keys = modules.keys()
    while not (run := _Run(graph, modules, keys)).is_settled:
        before, keys = keys, modules.keys()
        if keys == before:  # nothing in between helps
            modules.whole.add(ROOT)
            keys = modules.keys()
    placed, mapped = simulate_problem(problem, device_of), simulate_problem(problem, run.device_of)
    single, devices = fastest_single(problem), dict(_map_of(graph, modules, keys))
    is_faster = single.fits and not (mapped.fits and single.step_s >= mapped.total_s)
    one = f"one device is faster: {json.dumps({ROOT: named[single.device]})} takes {in_ms(single.step_s)}"
    return DeviceMap(
        devices={path: named[device] for path, device in devices.items()},
        device_names={path: problem.cluster.devices[device].name for path, device in devices.items()},
        device_of=run.device_of,
        n_changed=int((run.device_of != device_of).sum()),
        placed_s=placed.total_s,
        total_s=mapped.total_s,
        fits=mapped.fits,
        advice=one if is_faster else "",
    )


def _map_of(graph: OpGraph, modules: ModuleDevices, keys: Keys) -> Iterator[tuple[str, int]]:
    """Yields what accelerate must be told, by path.

    A split module with tensors of its own has a key, which puts hooks for its device on all below: so each of
    those has a key too. The tensors of the model itself have keys, as one of the model would do the same.
    """
    if len(set(keys.devices.values())) == 1:
        yield ROOT, keys.main
        return
    sources = [op for op in range(graph.n_ops) if graph.op_types[op] == "parameter"]
    tensors = {graph.op_names[op] for op in sources if not graph.modules[op]}
    tensors.update(path for paths in graph.tied for path in paths if "." not in path)
    yield from ((path, keys.main) for path in sorted(tensors - modules.bare))
    split = keys.devices.keys() & keys.split - {ROOT}
    below = [path for path in modules.stateful if split & set(around(path))]
    for path in dict.fromkeys([*keys.devices, *below]):
        key = keys.key_of(path)
        if path != ROOT and (path == key or not keys.is_cpu[keys.devices[key]]):
            yield path, keys.devices[key]


def accelerate_devices(cluster: Cluster) -> list[int | str]:
    """Names the devices of a cluster as accelerate does: `cpu`, or the index among the GPUs."""
    names: list[int | str] = []
    for device in cluster.devices:
        is_cpu = device.kind.startswith(CPU_KINDS)
        names.append("cpu" if is_cpu else sum(name != "cpu" for name in names))
    return names


class _Run:
    """The device of each op under a device map; where values of two devices would meet, `modules` changes.

    Attributes:
        device_of: int64 (n_ops,).
        is_settled: whether accelerate runs the map.
    """

    def __init__(self, graph: OpGraph, modules: ModuleDevices, keys: Keys) -> None:
        self.graph, self.modules = graph, modules
        self.keys = Keys(dict(keys.devices), set(keys.split), keys.main, keys.is_cpu)
        self.is_settled = True
        self.paths = {paths[0]: [path.rpartition(".")[0] for path in paths] for paths in graph.tied}
        self.device_of = np.full(graph.n_ops, -1, dtype=np.int64)
        self.came_from: list[frozenset[str]] = [frozenset()] * graph.n_ops
        self.values: dict[str, dict[str, frozenset[str]]] = {}
        forward: dict[str, int] = {}
        for op, path in enumerate(graph.modules):
            if graph.is_source[op]:
                key = ROOT if graph.op_types[op] == "input" else keys.key_of(path)
                self.device_of[op], self.came_from[op] = keys.devices[key], frozenset({key})
            elif graph.phases[op] == "forward":
                self._run(op, path)
                forward[path] = int(self.device_of[op])
            else:
                self._follow(op, path, forward)
        # Scalars can be read anywhere.
        for op in np.flatnonzero(self.device_of < 0)[::-1].tolist():
            readers = graph.successors.row(op)
            self.device_of[op] = self.device_of[readers[0]] if len(readers) else keys.main

    def _run(self, op: int, path: str) -> None:
        """Places a forward op; what is made of constants or inputs may be where its module's values are."""
        key = self.keys.key_of(path)
        came_from = frozenset(self._origins(op, path, key))
        if came_from <= {ROOT} and self.graph.tensor_bytes[self.graph.outputs.row(op)].sum() > SCALAR_BYTES:
            values = (self.values.get(module) for module in around(path))
            came_from = came_from.union(*next(filter(None, values), {"first": {ROOT}}).values())
        if len(self._devices(came_from)) > 1:
            came_from = self._settle(path, key, came_from)
        for module in around(path) if came_from else ():
            self.values.setdefault(module, {"first": came_from})["own" if module == path else "inner"] = (
                came_from
            )
        self.came_from[op] = came_from
        self.device_of[op] = next(iter(self._devices(came_from)), -1)

    def _devices(self, came_from: frozenset[str]) -> set[int]:
        return {self.keys.runs_on(self.keys.key_of(path)) for path in came_from}

    def _origins(self, op: int, path: str, key: str) -> Iterator[str]:
        """Yields the modules of the map that put the values that an op reads, or the op, where they are."""
        is_whole = key not in self.keys.split
        hooked = path if key != ROOT and path in self.modules.stateful else key
        if is_whole:
            yield key
        for producer in self.graph.predecessors.row(op).tolist():
            module = self.graph.modules[producer]
            if self.graph.op_types[producer] == "parameter":
                yield self._owner(producer, key)
            elif not is_whole:
                yield from self.came_from[producer] if is_inside(module, hooked) else (key,)

    def _owner(self, source: int, key: str) -> str:
        """Returns the module of the map that holds a tensor, which no hook moves to another module."""
        path = self.graph.modules[source]
        owners = [self.keys.key_of(called) for called in self.paths.get(self.graph.op_names[source], [path])]
        if key in owners:
            return key
        if self.keys.is_cpu[self.keys.devices[owners[0]]] and self.keys.main != self.keys.devices[owners[0]]:
            self._join(frozenset({owners[0], ROOT}))  # weights wait on the CPU until their module is called
        return owners[0]

    def _settle(self, path: str, key: str, came_from: frozenset[str]) -> frozenset[str]:
        whole_s, device = self.modules.cost_of_whole(path)
        joined_s, _ = self.modules.cost_of_joining(self.modules.joined(came_from, self.keys), self.keys)
        can_be_whole = path and key in self.keys.split and path not in self.modules.bare
        if not can_be_whole or joined_s < whole_s:
            return self._join(came_from)
        self.is_settled = False
        self.modules.whole.add(path)
        self.keys.devices[path] = device
        self.keys.split.discard(path)
        return frozenset({path})

    def _join(self, came_from: frozenset[str]) -> frozenset[str]:
        self.is_settled = False
        self.modules.join(came_from)
        joined = self.modules.joined(came_from, self.keys)
        self.keys.devices |= dict.fromkeys(joined, self.modules.cost_of_joining(joined, self.keys)[1])
        return came_from

    def _follow(self, op: int, path: str, forward: Mapping[str, int]) -> None:
        """A backward op runs where the forward pass of its module ran, an update where its parameter is."""
        key = self.keys.key_of(path)
        is_backward = self.graph.phases[op] == "backward"
        self.device_of[op] = self.keys.runs_on(key) if is_backward else self.keys.devices[key]
        if is_backward and key in self.keys.split:
            reads = self.device_of[self.graph.predecessors.row(op)]
            sources = [forward.get(path, -1), *reads.tolist(), self.keys.main]
            self.device_of[op] = next(device for device in sources if device >= 0)
