"""The stages of a plan in `torch.distributed.pipelining`, one rank for each device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, SplitPoint

from envs.pipeline.groups import shares_of
from envs.pipeline.module_cuts import ModuleCuts, cut_at_modules
from envs.pipeline.pipeline import GPIPE, ONE_F_ONE_B, PipelineError
from envs.pipeline.schedules import schedule_csv
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.runtime.module_state import keys_of, state_of
from envs.runtime.plain_check import cut_inputs, say_if_no_mean
from envs.runtime.rank_stages import RankSettings, RankStages
from envs.runtime.torch_split import SplitStep
from graphs.capture.captured_step import CapturedStep
from graphs.capture.checkpoints import RUN
from graphs.capture.step import unwrapped
from graphs.system.errors import print_notice


class TorchStages:
    """The stages of a plan for the ranks of torch.distributed, as many as its devices.

    Without replicas, stage `i` runs on rank `i`, then in rounds. With replicas, rank `i` runs what the plan
    has on the `i`-th of the devices of all replicas, in the order of the cluster. Cuts lie where modules
    begin. The module's own parameters are trained, on each rank those of its stages.

    Args:
        module: module that was placed, or one of equal shapes; this rank's stages are moved to its device.
        device: torch device of this rank.
        batch_dim: dimension of the inputs that microbatches are cut from.

    Attributes:
        mesh: ranks of each replica, in the order of their first stages.
        shares: microbatches of each replica.
        cuts: modules that stages begin with, and the simulated step of these stages.

    Raises:
        PipelineError: too few modules that a stage can begin with, no loss, too few microbatches or unequal
            shares of them, or recomputation under `zero-bubble`.
        ExecutionError: the module is another one than was placed, or has no values.
    """

    def __init__(
        self,
        pipelined: PipelinedProblem,
        stages: Stages,
        captured: CapturedStep | None,
        module: nn.Module,
        *,
        device: str = "cpu",
        batch_dim: int = 0,
    ) -> None:
        if captured is None:
            raise PipelineError("only a graph was placed; place the module to run its stages")
        self.module, self.captured, self.pipeline = unwrapped(module), captured, pipelined.pipeline
        self.mesh, self.shares = _mesh(stages), _shares(pipelined, stages)
        self.batch_dim, self._device, self._n_steps = batch_dim, torch.device(device), 0
        state_of(captured, self.module)
        self.cuts: ModuleCuts = cut_at_modules(pipelined, stages, partial(_is_called, self.module))
        self._n_stages, self._n_ranks = len(self.cuts.stages.devices), len(self.cuts.stages.ranks)
        if not captured.step.has_loss:
            raise PipelineError("the module was placed for inference; place it with training=True")
        if stages.recomputed and self.pipeline.splits_backward:
            raise PipelineError(
                f"torch runs a stage again for each of its parameters with '{self.pipeline.name}'; use "
                f"{ONE_F_ONE_B}, or place with may_recompute=False in the Pipeline"
            )
        if self.pipeline.name == ONE_F_ONE_B and min(self.shares) < self._n_stages:
            raise PipelineError(
                f"torch runs schedule '{ONE_F_ONE_B}' with at least as many microbatches as stages, not "
                f"{min(self.shares)} for {self._n_stages}; use {GPIPE} or more microbatches"
            )
        if any(RUN in node.meta for node in captured.trace.nodes):
            print_notice("stages run layers under torch.utils.checkpoint once, in more memory than simulated")

    def __repr__(self) -> str:
        where = f"split before {', '.join(self.cuts.modules)}" if self.cuts.modules else "one stage"
        return f"{where}: {self.cuts}"

    @property
    def split_spec(self) -> dict[str, SplitPoint]:
        """Modules to split at, as `torch.distributed.pipelining.pipeline` takes them."""
        return dict.fromkeys(self.cuts.modules, SplitPoint.BEGINNING)

    @property
    def csv(self) -> str:
        """The actions of each rank of the first replica in a row, as torch loads `compute_only` schedules."""
        return schedule_csv(replace(self.pipeline, microbatches=self.shares[0], replicas=1), self._n_ranks)

    def step(self, inputs: Any) -> Tensor | None:
        """Replaces the parameters' gradients by those of a whole batch: of the mean loss of its microbatches.

        Every rank must call it with the same batch. The first rank compares the loss of the first batch with
        that of its microbatches, with the values that its own module has.

        Args:
            inputs: one batch of as many microbatches as the plan has, of the structure of the capture.

        Returns:
            The loss of each microbatch, (n_microbatches,), on ranks of the last stage; None on others.

        Raises:
            ExecutionError: the inputs are not those of so many microbatches of the capture.
            PipelineError: as `stages`.
        """
        cut = cut_inputs(self.captured.step, inputs, self.pipeline.microbatches, self.batch_dim)
        rank = self._rank
        if dist.get_rank() == 0 and not self._n_steps:
            state = partial(state_of, self.captured, self.module)
            say_if_no_mean(self.captured, state, inputs, self.pipeline.microbatches, self.batch_dim)
        self._n_steps += 1
        first = sum(self.shares[: rank.replica])
        return rank.step([microbatches[first : first + self.shares[rank.replica]] for microbatches in cut])

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of this rank's stages, for an optimizer."""
        yield from self._rank.parameters.values()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the parameters and buffers of this rank's stages, under the keys of the module's."""
        path_of = keys_of(self.captured, self.module)
        tensors = self._rank.tensors
        return {key: tensors[path] for key, path in path_of.items() if path in tensors}

    @property
    def stages(self) -> list[PipelineStage]:
        """The stages of this rank.

        Raises:
            PipelineError: there is no process group, it has another size, or torch cannot split the module.
        """
        return self._rank.stages

    @property
    def replica_group(self) -> dist.ProcessGroup | None:
        """The ranks of all replicas that have the stages of this one; None if there is one replica.

        `torch.distributed.optim.ZeroRedundancyOptimizer` takes it to divide the optimizer's states.

        Raises:
            PipelineError: as `stages`.
        """
        return self._rank.replica_group

    @property
    def schedule(self) -> Any:
        """The schedule of this rank's stages, as torch's class runs it."""
        return self._rank.schedule

    @cached_property
    def _rank(self) -> RankStages:
        n_there = dist.get_world_size() if dist.is_initialized() else 0
        if n_there != (n_devices := sum(map(len, self.mesh))):
            raise PipelineError(
                f"the plan has {n_devices} devices, and {n_there} processes are there; start one each "
                "by torchrun, and call torch.distributed.init_process_group"
            )
        (position,) = (ranks.index(rank) for ranks in self.mesh if (rank := dist.get_rank()) in ranks)
        split = SplitStep(self.captured, self.module, self.cuts.modules)
        recomputed = self.cuts.stages.recomputed
        names = zip(split.inputs, self.captured.step.tensors, strict=True)
        settings = RankSettings(
            schedule=self.pipeline.name,
            shares=self.shares,
            mesh=self.mesh,
            inputs=tuple((name, tensor.dim() > 0) for name, tensor in names),
            shared=split.shared,
        )
        numbers = range(position, self._n_stages, self._n_ranks)
        parts = [split.part(number, self._device, recomputes=number in recomputed) for number in numbers]
        return RankStages(settings, parts)


def _mesh(stages: Stages) -> tuple[tuple[int, ...], ...]:
    """Numbers the ranks of each replica; those of one replica in the order of its first stages."""
    if len(stages.replicas) == 1:
        return (tuple(range(len(stages.ranks))),)
    order = sorted(device for group in stages.replicas for device in group)
    return tuple(tuple(map(order.index, group)) for group in stages.replicas)


def _shares(pipelined: PipelinedProblem, stages: Stages) -> tuple[int, ...]:
    """Returns the microbatches of each replica.

    Raises:
        PipelineError: there are no equal shares, or the plan has no devices for its replicas.
    """
    pipeline, n_replicas = pipelined.pipeline, len(stages.replicas)
    if pipeline.replicas != n_replicas:
        raise PipelineError(
            f"the plan has devices for {n_replicas} replicas, and its pipeline has {pipeline.replicas}; "
            "place the module again"
        )
    return shares_of(pipelined.problem, stages.replicas, pipeline.microbatches)


def _is_called(module: nn.Module, path: str) -> bool:
    """Says whether the module of a path has a forward pass; lists of modules have none."""
    try:
        return type(module.get_submodule(path)).forward is not nn.Module.forward
    except AttributeError:
        return False
