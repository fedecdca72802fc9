"""Answers whether the training of a model fits, without search: bytes by kind for each way to run it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from agent.calibration.quick import get_or_measure_cluster
from agent.placers.pipeline.equal import cut_by_load
from envs.cluster.cluster import Cluster
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.objective import Cuts, PipelineObjective
from envs.pipeline.pipeline import ONE_F_ONE_B, Pipeline, PipelineError
from envs.problem import Problem
from envs.simulator.all_reduce import gradients_of
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import OpGraph
from graphs.precision import BITS, with_precision
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import print_notice

if TYPE_CHECKING:
    from torch import nn

    from graphs.capture.captured_step import CapturedStep
    from graphs.capture.loss import Loss

MOST_BATCHES = 2**20
"""Largest batch that is tried."""
HEADS = ("GB", "weights", "grads", "states", "master", "activ.", "temp.", "total", "fit", "batch")


@dataclass(frozen=True)
class MemoryUse:
    """The memory of the fullest device where a step runs in some way, at its peak.

    Attributes:
        weights_bytes, gradient_bytes, state_bytes, master_bytes: weights and buffers, their gradients, states
            of the optimizer, and master weights.
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


@dataclass(frozen=True)
class MemoryAnswer:
    """The answer of `fits`: one device, other ways to run the step and, where it does not fit, changes."""

    uses: tuple[MemoryUse, ...]

    def __str__(self) -> str:
        table = Table(*HEADS, box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for use in self.uses:
            numbers = [f"{size / 1e9:.3g}" for size in (*astuple(use)[1:7], use.total_bytes)]
            batch = "" if use.largest_batch is None else f"{use.largest_batch:,}"
            table.add_row(use.way, *numbers, "yes" if use.fits else "no", batch)
        text = StringIO()
        Console(file=text, width=80).print(table)
        rows = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
        first, *others = self.uses
        fitting = ", ".join(use.way for use in others if use.fits) or "nothing that was tried"
        answer = "fits" if first.fits else f"does not fit, but with {fitting},"
        return (
            f"the step {answer} on devices of {first.memory_bytes / 1e9:.3g} GB\n{rows}\n"
            "on the fullest device at its peak; batch: the largest (micro)batch that fits"
        )


@dataclass(frozen=True)
class _Sizes:
    """A captured step: its graph in a precision, in which `kept_share` of the captured states is kept.

    Attributes:
        batch: size of the batch; 0 = not known.
        doubled: graph with the same ops at twice the batch.
        larger: the step of a larger batch, if larger ones have other ops than this.
    """

    captured: CapturedStep
    graph: OpGraph
    kept_share: float
    cluster: Cluster
    microbatches: int
    batch: int = 0
    doubled: OpGraph | None = None
    larger: _Sizes | None = None

    def at(self, batch: int) -> _Sizes:
        """Returns the step of another batch; sizes of tensors are linear in it."""
        if self.larger and batch != self.batch:
            return self.larger.at(batch)
        if self.doubled is None:
            return self
        change = (batch / self.batch - 1) * (self.doubled.tensor_bytes - self.graph.tensor_bytes)
        sizes = np.maximum(self.graph.tensor_bytes + change, 0.0)
        return replace(self, graph=replace(self.graph, tensor_bytes=sizes))

    def use(
        self, way: str, device_of: IntArray, peak_bytes: FloatArray, alive: IntArray, shards: int = 1
    ) -> MemoryUse:
        """Divides the peak of the fullest device by kind.

        Args:
            alive: microbatches whose activations each device holds at once, (n_devices,).
            shards: devices that divide states and master weights.
        """
        graph, updates, memory = self.graph, self.captured.updates, self.cluster.memory_bytes
        kept = np.zeros((2, graph.n_ops))
        for path in updates.rules:
            tensor = self.captured.step.state[path]
            sizes = updates.state_bytes(path, tensor), updates.master_bytes(tensor)
            kept[:, self.captured.op_of_source[path]] = self.kept_share * np.array(sizes)
        columns = graph.resident_bytes, *kept
        resident, state, master = (np.bincount(device_of, column, len(memory)) for column in columns)
        peak = peak_bytes - (1 - 1 / shards) * (state + master)
        device, made_on = int(np.argmax(peak / memory)), device_of[graph.tensor_producer]
        reduced = gradients_of(graph)
        gradients = graph.tensor_bytes[reduced[made_on[reduced] == device]].sum()
        saved = Problem(graph, self.cluster).saved_bytes[made_on == device].sum() * alive[device]
        held = peak_bytes[device] - resident[device]
        weights = resident[device] - gradients - state[device] - master[device]
        optimizer = state[device] / shards, master[device] / shards
        parts = weights, gradients, *optimizer, min(saved, held), held - min(saved, held), memory[device]
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
        first = np.empty(n_stages, dtype=np.int64)
        cut_by_load(objective.chain.seconds_before[:n_stages], first)
        stages = objective.stages(Cuts(tuple(first), tuple(range(n_stages)), (again,) * n_stages))
        peak = objective.pipelined.simulate(stages).peak_bytes
        alive = np.clip(n_stages - np.arange(problem.n_devices), 1, 1 if again else self.microbatches)
        return self.use(f"{n_stages} stages{', recompute' * again}", stages.device_of, peak, alive)

    def largest(self, run: Callable[[_Sizes], MemoryUse]) -> MemoryUse:
        """Runs the step in a way, and finds the largest batch for which that fits by bisection."""
        if not self.batch:
            return run(self)
        low, high = 0, 1
        while high <= MOST_BATCHES and run(self.at(high)).fits:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if run(self.at(middle)).fits else (low, middle)
        return replace(run(self), largest_batch=low)


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
            halved = replace(sizes, graph=with_precision(sizes.graph, "bf16"), kept_share=0.5)
            uses.append(halved.alone("all in bf16"))
    return MemoryAnswer(tuple(uses))


def _sizes(
    module: nn.Module, inputs: Any, cluster: Cluster, precision: str | None, settings: Any, microbatches: int
) -> _Sizes:
    """Captures a module on its inputs, and on twice the batch, if that is possible."""
    import torch
    from torch.utils._pytree import tree_map

    from graphs.capture import capture, structures

    batch = structures.batch_size(inputs)

    def captured_at(factor: int) -> _Sizes:
        def repeated(leaf: Any) -> Any:
            has_batch = isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) == batch
            return torch.cat([leaf] * factor) if has_batch else leaf

        settings["notify"] = print_notice if factor == 1 else lambda _: None
        more = tree_map(repeated, inputs)
        captured = capture.capture_step(module, more, gpu=gpus_of([cluster], precision), **settings)
        graph = with_precision(captured.graph, precision) if precision else captured.graph
        share = 0.5 if precision in ("bf16", *BITS) else 1.0
        return _Sizes(captured, graph, share, cluster, microbatches, factor * batch)

    sizes = captured_at(1)
    try:
        one, two = sizes, captured_at(2)
        if one.graph.op_types != two.graph.op_types:
            one, two = two, captured_at(4)
        if one.graph.op_types == two.graph.op_types:
            line = replace(one, doubled=two.graph)
            return line if one is sizes else replace(sizes, larger=line)
        print_notice("the largest batch is not known, as each batch has other ops")
    except ValueError as error:
        print_notice(f"the largest batch is not known, as a larger one cannot be captured: {error}")
    return replace(sizes, batch=0)
