"""The stages of a placed graph: contiguous parts of its forward pass, each on one device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from envs.cluster.cluster import Cluster
from envs.pipeline.pipeline import PipelineError
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.errors import shortened

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, eq=False)
class Stages:
    """A placement cut into stages.

    Attributes:
        device_of: device of each op, int64 (n_ops,).
        stage_of: stage of each forward and backward op, int64 (n_ops,); -1 for all others.
        devices: device of each stage, int64 (n_stages,).
        recomputed: stages whose forward ops run again before each backward action, ascending.
        groups: devices of each replica of the pipeline, as in `Placement`; empty = one replica.
    """

    device_of: IntArray
    stage_of: IntArray
    devices: IntArray
    recomputed: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def ranks(self) -> IntArray:
        """The devices of stages, in the order of their first stage, int64 (n_ranks,)."""
        _, first = np.unique(self.devices, return_index=True)
        return np.take(self.devices, np.sort(first))

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each replica in the order of `ranks`; those of the first one are `ranks`."""
        ranks = self.ranks.tolist()
        places = [self.groups[0].index(device) for device in ranks] if self.groups else []
        return tuple(tuple(group[place] for place in places) for group in self.groups) or (tuple(ranks),)

    @property
    def placement(self) -> Placement:
        """The same as what a placement file holds."""
        return Placement(self.device_of, self.stage_of, self.recomputed, self.groups)


def stages_of(problem: Problem, placement: Placement) -> Stages:
    """Cuts a placement into stages, with their recomputation.

    Raises:
        PipelineError: see `cut_into_stages`; or a stage does not exist.
    """
    stages = cut_into_stages(problem, placement.device_of, placement.stage_of)
    n_stages = len(stages.devices)
    for stage in placement.recompute:
        if not 0 <= stage < n_stages:
            raise PipelineError(f"there is no stage {stage}; the stages are 0 to {n_stages - 1}")
    return replace(stages, recomputed=placement.recompute, groups=placement.groups)


def phases_of(graph: OpGraph) -> IntArray:
    """Returns the phase of each op by its index in `PHASES`, -1 for parameters and inputs; int64 (n_ops,)."""
    phases = np.array([PHASES.index(phase) for phase in graph.phases], dtype=np.int64)
    return np.where(graph.is_source, -1, phases)


def cut_into_stages(problem: Problem, device_of: IntArray, stage_of: IntArray | None = None) -> Stages:
    """Cuts a placement into stages.

    Args:
        device_of: device of each op, int64 (n_ops,).
        stage_of: stage of each op, int64 (n_ops,), -1 where none is given: every forward op needs one, and a
            backward op may have one. By default, each device is one stage.

    Raises:
        PipelineError: a tensor flows back to an earlier stage, a stage is on two devices, an op has no stage,
            its device holds none, or the cluster cannot run a pipeline.
    """
    graph = problem.graph
    check_cluster(problem.cluster)
    phase = phases_of(graph)
    forward = np.flatnonzero(phase == 0)
    if not len(forward):
        raise PipelineError(f"graph '{shortened(graph.name)}' has no forward ops; a pipeline needs some")
    number = _by_device(device_of, forward) if stage_of is None else stage_of[forward]
    _check_numbers(graph, forward, number)
    stages = np.full(graph.n_ops, -1, dtype=np.int64)
    stages[forward] = number
    n_stages = int(number.max()) + 1
    devices = np.full(n_stages, -1, dtype=np.int64)
    devices[number[::-1]] = device_of[forward[::-1]]
    _check_devices(problem, device_of, devices, forward, number)
    backward = np.flatnonzero(phase == 1)
    stages[backward] = _stages_of_backward(problem, device_of, stages, devices, backward)
    if stage_of is not None:
        _take_given(problem, device_of, stage_of, devices, backward, stages)
    _check_direction(graph, stages, phase, device_of)
    return Stages(np.ascontiguousarray(device_of, dtype=np.int64), stages, devices)


def check_cluster(cluster: Cluster) -> None:
    """Checks that pipelined steps on the cluster can be simulated.

    Raises:
        PipelineError: the schedule of its devices, or the streams of its copies, are none that they have.
    """
    where = f"cluster '{shortened(cluster.name)}'"
    if cluster.schedule != "program":
        raise PipelineError(f"{where} has schedule '{cluster.schedule}'; a pipeline needs 'program'")
    if cluster.copies != "stream":
        raise PipelineError(f"{where} has '{cluster.copies}' copies; a pipeline needs 'stream'")


