"""The stages of a plan in `torch.distributed.pipelining`, one rank for each device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    SplitPoint,
)
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from envs.pipeline.module_cuts import ModuleCuts, cut_at_modules
from envs.pipeline.pipeline import GPIPE, INTERLEAVED, ONE_F_ONE_B, SEARCHED, ZERO_BUBBLE, PipelineError
from envs.pipeline.schedules import schedule_csv
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.runtime.module_state import keys_of, state_of
from envs.runtime.pipeline_runner import cut_inputs, say_if_no_mean
from envs.runtime.torch_split import PART, SplitStep
from graphs.capture.captured_step import CapturedStep
from graphs.capture.step import unwrapped

SINGLE = {GPIPE: ScheduleGPipe, ONE_F_ONE_B: Schedule1F1B}
SEVERAL = {
    INTERLEAVED: ScheduleInterleaved1F1B,
    ZERO_BUBBLE: ScheduleInterleavedZeroBubble,
    SEARCHED: _PipelineScheduleRuntime,
}
"""Torch's schedules that take a list of stages; the last one takes any order."""


class TorchStages:
    """The stages of a plan for the ranks of torch.distributed; rank `i` runs those of the plan's device `i`.

    Cuts lie where modules begin. The module's own parameters are trained, on each rank those of its stages.

    Args:
        module: that was placed, or one of equal shapes; this rank's stages are moved to its device.
        device: torch device of this rank.
        batch_dim: dimension of the inputs that microbatches are cut from.

    Attributes:
        cuts: modules that stages begin with, and the simulated step of these stages.

    Raises:
        PipelineError: too few modules that a stage can begin with, no loss, too few microbatches,
            or recomputation under `zero-bubble` or `searched`.
        ExecutionError: the module is another one than was placed, or has no values.
    """

    def __init__(
        self,
        pipelined: PipelinedProblem,
        stages: Stages,
        captured: CapturedStep,
        module: nn.Module,
        *,
        device: str = "cpu",
        batch_dim: int = 0,
    ) -> None:
        module = unwrapped(module)
        state_of(captured, module)
        self.cuts: ModuleCuts = cut_at_modules(pipelined, stages, _is_called_in(module))
        self._pipeline, self._captured, self._module = pipelined.pipeline, captured, module
        self._device, self._batch_dim = torch.device(device), batch_dim
        self._n_steps = 0
        self._n_stages, self._n_ranks = len(self.cuts.stages.devices), len(self.cuts.stages.ranks)
        if not captured.step.has_loss:
            raise PipelineError("the module was placed for inference; place it with training=True")
        if stages.recomputed and self._pipeline.splits_backward:
            raise PipelineError(
                f"torch runs a stage again for each of its parameters with '{self._pipeline.name}'; use "
                f"{ONE_F_ONE_B}, place with may_recompute=False in the Pipeline, or use plan.compile"
            )
        if self._pipeline.name == ONE_F_ONE_B and self._pipeline.microbatches < self._n_stages:
            raise PipelineError(
                f"torch runs schedule '{ONE_F_ONE_B}' with at least as many microbatches as stages, not "
                f"{self._pipeline.microbatches} for {self._n_stages}; use {GPIPE} or more microbatches"
            )

    def __repr__(self) -> str:
        where = f"split before {', '.join(self.cuts.modules)}" if self.cuts.modules else "one stage"
        return f"{where}: {self.cuts}"

    @property
    def split_spec(self) -> dict[str, SplitPoint]:
        """Modules to split at, as `torch.distributed.pipelining.pipeline` takes them."""
        return dict.fromkeys(self.cuts.modules, SplitPoint.BEGINNING)

    @property
    def csv(self) -> str:
        """The actions of each rank in a row, as torch's schedules load them in format `compute_only`."""
        return schedule_csv(self._pipeline, self._n_ranks, self.cuts.stages.actions)

    def step(self, inputs: Any) -> Tensor | None:
        """Replaces the parameters' gradients by those of a whole batch: of the mean loss of its microbatches.

        Every rank must call it with the same batch. The first rank compares the loss of the first batch with
        that of its microbatches, as `PipelineRunner` does, with the values that its own module has.

        Args:
            inputs: as many microbatches as the plan has in one batch, of the structure of the capture.

        Returns:
            The loss of each microbatch, (n_microbatches,), on the rank of the last stage; None on others.

        Raises:
            ExecutionError: the inputs are not those of so many microbatches of the capture.
            PipelineError: as `stages`.
        """
        cut = cut_inputs(self._captured.step, inputs, self._pipeline.microbatches, self._batch_dim)
        shared = self._shared
        for parameter in self.parameters():
            parameter.grad = None
        if dist.get_rank() == 0 and not self._n_steps:
            state = partial(state_of, self._captured, self._module)
            say_if_no_mean(self._captured, state, inputs, self._pipeline.microbatches, self._batch_dim)
        self._n_steps += 1
        named = {
            name: (torch.cat(each) if each[0].dim() else each[0]).to(self._device)
            for name, each in zip(self._split.inputs, cut, strict=True)
        }
        losses: list[Tensor] = []
        target = torch.zeros(self._pipeline.microbatches, device=self._device)
        self.schedule.step(target=target, losses=losses, return_outputs=False, **named)
        for parameter, group in shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad /= self._pipeline.microbatches
        return torch.stack(losses).detach() if losses else None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of this rank's stages, for an optimizer."""
        yield from nn.ModuleList(stage.submod for stage in self.stages).parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the parameters and buffers of this rank's stages, under the keys of the module's."""
        states = (stage.submod.state_dict() for stage in self.stages)
        found = {path.removeprefix(PART): value for state in states for path, value in state.items()}
        path_of = keys_of(self._captured, self._module)
        return {key: found[path] for key, path in path_of.items() if path in found}

    @cached_property
    def stages(self) -> list[PipelineStage]:
        """The stages of this rank.

        Raises:
            PipelineError: there is no process group, it has another size, or torch cannot split the module.
        """
        n_there = dist.get_world_size() if dist.is_initialized() else 0
        if n_there != self._n_ranks:
            raise PipelineError(
                f"the plan has {self._n_ranks} devices, and {n_there} processes are there; start one each "
                "by torchrun, and call torch.distributed.init_process_group"
            )
        numbers = range(dist.get_rank(), self._n_stages, self._n_ranks)
        again = self.cuts.stages.recomputed
        return [self._split.stage(each, self._device, recomputes=each in again) for each in numbers]

    @cached_property
    def schedule(self) -> Any:
        """The schedule of this rank's stages, as torch's class runs it."""
        settings: dict[str, Any] = {
            "loss_fn": _loss,
            "scale_grads": False,
            "kwargs_chunk_spec": {
                name: TensorChunkSpec(0) if tensor.dim() else _Replicate()  # type: ignore[no-untyped-call]
                for name, tensor in zip(self._split.inputs, self._captured.step.tensors, strict=True)
            },
        }
        count, name = self._pipeline.microbatches, self._pipeline.name
        if name in SINGLE:
            return SINGLE[name](self.stages[0], count, **settings)
        schedule = SEVERAL[name](list(self.stages), count, **settings)
        if name == SEARCHED:
            with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
                file.write(self.csv)
                file.flush()
                schedule._load_csv(file.name)
        return schedule

    @cached_property
    def _split(self) -> SplitStep:
        return SplitStep(self._captured, self._module, self.cuts.modules)

    @cached_property
    def _shared(self) -> list[tuple[nn.Parameter, dist.ProcessGroup]]:
        """Parameters that other ranks have too, with the group of these ranks; gives them equal values."""
        found = []
        for parameter, stages in self._split.shared:
            ranks = sorted({stage % self._n_ranks for stage in stages})
            if parameter.requires_grad and len(ranks) > 1:
                group = dist.new_group(ranks)  # every rank must call it
                if dist.get_rank() in ranks:
                    dist.broadcast(parameter.detach(), ranks[0], group=group)
                    found.append((parameter, group))
        return found


def _loss(made: tuple[Tensor], _: Tensor) -> Tensor:
    return made[0]


def _is_called_in(module: nn.Module) -> Callable[[str], bool]:
    """Returns what says of a path whether its module has a forward pass; lists of modules have none."""

    def is_called(path: str) -> bool:
        try:
            return type(module.get_submodule(path)).forward is not nn.Module.forward
        except AttributeError:
            return False

    return is_called
