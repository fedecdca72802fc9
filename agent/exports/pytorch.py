"""Exports for PyTorch: `torch.distributed.pipelining`, and accelerate's device map."""

from __future__ import annotations

import json

from agent.evaluation.handover.device_map import project
from agent.exports.export import ExportError, PlacedModules, export
from envs.pipeline.schedules import schedule_csv
from graphs.graph_columns import LIST
from graphs.system.errors import shortened


@export("split-spec", ending=".split_spec.json")
def torch_split_spec(placed: PlacedModules) -> str:
    """Names the modules that stages but the first begin with, as JSON.

    `torch.distributed.pipelining.pipeline` takes them as
    `split_spec={path: SplitPoint.BEGINNING for path in names}`. The cuts of a pipeline move to the nearest
    beginnings of modules, as those of `plan.pipeline_stages`.

    Raises:
        ExportError: a device has modules apart, or a module to split at is called several times.
    """
    tree, graph = placed.tree, placed.problem.graph
    if placed.stages is not None:
        _, names = placed.cut_at(lambda path: tree.kind[path] != LIST)
        return json.dumps(names) + "\n"
    modules = tree.modules(lambda path: path not in tree.layers and tree.opens(path))
    _, parts = placed.parts(modules)
    names = tuple(run[0] for _, run in parts[1:])
    for op, path in enumerate(graph.modules):
        called = graph.op_names[op].partition("/")[0]
        if (module := called.partition("@")[0]) in names and called != module:
            raise ExportError(
                f"module '{shortened(module)}' is called several times, and torch splits at each call"
            )
    return json.dumps(names) + "\n"


@export("schedule-csv", ending=".schedule.csv")
def torch_schedule(placed: PlacedModules) -> str:
    """Writes the actions of each rank in a row, as torch and torchtitan load a schedule.

    Raises:
        ExportError: no pipeline was placed.
    """
    if placed.pipeline is None or placed.stages is None:
        raise ExportError("one batch at a time has no schedule; place with --pipeline")
    return schedule_csv(placed.pipeline, len(placed.stages.ranks), placed.stages.actions)


@export("accelerate", ending=".accelerate.json")
def accelerate_map(placed: PlacedModules) -> str:
    """Makes the nearest device map that `accelerate.dispatch_model` can run, as JSON."""
    return json.dumps(dict(project(placed.problem, placed.placement.device_of).devices), indent=2) + "\n"
