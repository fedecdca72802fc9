"""A device for every op, and the check that it suits the graph and the cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.cluster.cluster import Cluster
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import InputError


class PlacementError(InputError):
    """A placement that does not suit its graph or cluster; the message says where."""


@dataclass(frozen=True, eq=False)
class Placement:
    """A device for every op.

    Attributes:
        device_of: device index of each op in program order, int (n_ops,); -1 = not placed yet.
        stage_of: stage of each forward and backward op of a pipeline, -1 for all others, int (n_ops,).
        recompute: stages that run their forward ops again before their backward ops.
        groups: devices of each replica of a pipeline; the first are those of `device_of`, and those
            at one position hold the same stages. Empty = one replica.
    """

    device_of: IntArray
    stage_of: IntArray | None = None
    recompute: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()


def single_device(graph: OpGraph, device: int) -> Placement:
    """Places every op on one device."""
    return Placement(np.full(graph.n_ops, device, dtype=np.int64))


def spread_unread(graph: OpGraph, cluster: Cluster, device_of: IntArray, peak_bytes: FloatArray) -> IntArray:
    """Returns devices of ops, int (n_ops,), with each unit that no op reads where most memory is left.

    Args:
        device_of: device index of each op, int (n_ops,).
        peak_bytes: memory that the devices need with it, (n_devices,).
    """
    units = [graph.units.row(graph.unit_of[op]) for op in graph.unread]
    spread, left_bytes = device_of.copy(), cluster.memory_bytes - peak_bytes
    for ops in units:
        left_bytes[device_of[ops[0]]] += graph.resident_bytes[ops].sum()
    for ops in sorted(units, key=lambda ops: -graph.resident_bytes[ops].sum()):
        spread[ops] = np.argmax(left_bytes)
        left_bytes[spread[ops[0]]] -= graph.resident_bytes[ops].sum()
    return spread


def check_placement(graph: OpGraph, cluster: Cluster, placement: Placement, *, partial: bool = False) -> None:
    """Checks that a placement suits a graph and a cluster.

    Args:
        partial: true if ops may be unplaced (-1). An unplaced member splits no placement unit.

    Raises:
        PlacementError: wrong length or not integers, an unplaced op, a device the cluster lacks, or a split
            placement unit (`OpGraph.unit_of`): a colocation group, with the sources that follow it.
    """
    where = f"placement of graph '{graph.name}'"
    device_of = np.asarray(placement.device_of)
    if device_of.shape != (graph.n_ops,) or device_of.dtype.kind not in "iu":
        raise PlacementError(
            f"{where}: is {device_of.dtype} {device_of.shape}; expected {graph.n_ops} integers"
        )
    lowest = -1 if partial else 0
    bad = (device_of < lowest) | (device_of >= cluster.n_devices)
    if bad.any():
        op = int(np.argmax(bad))
        op_where = f"{where}: op {op} ('{graph.op_names[op]}')"
        if device_of[op] == -1:
            raise PlacementError(f"{op_where} is not placed; give every op a device")
        devices = f"cluster '{cluster.name}' has 0 to {cluster.n_devices - 1}"
        raise PlacementError(f"{op_where} is on device {device_of[op]}, but {devices}")
    _check_units(where, graph, cluster, device_of)


def _check_units(where: str, graph: OpGraph, cluster: Cluster, device_of: IntArray) -> None:
    members = np.flatnonzero(device_of >= 0)
    _, first, unit = np.unique(graph.unit_of[members], return_index=True, return_inverse=True)
    leader = members[first[unit]]
    split = device_of[members] != device_of[leader]
    if split.any():
        row = int(np.argmax(split))
        ops = [leader[row], members[row]]
        one, other = (f"'{graph.op_names[op]}' is on '{cluster.devices[device_of[op]].name}'" for op in ops)
        groups = graph.colocate[ops]
        if groups[0] == groups[1] >= 0:
            what, why = f"colocation group {groups[0]}", ""
        else:
            what, why = (
                "a placement unit",
                "; a parameter or input colocated with no compute op goes with its first reader",
            )
        raise PlacementError(f"{where}: {what} is split: {one} but {other}; put them on one device{why}")
