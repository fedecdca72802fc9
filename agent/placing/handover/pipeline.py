"""The files handed over with a pipeline: a table of its stages, a trace of its step, and what it brings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.placing.handover.explain import as_graph, host_line, host_lines, what_to_use
from agent.placing.handover.module_devices import around
from agent.placing.handover.trace import pipeline_trace, write_trace
from envs.objective import PipelineBaselines, PipelineObjective
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages, phases_of
from graphs.system.csv_files import write_rows
from graphs.system.errors import shortened
from graphs.system.json_files import write_bytes_atomic
from graphs.system.numbers import four_digits, in_ms

GIB = 2**30
NAME_CHARS, OP_CHARS = 12, 20
SIMPLEST_FIRST = ("one device", "the pipeline", "data parallelism")


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
    names = dict.fromkeys(name for name in modules if name)
    return [name for name in names if names.keys().isdisjoint([*around(name)][1:])]


def pipeline_advice(n_stages: int, step: PipelineTime, baselines: PipelineBaselines) -> str:
    """Says what to use: the pipeline, one device or data parallelism; then by how much it is faster."""
    steps = {"the pipeline": (step.total_s, step.fits)} if n_stages > 1 else {}
    steps |= baselines.steps()
    seconds = {name: step_s for name, (step_s, fits) in steps.items() if fits}
    best = what_to_use({name: seconds.get(name) for name in SIMPLEST_FIRST})
    if not best:
        return "nothing found has the memory; use more devices, larger ones or a smaller microbatch"
    others = sorted((step_s, name) for name, step_s in seconds.items() if name != best)
    clauses = [f"{step_s / seconds[best]:.3g}x as fast as {name}" for step_s, name in others]
    clauses += [f"no memory for {name}" for name, (_, fits) in steps.items() if not fits]
    return f"use {best}: {', '.join(clauses)}"


def pipeline_lines(objective: PipelineObjective, stages: Stages, step: PipelineTime) -> list[str]:
    """Says what a pipeline brings over one device and data parallelism, and what each stage needs."""
    pipeline, baselines, n_stages = objective.pipeline, objective.baselines, len(stages.devices)
    host = host_line(objective, objective.without_host().pipelined.simulate(stages).total_s)
    advice = as_graph(host) + pipeline_advice(n_stages, step, baselines)
    lines = ["\n".join([*host_lines(host), advice])]
    lines.append(f"{n_stages} stages, {pipeline.microbatches} microbatches, schedule {pipeline.schedule}")
    steps = {"pipeline": (step.total_s, step.fits)} | baselines.steps()
    for name, (step_s, fits) in steps.items():
        pace = f"{four_digits(pipeline.microbatches / step_s)} microbatches a second"
        given = "" if fits else ", had it the memory"
        lines.append(f"{name}: {pace}, {in_ms(step_s)} a step{given}")
    lines[2] += f", {step.bubble_share:.0%} idle"
    lines[3] += baselines.uncut
    n_replicas = baselines.data_parallel.n_replicas
    lines[4] = lines[4].replace(" a step", f" a step on {n_replicas} device{'s' * (n_replicas > 1)}")
    lines[4] += ", each a whole batch of its own" if baselines.data_parallel.own_batches else ""
    lines.append("of each stage: forward + backward of a microbatch, peak memory of its device")
    for row in stage_rows(objective.pipelined, stages, step):
        times, again = ("2 x ", ", forward recomputed to save memory") if row.recomputed else ("", "")
        device, last = shortened(row.device, NAME_CHARS), shortened(row.last_op, OP_CHARS)
        lines.append(
            f"stage {row.stage} on {device}, to {last}: "
            f"{times}{1e3 * row.forward_s:.3g} + {1e3 * row.backward_s:.3g} ms, "
            f"{row.peak_bytes / GIB:.2f} of {row.memory_bytes / GIB:.2f} GiB{again}"
        )
    return lines


def write_pipeline_handover(
    folder: Path, name: str, objective: PipelineObjective, stages: Stages, step: PipelineTime
) -> list[str]:
    """Writes the table of stages, the trace and what the pipeline brings; returns the lines of that.

    The files are, after the name of the placement, `.stages.csv`, `.trace.json` and `.explain.txt`.

    Args:
        name: what the file names begin with.
    """
    write_rows(folder / f"{name}.stages.csv", StageRow, stage_rows(objective.pipelined, stages, step))
    write_trace(folder / f"{name}.trace.json", pipeline_trace(objective.pipelined, step))
    lines = pipeline_lines(objective, stages, step)
    write_bytes_atomic(folder / f"{name}.explain.txt", ("\n".join(lines) + "\n").encode())
    return lines
