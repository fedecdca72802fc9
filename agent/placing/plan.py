"""The answer of `place`: a placement of one batch's step, or of a pipeline's stages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.placing.exports.export import export_text, placed_modules
from agent.placing.handover.device_map import DeviceMap, project
from agent.placing.handover.explain import Explanation
from agent.placing.handover.files import View, view_of
from agent.placing.handover.trace import write_trace
from envs.cluster.cluster import Cluster
from envs.costs.op_seconds import calibration_note
from envs.figures import save_figure, step_figure, svg_of
from envs.graph_figure import graph_figure
from envs.objective import FastestSingle, Objective
from envs.placements.files import write_placement
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.simulator.data_parallel import DataParallelStep
from envs.simulator.simulate import SimulatedStep
from graphs.op_graph import OpGraph
from graphs.system.errors import in_ms, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from envs.pipeline.objective import PipelineBaselines, PipelineObjective
    from envs.pipeline.pipeline import Pipeline
    from envs.pipeline.simulate import PipelineTime
    from envs.pipeline.stages import Stages
    from envs.runtime.runner import Devices, StepRunner
    from envs.runtime.torch_stages import TorchStages
    from graphs.capture.captured_step import CapturedStep

TORCHRUN = "torchrun"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Plan:
    """A placement of one batch's step or of a pipeline, with its simulated step and its baselines.

    Attributes:
        objective: the step that the placement makes short.
        placer: name of the placer that found the placement.
        placement: device index of each op.
        step_time: one training step under the placement, simulated: seconds, bytes, whether it is feasible.
        lower_bound_s: no feasible placement has a shorter step; seconds.
        evaluations: placements that the placer simulated.
        wall_s: seconds it took, without compiling.
        captured: what runs; None if a graph was placed.
        batch_dim: dimension of a module's inputs that the microbatches of a pipeline are cut from.
        tried: lines on the pipelines that this one was chosen from, the best first.
        best_steps: the best step of those with each number of replicas.
    """

    objective: Objective
    placer: str
    placement: Placement
    step_time: SimulatedStep
    lower_bound_s: float
    evaluations: int
    wall_s: float
    captured: CapturedStep | None = None
    batch_dim: int = 0
    tried: tuple[str, ...] = ()
    best_steps: Mapping[int | str, SimulatedStep] = field(default_factory=dict)

    @property
    def graph(self) -> OpGraph:
        """The graph that was placed."""
        return self._problem.graph

    @property
    def cluster(self) -> Cluster:
        """The cluster that it was placed on."""
        return self._problem.cluster

    @property
    def device_of(self) -> Mapping[str, str]:
        """Device name of each op name, in program order."""
        devices = [device.name for device in self.cluster.devices]
        placed = self.placement.device_of.tolist()
        return {op: devices[index] for op, index in zip(self.graph.op_names, placed, strict=True)}

    @property
    def _problem(self) -> Problem:
        return self.objective.problem

    def export(self, target: str, *, layers: str = "") -> str:
        """Says the placement in the words of another runtime.

        Args:
            target: from `agent.placing.exports.export.EXPORTS`: `split-spec`, `schedule-csv`, `accelerate`,
                `torchtitan`, `megatron`, `deepspeed`, `vllm`, `sglang` or `llama.cpp`.
            layers: paths of the lists of layers that a server or Megatron-LM counts, such as
                `model.layers`, separated by commas; by default that of the language model.

        Raises:
            ExportError: an unknown target, or one that cannot run the placement; it says what would fit.
        """
        return export_text(target, placed_modules(self.objective, self.placement, layers))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a placement file, which `evaluate.py --placements` reads."""
        write_placement(path, self.graph, self.cluster, self.placement)

    def save_all(self, folder: str | os.PathLike[str]) -> None:
        """Writes what an evaluation of a model writes: the placement and all that goes with it."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self.save(target / f"{self.placer}.json")
        self._view.hand_over(target, self.placer)

    def compile(
        self,
        module: nn.Module,
        *,
        devices: Sequence[str] | str | None = None,
        seed: int = 0,
        timeout_s: float | None = None,
        check_finite: bool = True,
        check: bool | str = True,
        **options: Any,
    ) -> StepRunner:
        """Starts the devices, and gives them their parts of the step and of the module's state.

        Args:
            module: that was placed, or one of equal shapes with values; it is not changed.
            devices: the torch device that each device of the cluster stands for, such as
                `["cuda:0", "cuda:1", "cpu"]`, by default what the cluster says; or `torchrun`, where that
                started a process for each device and all of them call this.
            seed: of random numbers, such as dropout's; each device draws its own.
            timeout_s: seconds after which a step has taken too long; None = never.
            check_finite: whether a step whose loss is not finite is an error.
            check: whether loss, gradients and buffers of the first two steps are compared with those of the
                plain module, if it is small enough. A line names the first difference; `stop` makes it an
                error.
            options: of the optimizer, such as `lr`; torch's defaults otherwise.

        Returns:
            The runner: `step` trains, `state_dict` returns the state, `close` ends the processes.

        Raises:
            ExecutionError: a graph without module was placed, this machine lacks a device, the module is
                another one, or the step cannot be run.
            PipelineError: a pipeline was placed.
        """
        self._view.check_compiles()
        from envs.runtime.backends import processes, torchrun
        from envs.runtime.device_program import ExecutionError
        from envs.runtime.runner import StepRunner

        if self.captured is None:
            raise ExecutionError("only a graph was placed; place the module to run it")
        group: Devices
        if devices == TORCHRUN:
            group = torchrun.TorchrunDevices(timeout_s)
        else:
            names = processes.torch_devices(self.cluster) if devices is None else list(devices)
            group = processes.DeviceProcesses(names, timeout_s)
        try:
            if group.n_devices != self.cluster.n_devices:
                raise ExecutionError(
                    f"{group.n_devices} devices for the {self.cluster.n_devices} of the cluster"
                )
            settings: Any = {"seed": seed, "check_finite": check_finite, "check": check}
            return StepRunner(
                self.captured, self.placement.device_of, module, group, options=options, **settings
            )
        except BaseException:
            group.close()
            raise

    @cached_property
    def _view(self) -> View:
        return view_of(self.objective, self.placement, self.step_time, self.best_steps, self.tried)

    @property
    def single(self) -> FastestSingle | PipelineTime:
        """The fastest single device that has the memory, or its step; where none has, of the fastest."""
        return self.objective.single

    @property
    def single_s(self) -> float:
        """Step time of the fastest single device, seconds."""
        return self.objective.single_step[0]

    @property
    def ratio_to_single(self) -> float | None:
        """Step time over that of the fastest single device; None where the placement is out of memory."""
        return self.step_time.total_s / self.single_s if self.step_time.fits else None

    @property
    def data_parallel(self) -> DataParallelStep:
        """Data parallelism on the same devices, which is no placement; of pipelines, it adds gradients up."""
        return self._view.data_parallel

    @property
    def explanation(self) -> Explanation:
        """The bounds of the step, and the time that removing each would save, in numbers."""
        return self._view.explanation

    def explain(self) -> str:
        """Says what bounds the step, what removing it would give, and whether one device does as well.

        By module, block or layer it also says what a short search by op finds, and which modules to split. Of
        a pipeline, it says what each stage takes (forward, backward, memory), and what `auto` tried.
        """
        return "\n".join(self._view.explain())

    def device_map(self) -> DeviceMap:
        """Makes the nearest device map that accelerate can run, with the loss of step time.

        Raises:
            DeviceMapError: the graph has no module paths.
        """
        return project(self._problem, self.placement.device_of)

    def table(self) -> list[Any]:
        """Lists each op with its module, source line, shape and device, in program order, as `OpRow`.

        Of a pipeline, lists each stage with its device, ops, modules, seconds and bytes, as `StageRow`.
        """
        return self._view.table()

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the simulated step as a trace that Perfetto and chrome://tracing read."""
        write_trace(path, self._view.trace())

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the simulated step: what each device runs and sends when, and the memory that it holds.

        Equal devices are drawn in the order in which they are used.

        Args:
            path: file to save it in, such as `step.svg` or `step.png`.

        Raises:
            ValueError: a format that matplotlib lacks; the message lists those that it has.
        """
        return save_figure(step_figure(self.objective, self.placement, self.step_time, self._title), path)

    def plot_graph(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the graph in layers, in colours of the devices; by module if it has more than 300 ops.

        Args and raises as in `plot`.
        """
        return save_figure(graph_figure(self._problem, self.placement.device_of, self._title), path)

    def _repr_html_(self) -> str:
        """Shows notebooks what `print` says, and the timeline."""
        return f"<pre>{escape(str(self))}</pre>\n{svg_of(self.plot())}"

    def __str__(self) -> str:
        bound = f"at least {in_ms(self.lower_bound_s)} is needed"
        return "\n".join(self._view.summary(self._where, bound, self._ops_line()))

    @property
    def _title(self) -> str:
        return f"{self._where}: a step takes {in_ms(self.step_time.total_s)} (simulated)"

    @property
    def _where(self) -> str:
        """Names graph, cluster and placer, and says whether the costs are guesses."""
        note = calibration_note(self.graph, self.cluster)
        where = f"{shortened(self.graph.name)} on {shortened(self.cluster.name)}{note and f' ({note})'}"
        return f"{where} by {self.placer}"

    def _ops_line(self) -> str:
        """Says how many ops each device has, and what the search took."""
        counts = np.bincount(self.placement.device_of, minlength=self.cluster.n_devices)
        for group in self.placement.groups[1:]:
            counts[list(group)] = counts[list(self.placement.groups[0])]
        ops = ", ".join(
            f"{shortened(device.name)} {count:,}"
            for device, count in zip(self.cluster.devices, counts.tolist(), strict=True)
        )
        tried = "1 evaluation" if self.evaluations == 1 else f"{self.evaluations:,} evaluations"
        return f"ops: {ops}; {tried} in {self.wall_s:.2g} s"

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PipelinePlan(Plan):
    """A plan of a pipeline, which also has its stages.

    Attributes:
        step_time: one pipelined step, simulated: seconds, microbatches a second, bubble share, peak bytes,
            whether it is feasible, and when each action runs.
    """

    objective: PipelineObjective
    step_time: PipelineTime

    @property
    def pipeline(self) -> Pipeline:
        """Schedule and microbatches; the graph is the step of one microbatch."""
        return self.objective.pipeline

    @cached_property
    def stages(self) -> Stages:
        """The placement cut into stages."""
        return self.objective.cut(self.placement)

    @property
    def baselines(self) -> PipelineBaselines:
        """One device and data parallelism, with as many microbatches."""
        return self.objective.baselines

    def pipeline_stages(self, module: nn.Module, *, device: str = "cpu") -> TorchStages:
        """Makes the stages of this rank for `torch.distributed.pipelining`, cut where modules begin.

        Args:
            module: that was placed, or one of equal shapes with values; its own parameters are trained.
            device: torch device of this rank, such as `cuda:0`.

        Returns:
            The stages: `step` computes gradients, `parameters` are for an optimizer, `cuts` says how many ops
            moved, `split_spec`, `schedule` and `csv` are for torch.

        Raises:
            PipelineError: a graph without module was placed, or torch cannot run the plan.
            ExecutionError: the module is another one, or has no values.
        """
        from envs.runtime.torch_stages import TorchStages

        placed = self.objective.pipelined, self.stages
        return TorchStages(*placed, self.captured, module, device=device, batch_dim=self.batch_dim)
