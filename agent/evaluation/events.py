"""Writes the placed graphs of an evaluation for TensorBoard."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import TaggedRunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.step_stats_pb2 import DeviceStepStats, NodeExecStats, StepStats
from tensorboard.compat.proto.versions_pb2 import VersionDef

from agent.evaluation.answers import Answers, file_name
from agent.evaluation.report.details import MOST, pairs
from agent.evaluation.results import Trial
from envs.pipeline.simulate import PipelineTime
from envs.problem import Problem
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.progress import EventFile

FOLDER = "tensorboard"
STEP_TAG = "step"
SECONDS = "compute_seconds"
"""Attribute of a node: seconds that it computes on its device."""


def write_events(answers: Answers, trials: Sequence[Trial]) -> Path:
    """Writes the events below an evaluation's folder, in place of those that are there.

    Both placements of each graph that the report shows are runs with the placed graph.

    Returns:
        The folder, for `tensorboard --logdir`.

    Raises:
        FileFormatError: a placement is damaged or not there.
    """
    target = answers.folder / FOLDER
    for old in target.rglob("events.out.tfevents.*"):
        old.unlink()
    for pair in pairs(trials)[:MOST]:
        for answer in (answers.of(pair.left), answers.of(pair.right)):
            where = file_name(f"{answer.trial.graph}.{answer.trial.cluster}")
            step = answer.step
            if isinstance(step, PipelineTime):  # the step of one microbatch
                step = simulate_problem(answer.problem, answer.device_of)
            with closing(EventFile(target / "graphs" / where / file_name(answer.name))) as events:
                events.write(0, graph_def=graph_def(answer.problem, answer.device_of).SerializeToString())
                metadata = run_metadata(answer.problem, answer.device_of, step).SerializeToString()
                events.write(0, tagged_run_metadata=TaggedRunMetadata(tag=STEP_TAG, run_metadata=metadata))
    return target


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
