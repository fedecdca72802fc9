"""Answers whether the training of a model fits, without search: bytes by kind for each way to run it."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from agent.calibration.quick import get_or_measure_cluster
from envs.cluster.cluster import Cluster
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import ONE_F_ONE_B, Pipeline, PipelineError
from envs.problem import Problem
from envs.simulator.all_reduce import gradients_of
from envs.simulator.simulate import simulate_problem
from graphs.capture.capture import capture_step
from graphs.capture.loss import Loss
from graphs.capture.structures import batch_size
from graphs.op_graph import OpGraph
from graphs.precision import BITS, with_precision
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import print_notice

MOST_BATCHES = 2**20
"""Largest batch that is tried."""
HEADS = ["GB", "weights", "grads", "states", "master", "activ.", "temp.", "total", "fit", "batch"]
"""Columns of the table, the first of ways to run a step."""


@dataclass(frozen=True)
class MemoryUse:
    """The memory of the fullest device where a step runs in some way, at its peak.

    Attributes:
        weights_bytes, state_bytes: weights and buffers, and states of the optimizer.
        activation_bytes: forward results that the backward pass reads, of all microbatches at once.
        temporary_bytes: all other tensors.
        memory_bytes: memory of the device.
        largest_batch: largest batch of the device, or microbatch of a pipeline, that fits; None = not sought.
    """

    way: str
    weights_bytes: float
    gradient_bytes: float
    state_bytes: float
    master_bytes: float
    activation_bytes: float
    temporary_bytes: float
    memory_bytes: float
    largest_batch: int | None = None

    @property
    def total_bytes(self) -> float:
        """Bytes at the peak."""
        return float(sum(astuple(self)[1:7]))

    @property
    def fits(self) -> bool:
        """Says whether the device has the memory."""
        return self.total_bytes <= self.memory_bytes

    def cells(self) -> list[str]:
        """Formats a line of the table, with the columns of `HEADS`."""
        sizes = (f"{size / 1e9:.3g}" for size in (*astuple(self)[1:7], self.total_bytes))
        batch = "" if self.largest_batch is None else f"{self.largest_batch:,}"
        return [self.way, *sizes, "yes" if self.fits else "no", batch]


@dataclass(frozen=True)
class MemoryAnswer:
    """The answer of `fits`: one device, other ways to run the step and, where it does not fit, changes."""

    uses: tuple[MemoryUse, ...]

    def __str__(self) -> str:
        lines = [HEADS, *(use.cells() for use in self.uses)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = "\n".join(" ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        first, *others = self.uses
        fitting = ", ".join(use.way for use in others if use.fits) or "nothing that was tried"
        answer = "fits" if first.fits else f"does not fit, but with {fitting},"
        return (
            f"the step {answer} on devices of {first.memory_bytes / 1e9:.3g} GB\n{rows}\n"
            "on the fullest device at its peak; batch: the largest (micro)batch that fits"
        )


@dataclass(frozen=True)
class _Sizes:
    """A captured step in a precision.

    Attributes:
        kept_bytes: states of the optimizer, and master weights, of each op, (2, n_ops).
        batch: size of the batch.
        line: two steps with the same ops, from which those of other batches follow; none if not known.
    """

    graph: OpGraph
    kept_bytes: FloatArray
    cluster: Cluster
    microbatches: int
    batch: int
    line: tuple[_Sizes, ...] = ()

    def at(self, batch: int) -> _Sizes:
        """Returns the step of another batch; sizes of tensors are linear in it."""
        if batch == self.batch:
            return self
        one, two = self.line
        growth = (batch - one.batch) / (two.batch - one.batch)
        sizes = one.graph.tensor_bytes + growth * (two.graph.tensor_bytes - one.graph.tensor_bytes)
        return replace(one, graph=replace(one.graph, tensor_bytes=np.maximum(sizes, 0.0)))

    def use(
        self, way: str, device_of: IntArray, peak_bytes: FloatArray, alive: IntArray, shards: int = 1
    ) -> MemoryUse:
        """Divides the peak of the fullest device by kind.

        Args:
            alive: microbatches whose activations each device holds at once, (n_devices,).
            shards: devices that divide states and master weights.
        """
        graph, memory = self.graph, self.cluster.memory_bytes
        columns = graph.resident_bytes, *self.kept_bytes
        resident, state, master = (np.bincount(device_of, column, len(memory)) for column in columns)
        peak = peak_bytes - (1 - 1 / shards) * (state + master)
        device, made_on = int(np.argmax(peak / memory)), device_of[graph.tensor_producer]
        reduced = gradients_of(graph)
        gradients = graph.tensor_bytes[reduced[made_on[reduced] == device]].sum()
        held = peak_bytes[device] - resident[device]
        saved = Problem(graph, self.cluster).saved_bytes[made_on == device].sum() * alive[device]
        saved = min(saved, held)
        weights = resident[device] - gradients - state[device] - master[device]
        optimizer = state[device] / shards, master[device] / shards
        parts = weights, gradients, *optimizer, saved, held - saved, memory[device]
        return MemoryUse(way, *map(float, parts))  # type: ignore[arg-type]

    def alone(self, way: str, shards: int = 1, *, on_all: bool = False) -> MemoryUse:
        """Runs the whole step on the device with the most memory; `on_all` = on each, so with the least."""
        problem, memory = Problem(self.graph, self.cluster), self.cluster.memory_bytes
        device_of = np.full(self.graph.n_ops, int((np.argmin if on_all else np.argmax)(memory)))
        peak = simulate_problem(problem, device_of).peak_bytes
        return self.use(way, device_of, peak, np.ones(problem.n_devices, dtype=np.int64), shards)

    def stages(self, n_stages: int, *, again: bool = False) -> MemoryUse:
        """Runs a `1f1b` pipeline of stages of equal time; `again` = forward runs again before backward."""
        problem = Problem(self.graph, self.cluster)
        objective = PipelineObjective(problem, Pipeline(ONE_F_ONE_B, self.microbatches))
        objective.check()
        cuts = objective.balanced(range(n_stages))._replace(recomputed=(again,) * n_stages)
        stages = objective.stages(cuts)
        peak = objective.pipelined.simulate(stages).peak_bytes
        alive = np.clip(n_stages - np.arange(problem.n_devices), 1, 1 if again else self.microbatches)
        return self.use(f"{n_stages} stages{', recompute' * again}", stages.device_of, peak, alive)

    def largest(self, run: Callable[[_Sizes], MemoryUse]) -> MemoryUse:
        """Runs the step in a way, and finds the largest batch for which that fits by bisection."""
        if not self.line:
            return run(self)
        limit = 1
        while limit <= MOST_BATCHES and run(self.at(limit)).fits:
            limit *= 2
        batches = range(1, limit)
        largest = bisect_left(batches, True, limit // 2, key=lambda batch: not run(self.at(batch)).fits)
        return replace(run(self), largest_batch=largest)


def fits(
    module: nn.Module,
    inputs: Any,
    loss: Loss | None = None,
    *,
    cluster: str | os.PathLike[str] | Cluster = DEFAULT_CLUSTER,
    precision: str | None = None,
    microbatches: int = 8,
    **settings: Any,
) -> MemoryAnswer:
    """Answers whether the training of a module fits on a cluster, without search.

    Args:
        module, inputs, loss, cluster, precision: as `place` takes them; the batch is dimension 0 of inputs.
        microbatches: number in a step of the pipeline; the inputs are one of them.
        settings: `optimizer`, `master_weights`, `gradient_dtype` and others of `graphs.capture.capture`.

    Returns:
        The simulated memory of one device, of data parallelism, of ZeRO-1 (states and master weights
        divided), of a pipeline of stages of equal time, and of what may make the step fit: a smaller batch,
        all in bf16, fewer stages, recomputed stages. Largest batches follow from two captures.

    Raises:
        ValueError: the model cannot be captured, or no input has a batch.
    """
    chosen = cluster if isinstance(cluster, Cluster) else get_or_measure_cluster(os.fspath(cluster))
    sizes = _sizes(module, inputs, chosen, precision, {"loss": loss, **settings}, microbatches)
    count = chosen.n_devices
    uses = [sizes.largest(lambda step: step.alone("one device"))]
    if count > 1:
        uses.append(sizes.largest(lambda step: step.alone("data parallel", on_all=True)))
        uses.append(sizes.largest(lambda step: step.alone("ZeRO-1", count, on_all=True)))
        try:
            uses.append(sizes.largest(lambda step: step.stages(count)))
            uses += [] if uses[-1].fits else [sizes.stages(count, again=True)]
            fewer = (sizes.stages(n_stages) for n_stages in range(2, 2 if uses[0].fits else count))
            uses += [use for use in fewer if use.fits][:1]
        except PipelineError as error:
            print_notice(f"pipelines are left out: {error}")
    if not uses[0].fits:
        if batch := uses[0].largest_batch:
            uses.append(sizes.at(batch).alone(f"batch of {batch:,}"))
        if precision is None and "bf16" not in sizes.graph.dtypes:
            graph = with_precision(sizes.graph, "bf16")
            halved = replace(sizes, graph=graph, kept_bytes=0.5 * sizes.kept_bytes)
            uses.append(halved.alone("all in bf16"))
    return MemoryAnswer(tuple(uses))


def _sizes(
    module: nn.Module, inputs: Any, cluster: Cluster, precision: str | None, settings: Any, microbatches: int
) -> _Sizes:
    """Captures a module on its inputs, and on larger batches until two have the same ops."""
    batch, share = batch_size(inputs), 0.5 if precision in ("bf16", *BITS) else 1.0

    def captured_at(factor: int) -> _Sizes:
        def repeated(leaf: Any) -> Any:
            has_batch = isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) == batch
            return torch.cat([leaf] * factor) if has_batch else leaf

        settings["notify"] = print_notice if factor == 1 else lambda _: None
        more = tree_map(repeated, inputs)
        captured = capture_step(module, more, gpu=gpus_of([cluster], precision), **settings)
        graph = with_precision(captured.graph, precision) if precision else captured.graph
        resident, updates = np.zeros((2, graph.n_ops)), captured.updates
        for path in updates.rules:
            tensor = captured.step.state[path]
            sizes = updates.state_bytes(path, tensor), updates.master_bytes(tensor)
            resident[:, captured.op_of_source[path]] = share * np.array(sizes)
        return _Sizes(graph, resident, cluster, microbatches, factor * batch)

    steps = [captured_at(1)]
    try:
        for factor in (2, 4):
            steps.append(captured_at(factor))
            if steps[-2].graph.op_types == steps[-1].graph.op_types:
                return replace(steps[0], line=tuple(steps[-2:]))
        reason = "each batch has other ops"
    except ValueError as error:
        reason = f"a larger one cannot be captured: {error}"
    print_notice(f"the largest batch is not known, as {reason}")
    return steps[0]
