"""The answer of `place` for a pipeline: its stages, their simulated step, and steps without a pipeline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.pipelines.data_parallel import DataParallelPipeline
from agent.placing.exports.export import PlacedModules
from agent.placing.handover.pipeline import (
    PipelineBaselines,
    StageRow,
    pipeline_lines,
    stage_rows,
    write_pipeline_handover,
)
from agent.placing.handover.trace import pipeline_trace, write_trace
from agent.placing.plan import PlacedGraph
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages
from graphs.system.numbers import in_ms

if TYPE_CHECKING:
    from torch import nn

    from envs.runtime.pipeline_runner import PipelineRunner
    from envs.runtime.runner import Devices
    from envs.runtime.torch_stages import TorchStages
    from graphs.capture.captured_step import CapturedStep


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PipelinePlan(PlacedGraph):
    """A placement of a pipeline's stages, with its simulated step and its baselines.

    Attributes:
        pipeline: schedule and microbatches; the graph is the step of one microbatch.
        stages: the placement cut into stages.
        step_time: one pipelined step, simulated: seconds, microbatches a second, bubble share, peak bytes,
            whether it is feasible, and when each action runs.
        baselines: one device and data parallelism, with as many microbatches.
        batch_dim: dimension of a module's inputs that microbatches are cut from.
        tried: lines on the pipelines that this one was chosen from, the best first.
    """

    pipeline: Pipeline
    stages: Stages
    step_time: PipelineTime
    baselines: PipelineBaselines
    batch_dim: int = 0
    tried: tuple[str, ...] = ()

    @property
    def single(self) -> PipelineTime:
        """The step on the fastest device that has the memory; where none has, on the fastest."""
        return self.baselines.single

    @property
    def data_parallel(self) -> DataParallelPipeline:
        """Data parallelism with accumulated gradients on the same devices."""
        return self.baselines.data_parallel

    @cached_property
    def _pipelined(self) -> PipelinedProblem:
        return PipelinedProblem(self._problem, self.pipeline)

    @cached_property
    def _lines(self) -> Sequence[str]:
        return pipeline_lines(self._pipelined, self.stages, self.step_time, self.baselines)

    def explain(self) -> str:
        """Says what to use, what each stage takes (forward, backward, memory), and what `auto` tried."""
        tried = [f"chosen from: {'; '.join(self.tried)}"] if len(self.tried) > 1 else []
        return "\n".join([*self._lines, *tried])

    def table(self) -> list[StageRow]:
        """Lists each stage with its device, first and last op, modules, seconds and bytes."""
        return list(stage_rows(self._pipelined, self.stages, self.step_time))

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the simulated step as a trace that Perfetto and chrome://tracing read."""
        write_trace(path, pipeline_trace(self._pipelined, self.step_time))

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

        if self.captured is None:
            raise PipelineError("only a graph was placed; place the module to run its stages")
        return TorchStages(
            self._pipelined, self.stages, self.captured, module, device=device, batch_dim=self.batch_dim
        )

    def _placed_modules(self) -> PlacedModules:
        return PlacedModules(self._problem, self.placement, self.pipeline, self.stages)

    def _hand_over(self, folder: Path) -> None:
        write_pipeline_handover(
            folder, self.placer, self._pipelined, self.stages, self.step_time, self.baselines
        )

    def _runner(
        self, captured: CapturedStep, module: nn.Module, devices: Devices, **settings: Any
    ) -> PipelineRunner:
        from envs.runtime.pipeline_runner import PipelineRunner

        return PipelineRunner(
            captured, self.stages, self.pipeline, module, devices, batch_dim=self.batch_dim, **settings
        )

    def __str__(self) -> str:
        advice, shape, *paces = self._lines[: 3 + len(self.baselines.steps())]
        bound = f"at least {in_ms(self.lower_bound_s)} is needed"
        return "\n".join([advice, f"{self._where}: {shape}", *paces, bound, self._ops_line()])
