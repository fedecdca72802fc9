"""The view of a pipeline: what it brings in words, a table of its stages, a trace of its step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agent.placing.handover.explain import as_graph, host_line, host_lines, what_to_use
from agent.placing.handover.files import View
from agent.placing.handover.module_devices import around
from agent.placing.handover.trace import DEVICES, complete_event, device_names, write_trace
from envs.pipeline.groups import sharded
from envs.pipeline.objective import DataParallelPipeline, PipelineBaselines, PipelineObjective
from envs.pipeline.pipeline import PipelineError
from envs.pipeline.schedules import LETTERS
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages, phases_of
from envs.simulator.data_parallel import DataParallelStep
from envs.simulator.simulate import SimulatedStep
from graphs.system.csv_files import write_rows
from graphs.system.errors import four_digits, in_ms, shortened
from graphs.system.json_files import write_bytes_atomic

GIB = 2**30
OF_STAGES = "of each stage: forward + backward of a microbatch, peak memory of its device"
NAME_CHARS, OP_CHARS = 12, 20
PIPELINE, PARALLEL = "the pipeline", "data parallelism"
SIMPLEST_FIRST = {name: rank for rank, name in enumerate(("one device", PIPELINE, PARALLEL))}
NO_OTHERS: Mapping[str, SimulatedStep] = {}
UNCUT = {
    "faster": ", the batch uncut",
    "too large": ", cut, as the whole batch does not fit",
    "unknown": ", cut, as the whole batch is not compared: {error}",
}
"""Words on the batch uncut on one device, by how it compares."""


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
        recomputed: its forward ops run again before its backward ops.
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
    """Yields a row for each stage, replica by replica."""
    problem, graph = pipelined.problem, pipelined.problem.graph
    phase, seconds, pipeline = phases_of(graph), problem.op_seconds, pipelined.pipeline
    is_divided = pipeline.shard_optimizer and pipeline.replicas != 1
    split, with_copies = pipelined.with_copies(stages)
    held = (sharded(split.problem, int(pipeline.replicas)) if is_divided else split.problem).graph
    original = np.isin(held.op_names, graph.op_names)
    held_bytes, copied_bytes = held.resident_bytes[original], np.zeros(len(stages.devices))
    for op in np.flatnonzero(~original).tolist():
        readers = with_copies.stage_of[held.successors.row(op)]
        copied_bytes[readers.max(initial=0)] += held.resident_bytes[op]
    piece = pipelined.chain.piece_of
    rank_of = {device: rank for rank, device in enumerate(stages.ranks.tolist())}
    for ranks, (stage, first_device) in product(stages.replicas, enumerate(stages.devices.tolist())):
        device = ranks[rank_of[first_device]]
        ops = np.flatnonzero(stages.stage_of == stage)
        forward, backward = ops[phase[ops] == 0], ops[phase[ops] == 1]
        pieces = np.unique(piece[forward])
        names = dict.fromkeys(graph.modules[op] for op in forward.tolist() if graph.modules[op])
        on_device = stages.device_of == first_device
        resident = held_bytes[on_device & np.isin(piece, pieces)].sum()
        yield StageRow(
            stage=stage,
            device=problem.cluster.devices[device].name,
            first_op=graph.op_names[forward[0]],
            last_op=graph.op_names[forward[-1]],
            modules=" ".join(name for name in names if names.keys().isdisjoint([*around(name)][1:])),
            n_ops=len(ops),
            forward_s=float(seconds[forward, device].sum()),
            backward_s=float(seconds[backward, device].sum()),
            resident_bytes=float(resident + copied_bytes[stage]),
            peak_bytes=float(step.peak_bytes[device]),
            memory_bytes=float(problem.cluster.memory_bytes[device]),
            recomputed=stage in stages.recomputed,
        )


def pipeline_advice(
    n_stages: int,
    step: PipelineTime,
    baselines: PipelineBaselines,
    called: str = PIPELINE,
    others: Mapping[str, SimulatedStep] = NO_OTHERS,
) -> str:
    """Says what to use, and by how much it is faster: the named step, others or baselines."""
    steps = {called: (step.total_s, step.fits)} if n_stages > 1 or called != PIPELINE else {}
    steps |= {name: (other.total_s, other.fits) for name, other in others.items()} | baselines.steps()
    seconds = {name: step_s for name, (step_s, fits) in steps.items() if fits}
    last = len(SIMPLEST_FIRST)
    simplest = sorted(steps, key=lambda name: (SIMPLEST_FIRST.get(name, last), "replicas" in name))
    best = what_to_use({name: seconds.get(name) for name in simplest})
    if not best:
        return "nothing found has the memory; use more devices, larger ones or a smaller microbatch"
    slower = sorted((step_s, name) for name, step_s in seconds.items() if name != best)
    clauses = [f"{step_s / seconds[best]:.3g}x as fast as {name}" for step_s, name in slower]
    clauses += [f"no memory for {name}" for name, (_, fits) in steps.items() if not fits]
    return f"use {best}: {', '.join(clauses)}"


class Summary(NamedTuple):
    """Words on a pipeline, and on the steps that it is compared with."""

    advice: str  # what to use, after lines on the host
    shape: str  # stages, microbatches and schedule
    paces: list[str]  # a line each for the pipeline and what it is compared with
    stages: list[str]  # a line each

    def lines(self) -> list[str]:
        """Lists all lines."""
        return [self.advice, self.shape, *self.paces, OF_STAGES, *self.stages]


class PipelineView(View):
    """The view of a pipeline."""

    @cached_property
    def stages(self) -> Stages:
        """The placement cut into stages."""
        return self.objective.cut(self.placement)

    @property
    def data_parallel(self) -> DataParallelStep:
        return self.objective.baselines.data_parallel

    @cached_property
    def told(self) -> Summary:
        """The words on the pipeline, also on the best of other numbers of replicas."""
        objective, pipeline, n_stages = self.objective, self.objective.pipeline, len(self.stages.devices)
        count, n_devices = int(pipeline.replicas), objective.problem.n_devices
        others = {
            _called(number, n_devices, "pipelines" if number > 1 else "one pipeline"): self.best_steps[number]
            for number in sorted(map(int, self.best_steps.keys() - {count}))
        }
        shape = f"{n_stages} stages, {pipeline.microbatches} microbatches, schedule {pipeline.schedule}"
        if count > 1:
            shape = f"{count} replicas of {shape}" + ", optimizer sharded" * pipeline.shard_optimizer
        elif not others and any(n_devices % divisor == 0 for divisor in range(2, n_devices)):
            shape += "; replicas not compared (replicas='auto')"
        host = host_line(objective, objective.without_host().pipelined.simulate(self.stages).total_s)
        name = _called(count, n_devices, PIPELINE)
        advice = as_graph(host) + pipeline_advice(n_stages, self.step, objective.baselines, name, others)
        are_alike = len(set(objective.members)) == 1
        return Summary(
            advice="\n".join([*host_lines(host), advice]),
            shape=shape,
            paces=_pace_lines(objective, self.step, others),
            stages=list(map(_stage_line, self.table()[: n_stages if are_alike else None])),
        )

    def summary(self, where: str, bound: str, ops: str) -> list[str]:
        advice, shape, paces, _ = self.told
        return [advice, f"{where}: {shape}", *paces, bound, ops]

    def explain(self) -> list[str]:
        return self.told.lines() + [f"chosen from: {'; '.join(self.tried)}"] * (len(self.tried) > 1)

    def table(self) -> list[StageRow]:
        return list(stage_rows(self.objective.pipelined, self.stages, self.step))

    def trace(self) -> dict[str, Any]:
        actions = (
            complete_event(
                f"{action.stage}{LETTERS[action.kind]}{action.microbatch}" if action.stage >= 0 else "update",
                (DEVICES, action.device),
                (action.start_s, action.end_s),
                {"stage": action.stage, "microbatch": action.microbatch},
            )
            for action in self.step.actions
            if action.end_s > action.start_s
        )
        return {"displayTimeUnit": "ms", "traceEvents": [*device_names(self.objective.problem), *actions]}

    def hand_over(self, folder: Path, name: str) -> list[str]:
        """Writes the table of stages, the trace and what the pipeline brings; returns the lines of that.

        The files are, after the name of the placement, `.stages.csv`, `.trace.json` and `.explain.txt`.
        """
        write_rows(folder / f"{name}.stages.csv", StageRow, self.table())
        write_trace(folder / f"{name}.trace.json", self.trace())
        lines = self.told.lines()
        write_bytes_atomic(folder / f"{name}.explain.txt", ("\n".join(lines) + "\n").encode())
        return lines

    def check_compiles(self) -> None:
        """Refuses a pipeline, whose stages run in a script under torchrun.

        Raises:
            PipelineError: always.
        """
        raise PipelineError(
            "compile runs no pipeline; run plan.pipeline_stages(module) under torchrun, as pipeline.py in "
            "docs/how-to/pipelines.md does"
        )


def _stage_line(row: StageRow) -> str:
    times, again = ("2 x ", ", forward recomputed to save memory") if row.recomputed else ("", "")
    device, last = shortened(row.device, NAME_CHARS), shortened(row.last_op, OP_CHARS)
    return (
        f"stage {row.stage} on {device}, to {last}: "
        f"{times}{1e3 * row.forward_s:.3g} + {1e3 * row.backward_s:.3g} ms, "
        f"{row.peak_bytes / GIB:.2f} of {row.memory_bytes / GIB:.2f} GiB{again}"
    )


def _called(n_replicas: int, n_devices: int, pipelines: str) -> str:
    if n_replicas == 1:
        return pipelines
    return f"{n_replicas} replicas of {pipelines if n_replicas < n_devices else 'one device'}"


def _pace_lines(
    objective: PipelineObjective, step: PipelineTime, others: Mapping[str, SimulatedStep]
) -> list[str]:
    """Says the pace and the most memory of a device, of the pipeline and what it is compared with."""
    baselines, parallel = objective.baselines, objective.baselines.data_parallel
    on = f" on {parallel.n_replicas} device{'s' * (parallel.n_replicas > 1)}"
    batches = ", each a whole batch of its own" * parallel.own_batches
    uncut = UNCUT.get(baselines.uncut, "").format(error=objective.whole)
    rows: list[tuple[str, float, SimulatedStep | DataParallelPipeline, str, str]] = [
        ("pipeline", step.total_s, step, "", f", {step.bubble_share:.0%} idle"),
        ("one device", baselines.single.total_s, baselines.single, "", uncut),
        (PARALLEL, parallel.step_s, parallel, on, batches),
        *((name, other.total_s, other, "", "") for name, other in others.items()),
    ]
    lines = []
    for name, step_s, simulated, devices, remark in rows:
        pace = f"{four_digits(objective.pipeline.microbatches / step_s)} microbatches a second"
        memory = "" if simulated.fits else ", had it the memory"
        peak = f"{np.max(simulated.peak_bytes) / GIB:.3g} GiB"
        lines.append(f"{name}: {pace}, {in_ms(step_s)} a step{devices}{memory}{remark}, {peak}")
    return lines
