"""Exports for PyTorch: `torch.distributed.pipelining`, and accelerate's device map."""

from __future__ import annotations

import json
import sys

from agent.evaluation.handover.device_map import project
from agent.exports.export import ExportError, PlacedModules, export
from envs.pipeline.schedules import schedule_csv
from graphs.system.errors import shortened


@export("split-spec", ending=".split_spec.json")
def torch_split_spec(placed: PlacedModules) -> str:
    """Names the modules that stages but the first begin with, as JSON.

    `torch.distributed.pipelining.pipeline` takes them as
    `split_spec={path: SplitPoint.BEGINNING for path in names}`.
    """
    return json.dumps([part[0].path for part in placed.parts[1:]]) + "\n"


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
