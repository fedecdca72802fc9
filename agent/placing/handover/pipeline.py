"""The files handed over with a pipeline: a table of its stages, a trace of its step, and what it brings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from agent.placing.handover.explain import WORTH_IT
from agent.placing.handover.trace import DEVICES, complete, named
from envs.objective import PipelineBaselines
from envs.pipeline.schedules import LETTERS
from envs.pipeline.simulate import ActionTime, PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages, phases_of
from graphs.system.csv_files import write_csv
from graphs.system.errors import shortened
from graphs.system.json_files import write_bytes_atomic, write_json_atomic
from graphs.system.numbers import four_digits, in_ms

GIB = 2**30
NAME_CHARS, OP_CHARS = 12, 20
UPDATE = "update"


@dataclass(frozen=True)
class StageRow:
    """A stage of a pipeline.

    Attributes:
        device: name of its device.
        first_op, last_op: names of its first and last forward op in program order.
        modules: modules of its forward ops, in program order, without those inside another one of them.
        n_ops: forward and backward ops.
        forward_s, backward_s: seconds of one microbatch.
        resident_bytes: parameters, gradients and optimizer state.
        peak_bytes, memory_bytes: most that its device holds, for all its stages, and what it has; of several
            devices, the one with the least room.
        recomputed: whether its forward ops run again before its backward ops.
    """

    stage: int
    device: str
    first_op: str
    last_op: str
    modules: str
    n_ops: int
    forward_s: float
    backward_s: float
    resident_bytes: float
    peak_bytes: float
    memory_bytes: float
    recomputed: bool


def stage_rows(pipelined: PipelinedProblem, stages: Stages, step: PipelineTime) -> Iterator[StageRow]:
    """Yields a row for each stage."""
    problem, graph = pipelined.problem, pipelined.problem.graph
    phase, seconds = phases_of(graph), pipelined.problem.op_seconds
    for stage, device in enumerate(stages.devices.tolist()):
        ops = np.flatnonzero(stages.stage_of == stage)
        forward, backward = ops[phase[ops] == 0], ops[phase[ops] == 1]
        piece = pipelined.chain.piece_of
        pieces = np.unique(piece[forward])
        resident = graph.resident_bytes[(stages.device_of == device) & np.isin(piece, pieces)].sum()
        yield StageRow(
            stage=stage,
            device=problem.cluster.devices[device].name,
            first_op=graph.op_names[forward[0]],
            last_op=graph.op_names[forward[-1]],
            modules=" ".join(_outermost(graph.modules[op] for op in forward.tolist())),
            n_ops=len(ops),
            forward_s=float(seconds[forward, device].sum()),
            backward_s=float(seconds[backward, device].sum()),
            resident_bytes=float(resident),
            peak_bytes=float(step.peak_bytes[device]),
            memory_bytes=float(problem.cluster.memory_bytes[device]),
            recomputed=stage in stages.recomputed,
        )


def _outermost(modules: Iterator[str]) -> list[str]:
    """Module paths without repeats and without those inside another one; the root has no path."""
    names = [name for name in dict.fromkeys(modules) if name]
    known = set(names)

    def is_inside(name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:end]) in known for end in range(1, len(parts)))

    return [name for name in names if not is_inside(name)]


def pipeline_trace(pipelined: PipelinedProblem, step: PipelineTime) -> dict[str, Any]:
    """Makes the trace of a pipelined step: a track per device, times in microseconds.

    Source: the trace-event format, "JSON Object Format" with complete events ("X").
    """
    devices = enumerate(pipelined.problem.cluster.devices)
    events = [named("thread_name", DEVICES, index, device.name) for index, device in devices]
    events += [
        complete(
            action_name(action),
            (DEVICES, action.device),
            (action.start_s, action.end_s),
            {"stage": action.stage, "microbatch": action.microbatch},
        )
        for action in step.actions
        if action.end_s > action.start_s
    ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def action_name(action: ActionTime) -> str:
    """Names an action as tables of schedules do, such as `2F0`: stage, kind, microbatch."""
    if action.stage < 0:
        return UPDATE
    return f"{action.stage}{LETTERS[action.kind]}{action.microbatch}"


def pipeline_advice(n_stages: int, step: PipelineTime, baselines: PipelineBaselines) -> str:
    """Says what to use: the pipeline, one device or data parallelism; then by how much it is faster.

    As in a report, the pipeline must be 2 % faster than one device, and data parallelism than both.
    """
    steps = {"the pipeline": (step.total_s, step.fits)} if n_stages > 1 else {}
    steps |= baselines.steps()
    fitting = sorted((step_s, name) for name, (step_s, fits) in steps.items() if fits)
    if not fitting:
        return "nothing found has the memory; use more devices, larger ones or a smaller microbatch"
    seconds, best = {name: step_s for step_s, name in fitting}, ""
    for name in ("one device", "the pipeline", "data parallelism"):
        if name in seconds and (not best or seconds[name] < (1 - WORTH_IT) * seconds[best]):
            best = name
    others = ((step_s, name) for step_s, name in fitting if name != best)
    clauses = [f"{step_s / seconds[best]:.3g}x as fast as {name}" for step_s, name in others]
    clauses += [f"no memory for {name}" for name, (_, fits) in steps.items() if not fits]
    return f"use {best}: {', '.join(clauses)}"


def pipeline_lines(
    pipelined: PipelinedProblem, stages: Stages, step: PipelineTime, baselines: PipelineBaselines
) -> list[str]:
    """Says what a pipeline brings over one device and data parallelism, and what each stage needs."""
    pipeline, n_stages = pipelined.pipeline, len(stages.devices)
    lines = [pipeline_advice(n_stages, step, baselines)]
    lines.append(f"{n_stages} stages, {pipeline.microbatches} microbatches, schedule {pipeline.schedule}")
    steps = {"pipeline": (step.total_s, step.fits)} | baselines.steps()
    for name, (step_s, fits) in steps.items():
        pace = f"{four_digits(pipeline.microbatches / step_s)} microbatches a second"
        given = "" if fits else ", had it the memory"
        lines.append(f"{name}: {pace}, {in_ms(step_s)} a step{given}")
    lines[2] += f", {step.bubble_share:.0%} idle"
    lines[3] += baselines.uncut
    lines[4] += f" on {baselines.data_parallel.n_replicas} devices"
    lines[4] += ", each a whole batch of its own" if baselines.data_parallel.own_batches else ""
    lines.append("of each stage: forward + backward of a microbatch, peak memory of its device")
    for row in stage_rows(pipelined, stages, step):
        times, again = ("2 x ", ", forward recomputed to save memory") if row.recomputed else ("", "")
        device, last = shortened(row.device, NAME_CHARS), shortened(row.last_op, OP_CHARS)
        lines.append(
            f"stage {row.stage} on {device}, to {last}: "
            f"{times}{1e3 * row.forward_s:.3g} + {1e3 * row.backward_s:.3g} ms, "
            f"{row.peak_bytes / GIB:.2f} of {row.memory_bytes / GIB:.2f} GiB{again}"
        )
    return lines


def write_pipeline_trace(
    path: str | os.PathLike[str], pipelined: PipelinedProblem, step: PipelineTime
) -> None:
    """Writes the trace of a pipelined step, which Perfetto and chrome://tracing read."""
    write_json_atomic(path, pipeline_trace(pipelined, step), indent=None)


def write_pipeline_handover(
    folder: Path,
    name: str,
    pipelined: PipelinedProblem,
    stages: Stages,
    step: PipelineTime,
    baselines: PipelineBaselines,
) -> list[str]:
    """Writes the table of stages, the trace and what the pipeline brings; returns the lines of that.

    The files are, after the name of the placement, `.stages.csv`, `.trace.json` and `.explain.txt`.

    Args:
        name: what the file names begin with.
    """
    columns = [item.name for item in fields(StageRow)]
    write_csv(folder / f"{name}.stages.csv", columns, map(astuple, stage_rows(pipelined, stages, step)))
    write_pipeline_trace(folder / f"{name}.trace.json", pipelined, step)
    lines = pipeline_lines(pipelined, stages, step, baselines)
    write_bytes_atomic(folder / f"{name}.explain.txt", ("\n".join(lines) + "\n").encode())
    return lines
