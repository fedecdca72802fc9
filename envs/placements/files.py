"""Placement files, format `placewalk.placement/1`: a device name for every op name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.cluster.cluster import Cluster
from envs.placements.placement import Placement, PlacementError, check_placement
from graphs.op_graph import OpGraph
from graphs.system.json_fields import array, fields, integer, kind_of, name
from graphs.system.json_files import FileFormatError, read_json, write_json_atomic

FORMAT = "placewalk.placement/1"
KEYS = frozenset({"format", "graph", "cluster", "device_of"})
STAGES, RECOMPUTE, GROUPS = PIPELINE_KEYS = ("stage_of", "recompute", "groups")
"""The keys that a placement of a pipeline may have besides."""


@dataclass(frozen=True)
class NamedPlacement:
    """A placement as its file holds it, before its names are resolved.

    Attributes:
        graph, cluster: names of the graph and the cluster that it is for.
        device_of: device name of each op name.
        where: the path, with which error messages begin.
        stage_of: number of the stage of op names; empty where there is none.
        recompute: stages that run their forward ops again.
        groups: device names of each replica.
    """

    graph: str
    cluster: str
    device_of: Mapping[str, str]
    where: str
    stage_of: Mapping[str, int] = field(default_factory=dict)
    recompute: tuple[int, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()

    def resolve(self, graph: OpGraph, cluster: Cluster) -> Placement:
        """Resolves the names in the graph and the cluster.

        Raises:
            PlacementError: it is for another graph or cluster, names an unknown op or device, leaves an op
                out, or splits a placement unit.
        """
        names = ("graph", self.graph, graph.name), ("cluster", self.cluster, cluster.name)
        for label, of_file, wanted in names:
            if of_file != wanted:
                raise PlacementError(f"{self.where}: is for {label} '{of_file}', not for '{wanted}'")
        ops = set(graph.op_names)
        unknown = [op for op in (*self.device_of, *self.stage_of) if op not in ops]
        if unknown:
            raise PlacementError(f"{self.where}: op '{unknown[0]}' is not in graph '{graph.name}'")
        missing = [op for op in graph.op_names if op not in self.device_of]
        if missing:
            have = f" and {len(missing) - 1} more have" if len(missing) > 1 else " has"
            raise PlacementError(f"{self.where}: op '{missing[0]}'{have} no device; place every op")
        index_of = {device.name: index for index, device in enumerate(cluster.devices)}
        for op, device in self.device_of.items():
            if device not in index_of:
                there = f"the devices of cluster '{cluster.name}' are {', '.join(index_of)}"
                raise PlacementError(f"{self.where}: op '{op}' is on '{device}', but {there}")
        devices = [index_of[self.device_of[op]] for op in graph.op_names]
        self._check_groups(index_of)
        groups = tuple(tuple(index_of[device] for device in group) for group in self.groups)
        stages = [self.stage_of.get(op, -1) for op in graph.op_names]
        stage_of = np.array(stages, dtype=np.int64) if self.stage_of else None
        placement = Placement(np.array(devices, dtype=np.int64), stage_of, self.recompute, groups)
        try:
            check_placement(graph, cluster, placement)
        except PlacementError as error:
            raise PlacementError(f"{self.where}: {error}") from None
        return placement

    def _check_groups(self, index_of: Mapping[str, int]) -> None:
        named = [device for group in self.groups for device in group]
        wrong = next((member for member in named if member not in index_of or named.count(member) > 1), None)
        if wrong is not None or len({len(group) for group in self.groups}) > 1 or len(self.groups) == 1:
            what = "are not two or more of equal size" if wrong is None else f"name '{wrong}'"
            raise PlacementError(
                f"{self.where}: {GROUPS} {what}; give each replica equally many devices of the cluster, each "
                "once"
            )
        outside = set(self.device_of.values()) - set(self.groups[0] if self.groups else index_of)
        if outside:
            raise PlacementError(
                f"{self.where}: an op is on '{min(outside)}', which is not in the first of {GROUPS}; "
                "place all ops there"
            )


def read_placement(path: str | os.PathLike[str], graph: OpGraph, cluster: Cluster) -> Placement:
    """Reads the placement of a graph on a cluster.

    Raises:
        FileFormatError: the path is no readable JSON file, or the file breaks the format.
        PlacementError: the placement does not suit the graph and the cluster.
    """
    return read_named_placement(path).resolve(graph, cluster)


def read_named_placement(path: str | os.PathLike[str]) -> NamedPlacement:
    """Reads a placement file without its graph and cluster, whose names it holds.

    Raises:
        FileFormatError: the path is no readable JSON file, or the file breaks the format.
    """
    return placement_from_json(read_json(path), str(path))


def write_placement(
    path: str | os.PathLike[str], graph: OpGraph, cluster: Cluster, placement: Placement
) -> None:
    """Writes a placement file atomically.

    Raises:
        PlacementError: the placement does not suit the graph and the cluster.
    """
    write_json_atomic(path, placement_to_json(graph, cluster, placement))


def placement_from_json(value: object, where: str) -> NamedPlacement:
    """Builds a named placement from its parsed JSON; `where` begins the message of any error.

    Raises:
        FileFormatError: the value breaks the format.
    """
    record = fields(value, where, KEYS, set(PIPELINE_KEYS), format=FORMAT)
    device_of = record["device_of"]
    if not isinstance(device_of, dict):
        devices_where = f"{where}: device_of"
        raise FileFormatError(
            f"{devices_where}: is {kind_of(device_of)}; expected an object, op name to device name"
        )
    for op, device in device_of.items():
        name(device, f"{where}: device of {name(op, f'{where}: an op of device_of')!r}")
    stages_where, groups_where = f"{where}: {RECOMPUTE}", f"{where}: {GROUPS}"
    recompute = [
        integer(stage, f"{stages_where}: a stage") for stage in array(record.get(RECOMPUTE, []), stages_where)
    ]
    groups = [array(group, groups_where) for group in array(record.get(GROUPS, []), groups_where)]
    return NamedPlacement(
        graph=name(record["graph"], f"{where}: graph"),
        cluster=name(record["cluster"], f"{where}: cluster"),
        device_of=device_of,
        where=where,
        stage_of=_stages(record.get(STAGES, {}), f"{where}: {STAGES}"),
        recompute=tuple(sorted(set(recompute))),
        groups=tuple(tuple(name(device, f"{groups_where}: a device") for device in row) for row in groups),
    )


def _stages(value: object, where: str) -> Mapping[str, int]:
    if not isinstance(value, dict):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected an object, op name to stage number")
    stage_of = {op: integer(stage, f"{where}: stage of {op!r}") for op, stage in value.items()}
    for op, stage in stage_of.items():
        if not 0 <= stage < len(stage_of):
            raise FileFormatError(f"{where}: stage of {op!r} is {stage}; expected 0 to {len(stage_of) - 1}")
    return stage_of


def placement_to_json(graph: OpGraph, cluster: Cluster, placement: Placement) -> dict[str, Any]:
    """Converts a placement to JSON values, ops in program order.

    Raises:
        PlacementError: the placement does not suit the graph and the cluster.
    """
    check_placement(graph, cluster, placement)
    devices = [cluster.devices[index].name for index in placement.device_of]
    record: dict[str, Any] = {"format": FORMAT, "graph": graph.name, "cluster": cluster.name}
    record["device_of"] = dict(zip(graph.op_names, devices, strict=True))
    if placement.stage_of is not None:
        stages = zip(graph.op_names, placement.stage_of.tolist(), strict=True)
        record[STAGES] = {op: stage for op, stage in stages if stage >= 0}
    if placement.recompute:
        record[RECOMPUTE] = list(placement.recompute)
    if placement.groups:
        record[GROUPS] = [[cluster.devices[device].name for device in group] for group in placement.groups]
    return record