def _by_device(device_of: IntArray, forward: IntArray) -> IntArray:
    """Numbers the devices by their first forward op; stage of each forward op."""
    _, first, which = np.unique(device_of[forward], return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[which]


def _check_numbers(graph: OpGraph, forward: IntArray, number: IntArray) -> None:
    if (number < 0).any():
        op = forward[int(np.argmax(number < 0))]
        raise PipelineError(f"op '{shortened(graph.op_names[op])}' has no stage; give every forward op one")
    missing = np.setdiff1d(np.arange(number.max() + 1), number)
    if len(missing):
        raise PipelineError(f"stage {missing[0]} has no forward ops; number stages from 0 without a gap")


def _check_devices(
    problem: Problem, device_of: IntArray, devices: IntArray, forward: IntArray, number: IntArray
) -> None:
    apart = device_of[forward] != devices[number]
    if apart.any():
        index = int(np.argmax(apart))
        names = [problem.cluster.devices[d].name for d in (devices[number[index]], device_of[forward[index]])]
        op = shortened(problem.graph.op_names[forward[index]])
        raise PipelineError(
            f"stage {number[index]} is on '{names[0]}', but its op '{op}' is on '{names[1]}'; "
            "a stage has one device"
        )


def _stages_of_backward(
    problem: Problem, device_of: IntArray, stages: IntArray, devices: IntArray, backward: IntArray
) -> IntArray:
    """Finds the stages of the backward ops: that of a colocated forward op, else the last of the device."""
    graph = problem.graph
    last_on = np.full(problem.n_devices, -1, dtype=np.int64)
    np.maximum.at(last_on, devices, np.arange(len(devices)))
    of_unit = np.full(len(graph.units), -1, dtype=np.int64)
    forward = np.flatnonzero(stages >= 0)
    of_unit[graph.unit_of[forward[::-1]]] = stages[forward[::-1]]
    colocated = of_unit[graph.unit_of[backward]]
    stage = np.where(colocated >= 0, colocated, last_on[device_of[backward]])
    if (stage < 0).any():
        op = backward[int(np.argmax(stage < 0))]
        device = problem.cluster.devices[device_of[op]].name
        raise PipelineError(
            f"backward op '{shortened(graph.op_names[op])}' is on '{device}', which has no stage; place it "
            "where there are forward ops"
        )
    return stage


def _take_given(
    problem: Problem,
    device_of: IntArray,
    stage_of: IntArray,
    devices: IntArray,
    backward: IntArray,
    stages: IntArray,
) -> None:
    """Puts backward ops into the stages that are given for them; writes `stages`."""
    named = backward[stage_of[backward] >= 0]
    wrong = stage_of[named] >= len(devices)
    wrong[~wrong] = devices[stage_of[named[~wrong]]] != device_of[named[~wrong]]
    if wrong.any():
        op = named[int(np.argmax(wrong))]
        raise PipelineError(
            f"backward op '{shortened(problem.graph.op_names[op])}' is on "
            f"'{problem.cluster.devices[device_of[op]].name}', where stage {stage_of[op]} is not; give it a "
            "stage of its device"
        )
    stages[named] = stage_of[named]


def _check_direction(graph: OpGraph, stages: IntArray, phase: IntArray, device_of: IntArray) -> None:
    """Checks that no tensor flows back: to an earlier phase or, in the forward pass, to an earlier stage.

    In the backward pass a tensor may go to a later stage on another device, if the schedule can run it.
    """
    producer, consumer = graph.edges.T
    between = (phase[producer] >= 0) & (phase[consumer] >= 0)
    producer, consumer = producer[between], consumer[between]
    earlier_phase = phase[producer] > phase[consumer]
    same_phase, later_stage = phase[producer] == phase[consumer], stages[producer] > stages[consumer]
    forward = same_phase & (phase[producer] == 0) & later_stage
    same_device = device_of[producer] == device_of[consumer]
    backward = same_phase & (phase[producer] == 1) & same_device & (stages[producer] < stages[consumer])
    for bad, rule in (
        (earlier_phase, "tensors go to the same or a later phase"),
        (forward, "tensors of the forward pass go to the same or a later stage"),
        (backward, "tensors of the backward pass go to the same or an earlier stage of their device"),
    ):
        if bad.any():
            index = int(np.argmax(bad))
            one, other = (_described(graph, stages, int(end[index])) for end in (producer, consumer))
            raise PipelineError(f"{one} makes a tensor for {other}; {rule}")


def _described(graph: OpGraph, stages: IntArray, op: int) -> str:
    stage = f", stage {stages[op]}" if stages[op] >= 0 else ""
    return f"op '{shortened(graph.op_names[op])}' ({graph.phases[op]}{stage})"
