"""Exports for PyTorch: `torch.distributed.pipelining`, and accelerate's device map."""

from __future__ import annotations

import json
import sys

from agent.placing.exports.export import ExportError, PlacedModules, export
from agent.placing.handover.device_map import project
from envs.pipeline.schedules import schedule_csv
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
    if placed.stages is not None:
        return json.dumps(placed.cut_at(placed.tree.is_called)[1]) + "\n"
    _, parts = placed.parts(placed.tree.modules(placed.tree.opens))
    names = [modules[0] for _, modules in parts[1:]]
    again = {name.partition("@")[0] for name in placed.problem.graph.op_names if "@" in name}
    if called := again.intersection(names):
        raise ExportError(f"torch splits at each call of '{min(called)}', which is called several times")
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
    """Makes the nearest device map that `accelerate.dispatch_model` can run, as JSON.

    If one device is faster than the map, a line on stderr says so, with the map of that device.
    """
    found = project(placed.problem, placed.placement.device_of)
    if found.advice:
        print(f"{shortened(placed.problem.graph.name)}: {found}", file=sys.stderr)
    return json.dumps(dict(found.devices), indent=2) + "\n"
