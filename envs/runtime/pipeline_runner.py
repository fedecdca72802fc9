"""Trains a model as a pipeline: the processes of the devices run its stages by the schedules of torch."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

from envs.pipeline.pipeline import PipelineError
from envs.runtime.backends.wire import pack, pack_all
from envs.runtime.device_program import ExecutionError
from envs.runtime.interpreter import OptimizerSettings
from envs.runtime.microbatches import cut_inputs, say_if_no_mean
from envs.runtime.module_state import state_of
from envs.runtime.rank_stages import HOST, StageTask
from envs.runtime.runner import Devices, StepRunner, joined
from envs.runtime.torch_split import PART, StagePart, with_tensors
from envs.runtime.torch_stages import TorchStages
from envs.runtime.user_ops import modules_with_ops
from graphs.system.array_types import IntArray


class PipelineRunner(StepRunner):
    """A pipelined step that runs on the processes of the devices; it holds the model's state.

    The captured step is that of one microbatch. The loss of a step is the mean of the losses of its
    microbatches, as are the gradients: as if `(loss / microbatches).backward()` were called for each of
    them before one update. `step` and `set_inputs` take the inputs of the whole batch, or a list of the
    inputs of each microbatch. A tensor of the whole batch is cut along `batch_dim`; one of the shape that it
    had at the capture goes to every microbatch.

    Args:
        stages: the plan, cut where modules begin; one line says how many ops that moves.
        processes: each device has one of its own. Of torchrun, rank `i` runs stage `i`.
        settings: as a `StepRunner` takes them.

    Raises:
        PipelineError: torch cannot split the module, a parameter has a hook, devices are CPUs and GPUs, or
            the plan has replicas.
        ExecutionError: as a `StepRunner`.
    """

    def __init__(self, stages: TorchStages, processes: Devices, **settings: Any) -> None:
        self.cuts, self.batch_dim = stages.cuts, stages.batch_dim
        self._stages, self._count = stages, stages.pipeline.microbatches
        if len(stages.mesh) > 1:
            raise PipelineError(
                f"compile runs one pipeline, and the plan has {len(stages.mesh)} replicas of one; run "
                "plan.pipeline_stages under torchrun, one process for each device"
            )
        if hooks := stages.captured.step.hooks:
            raise PipelineError(
                f"the gradient of '{min(hooks)}' has a hook, which the processes of a pipeline cannot run; "
                "run plan.pipeline_stages under torchrun, which runs it for each microbatch"
            )
        if self.cuts.n_moved:
            print(self.cuts, file=sys.stderr)
        super().__init__(stages.captured, self.cuts.stages.device_of, stages.module, processes, **settings)

    def step(self, *inputs: Any, **named_inputs: Any) -> Tensor | list[Tensor]:
        """Runs a step, as `StepRunner` does; compares the first batch at once with its microbatches."""
        if self.n_steps == 0:
            given = named_inputs or inputs
            say_if_no_mean(
                self.captured, lambda: joined(self._ask("state")), given, self._count, self.batch_dim
            )
        return super().step(*inputs, **named_inputs)

    def _load(
        self, device_of: IntArray, module: nn.Module, optimizer: OptimizerSettings | None, seed: int
    ) -> None:
        stages, processes = self._stages, self.processes
        ranks = range(stages.n_ranks) if processes.is_group else self.cuts.stages.ranks.tolist()
        if len({processes.names[device].partition(":")[0] for device in ranks}) > 1:
            raise PipelineError(
                "torch runs a pipeline on CPUs or on GPUs, not on both; name devices of one kind"
            )
        parts = {device: stages.parts(rank, processes.names[device]) for rank, device in enumerate(ranks)}
        unused = state_of(self.captured, module)
        for path in _paths(part for each in parts.values() for part in each):
            unused.pop(path, None)
        _, inputs, n_bytes = self._lay_out([], self._count)
        port = None if processes.is_group else self._open_store()
        tasks = []
        for device in range(processes.n_devices):
            own = parts.get(device, [])
            values = {name: pack(tensor) for part in own for name, tensor in part.tensors.items()}
            task = StageTask(
                memory_bytes=n_bytes,
                inputs=dict(enumerate(inputs)),
                optimizer=optimizer,
                seed=seed + device,
                settings=stages.settings,
                parts=with_tensors(own, lambda _, tensor: tensor.to("meta")),
                values=values,
                unused=pack_all(unused) if device == 0 else {},
                port=port,
            )
            tasks.append(task)
        ops = list({name for each in parts.values() for part in each for name in part.ops})
        processes.ask([("import_ops", ops, modules_with_ops(ops, module))] * processes.n_devices)
        self._state = [[*_paths(each.parts), *each.unused] for each in tasks]
        trained = self.captured.trace.gradients
        self._trained = [[path for path in paths if path in trained] for paths in self._state]
        processes.ask([("load", task) for task in tasks])

    def _open_store(self) -> int:
        """Opens the store in which the ranks meet, on this machine alone, once; returns its port."""
        if not hasattr(self, "_store"):
            listener = socket.create_server((HOST, 0))
            port = listener.getsockname()[1]
            self._store = TCPStore(
                HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )
        return int(self._store.port)

    def _flat_inputs(self, inputs: Any) -> list[Tensor]:
        given = inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs
        step = self.captured.step
        if not isinstance(given, list):
            cut = cut_inputs(step, given, self._count, self.batch_dim)
            return [tensors[microbatch] for microbatch in range(self._count) for tensors in cut]
        if len(given) != self._count:
            raise ExecutionError(
                f"{len(given)} microbatches; the pipeline has {self._count}, so give a list of {self._count}"
            )
        found = [step.flat_inputs(each) for each in given]
        for index, tensors in enumerate(zip(*found, strict=True)):
            if not tensors[0].dim() and any(each != tensors[0] for each in tensors):
                raise ExecutionError(
                    f"input {index} is a number that differs between microbatches; give it a dimension"
                )
        return [tensor for tensors in found for tensor in tensors]


def _paths(parts: Iterable[StagePart]) -> list[str]:
    """Lists the parameters and buffers of stages by their paths in the module, each once."""
    names = dict.fromkeys(name for part in parts for name in part.tensors)
    return [name.removeprefix(PART) for name in names if name.startswith(PART)]
