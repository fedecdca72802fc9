"""A placed graph as TensorBoard's graph dashboard reads it: devices, and the compute time of each op."""

from __future__ import annotations

import re

import numpy as np
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.step_stats_pb2 import DeviceStepStats, NodeExecStats, StepStats
from tensorboard.compat.proto.versions_pb2 import VersionDef

from envs.problem import Problem
from envs.simulator.simulate import StepTime
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray

SECONDS = "compute_seconds"
"""Attribute of a node: seconds that it computes on its device."""


def node_names(graph: OpGraph) -> list[str]:
    """Names of the ops as nodes: the module's path, whose parts are boxes, then the op.

    The index keeps names apart that differ in nothing but signs which no node name has.
    """
    return [
        f"{_path(module)}{re.sub(r'[^A-Za-z0-9_.]', '_', name)}.{index}"
        for index, (name, module) in enumerate(zip(graph.op_names, graph.modules, strict=True))
    ]


def _path(module: str) -> str:
    parts = [re.sub(r"[^A-Za-z0-9_]", "_", part) for part in module.split(".") if part]
    return "".join(f"m_{part}/" if part[0] == "_" else f"{part}/" for part in parts)


def graph_def(problem: Problem, device_of: IntArray) -> GraphDef:
    """Makes the graph: an op a node, with its device, its inputs and what it takes in seconds.

    Args:
        device_of: device index of each op, int (n_ops,).
    """
    graph, names = problem.graph, node_names(problem.graph)
    seconds = problem.op_seconds[np.arange(graph.n_ops), device_of]
    nodes = [
        NodeDef(
            name=names[op],
            op=graph.op_types[op] or "op",
            device=problem.cluster.devices[device].name,
            input=[names[producer] for producer in graph.predecessors.row(op).tolist()],
            attr={SECONDS: AttrValue(f=float(seconds[op]))},
        )
        for op, device in enumerate(device_of.tolist())
    ]
    return GraphDef(node=nodes, versions=VersionDef(producer=22))


def run_metadata(problem: Problem, device_of: IntArray, step: StepTime) -> RunMetadata:
    """Makes the statistics that the dashboard colours nodes by: when each op ran, in microseconds."""
    names = node_names(problem.graph)
    devices = []
    for index, device in enumerate(problem.cluster.devices):
        stats = []
        for op in np.flatnonzero(device_of == index).tolist():
            start_us, end_us = round(1e6 * step.start_s[op]), round(1e6 * step.finish_s[op])
            took_us = end_us - start_us
            stats.append(
                NodeExecStats(
                    node_name=names[op],
                    all_start_micros=start_us,
                    op_end_rel_micros=took_us,
                    all_end_rel_micros=took_us,
                )
            )
        devices.append(DeviceStepStats(device=device.name, node_stats=stats))
    return RunMetadata(step_stats=StepStats(dev_stats=devices))
