"""The stages of one rank, which torch's schedules run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate

from envs.pipeline.pipeline import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from envs.runtime.torch_split import MODEL, PART, StagePart

SINGLE = {GPIPE: ScheduleGPipe, ONE_F_ONE_B: Schedule1F1B}
SEVERAL = {INTERLEAVED: ScheduleInterleaved1F1B, ZERO_BUBBLE: ScheduleInterleavedZeroBubble}
"""Torch's schedules that take a list of stages."""


@dataclass(frozen=True)
class RankSettings:
    """The settings that all ranks of a plan share.

    Attributes:
        schedule: name of the schedule.
        shares: microbatches of each replica.
        mesh: ranks of each replica in the order of their first stages; ranks at one position have the same
            stages.
        inputs: name of each input of the module, and whether it is cut; scalars go to all microbatches.
        shared: paths of the parameters that several stages use, with these stages.
    """

    schedule: str
    shares: tuple[int, ...]
    mesh: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[str, bool], ...]
    shared: tuple[tuple[str, tuple[int, ...]], ...]


class RankStages:
    """The stages of one rank, whose parameters `step` gives gradients.

    Replicas start with the values of the first one, and tied parameters with those of their first stage.

    Args:
        parts: parts of this rank, at least one; they are moved to its device.

    Attributes:
        replica: number of the replica that the rank belongs to.
        replica_group: ranks of all replicas that have the stages of this one; None if there is one replica.
        tensors: parameters and buffers by their paths in the module.
    """

    def __init__(self, settings: RankSettings, parts: Sequence[StagePart]) -> None:
        self._settings, self._device, rank = settings, parts[0].device, dist.get_rank()
        self.replica = next(number for number, ranks in enumerate(settings.mesh) if rank in ranks)
        self._n_microbatches, pipeline = settings.shares[self.replica], settings.mesh[self.replica]
        group = _group(pipeline)
        self.stages = [part.stage(group) for part in parts]
        tensors = [named for part in parts for named in part.tensors.items()]
        self.tensors = {name.removeprefix(PART): tensor for name, tensor in tensors if name.startswith(PART)}
        self._shared = {
            path: self._give_equal_values(tensor, stages)
            for path, stages in settings.shared
            if len({stage % len(pipeline) for stage in stages}) > 1
            and isinstance(tensor := self.tensors.get(path), nn.Parameter)
        }
        self.replica_group = None
        if len(settings.mesh) > 1:
            self.replica_group = _group([ranks[pipeline.index(rank)] for ranks in settings.mesh])
            self._send_from_first(self.tensors)
        changed = {path for part in parts for path in part.module.changed}
        self._changed = [path for path in self.tensors if f"{MODEL}{path}" in changed]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by their paths in the module."""
        return {path: tensor for path, tensor in self.tensors.items() if isinstance(tensor, nn.Parameter)}

    def step(self, cut: Sequence[Sequence[Tensor]]) -> Tensor | None:
        """Replaces the parameters' gradients by those of the mean loss of a batch.

        Args:
            cut: each input, in the microbatches of this replica.

        Returns:
            The loss of each microbatch of all replicas, (n_microbatches,), on ranks of the last stage; None
            on others.
        """
        for parameter in self.parameters.values():
            parameter.grad = None
        named = {
            name: (torch.cat(list(microbatches)) if is_cut else microbatches[0]).to(self._device)
            for (name, is_cut), microbatches in zip(self._settings.inputs, cut, strict=True)
        }
        losses: list[Tensor] = []
        target = torch.zeros(self._n_microbatches, device=self._device)
        self.schedule.step(target=target, losses=losses, return_outputs=False, **named)
        self._sum_gradients()
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad /= sum(self._settings.shares)
        made, shares = torch.stack(losses).detach() if losses else None, self._settings.shares
        if self.replica_group is not None:
            self._send_from_first(self._changed)
        if made is None or self.replica_group is None:
            return made
        padded = nn.functional.pad(made, (0, max(shares) - len(made)))
        of_each = [torch.empty_like(padded) for _ in shares]
        dist.all_gather(of_each, padded, group=self.replica_group)
        return torch.cat([of_replica[:share] for of_replica, share in zip(of_each, shares, strict=True)])

    def _sum_gradients(self) -> None:
        """Sums gradients over the ranks that hold a parameter, so that all of these have the same bits."""
        for path, group in self._shared.items():
            parameter = self.parameters[path]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
        if self.replica_group is None:
            return
        rest = [work.grad for path, work in self.parameters.items() if path not in self._shared]
        sums = [
            dist.all_reduce(gradient, group=self.replica_group, async_op=True)
            for gradient in rest
            if gradient is not None
        ]
        for work in sums:
            work.wait()

    def _send_from_first(self, paths: Iterable[str]) -> None:
        """Gives tensors of all replicas the values of the first one."""
        for path in paths:
            dist.broadcast(self.tensors[path].detach(), group=self.replica_group, group_src=0)

    @cached_property
    def schedule(self) -> Any:
        """The schedule of these stages, as torch's class runs it."""
        count, name = self._n_microbatches, self._settings.schedule
        keywords: dict[str, Any] = {
            "loss_fn": _loss,
            "scale_grads": False,
            "kwargs_chunk_spec": {
                name: TensorChunkSpec(0) if is_cut else _Replicate()  # type: ignore[no-untyped-call]
                for name, is_cut in self._settings.inputs
            },
        }
        if name in SINGLE:
            return SINGLE[name](self.stages[0], count, **keywords)
        return SEVERAL[name](list(self.stages), count, **keywords)

    def _give_equal_values(self, parameter: nn.Parameter, stages: Sequence[int]) -> dist.ProcessGroup:
        """Gives a parameter the values of its first rank; returns the group of the ranks that have it."""
        positions = dict.fromkeys(stage % len(self._settings.mesh[0]) for stage in stages)
        group = _group([ranks[position] for ranks in self._settings.mesh for position in positions])
        dist.broadcast(parameter.detach(), group=group, group_src=0)
        return group


def _group(ranks: Sequence[int]) -> dist.ProcessGroup:
    """Makes the process group of ranks, which are numbered in this order."""
    ranks = list(ranks)
    if ranks == list(range(dist.get_world_size())):
        return dist.distributed_c10d._get_default_group()
    order: dict[str, Any] = {} if ranks == sorted(ranks) else {"sort_ranks": False}  # new in torch 2.13
    return dist.new_group(ranks, use_local_synchronization=True, **order)


def _loss(made: tuple[Tensor], _: Tensor) -> Tensor:
    return made[0]
