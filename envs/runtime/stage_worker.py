"""The stages of a pipeline on one device: what its process is given, and what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from envs.runtime.backends.device_process import DeviceHost, Task
from envs.runtime.backends.packing import Packed, unpack, unpack_all
from envs.runtime.interpreter import DeviceState
from envs.runtime.rank_stages import RankPlan, RankStages
from envs.runtime.torch_split import StagePart, with_tensors

HOST = "127.0.0.1"
"""Where the processes of a machine meet."""


@dataclass(frozen=True, kw_only=True)
class StageTask(Task):
    """The stages of a device, which may have none.

    Attributes:
        parts: stages whose tensors have no values.
        values: of these tensors, by name.
        unused: parameters and buffers that no stage uses, by path.
        port: of the store in which the ranks meet; None if the processes are a group already.
    """

    plan: RankPlan
    parts: Sequence[StagePart] = ()
    values: dict[str, Packed] = field(default_factory=dict)
    unused: dict[str, Packed] = field(default_factory=dict)
    port: int | None = None

    def start(self, host: DeviceHost, inputs: Mapping[int, Tensor]) -> StageWorker:
        """Joins the other ranks, and makes the stages."""
        return StageWorker(self, inputs)


class StageWorker(DeviceState):
    """Runs the stages of a device, step by step; stands where an `Interpreter` does for other steps."""

    def __init__(self, task: StageTask, inputs: Mapping[int, Tensor]) -> None:
        self._inputs, self._count = inputs, task.plan.microbatches
        self._stages: RankStages | None = None
        state, trained = unpack_all(task.unused), dict[str, Tensor]()
        if task.parts:
            group = _join(task, task.parts[0])
            device = task.parts[0].device
            parts = with_tensors(task.parts, lambda name, _: unpack(task.values[name]).to(device))
            self._stages = RankStages(task.plan, parts, group)
            state |= {path: tensor.detach() for path, tensor in self._stages.tensors.items()}
            trained |= {path: each for path, each in self._stages.parameters.items() if each.requires_grad}
        super().__init__(state, trained, task.optimizer)

    def step(self) -> dict[int, Tensor]:
        """Runs one step; returns the loss of each microbatch on the device of the last stage."""
        if self._stages is None:
            return {}
        n_inputs = len(self._inputs) // self._count
        cut = [[self._inputs[m * n_inputs + at] for m in range(self._count)] for at in range(n_inputs)]
        losses = self._stages.step(cut)
        if self.optimizer:
            self.optimizer.step()
        return {} if losses is None else dict(enumerate(losses))


def _join(task: StageTask, first: StagePart) -> dist.ProcessGroup | None:
    """Joins the group of the ranks; None stands for that of all processes."""
    n_ranks = task.plan.n_ranks
    if task.port is None:
        if n_ranks == dist.get_world_size():
            return None
        return dist.new_group(list(range(n_ranks)), use_local_synchronization=True)  # type: ignore[no-any-return]
    if dist.is_initialized():
        dist.destroy_process_group()
    store = TCPStore(HOST, task.port, is_master=False)
    if is_cuda := first.device.type == "cuda":
        torch.cuda.set_device(first.device)
    backend = "nccl" if is_cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=first.index, world_size=n_ranks)
    return None
