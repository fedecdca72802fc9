"""Trains a model as a pipeline: each device runs its actions of the schedule, microbatch by microbatch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import ActionTime
from envs.pipeline.stages import Stages
from envs.runtime.cut_pipeline import cut_pipeline
from envs.runtime.device_program import Call, DeviceProgram, ExecutionError
from envs.runtime.runner import Devices, StepRunner, StepTimes, joined
from graphs.capture.captured_step import CapturedStep
from graphs.capture.step import Step
from graphs.capture.structures import split_offsets
from graphs.system.array_types import IntArray

MOST_FLOPS = 1e11
"""Of a step whose microbatches are compared with the whole batch; seconds of a processor."""
RTOL = 1e-3
"""Difference that rounding may make between the two."""


class PipelineRunner(StepRunner):
    """A pipelined step that runs on the processes of the devices; it holds the model's state.

    The captured step is that of one microbatch. The loss of a step is the mean of the losses of its
    microbatches, as are the gradients: as if `(loss / microbatches).backward()` were called for each of
    them before one update. `step` and `set_inputs` take the inputs of the whole batch, or a list of the
    inputs of each microbatch. A tensor of the whole batch is cut along `batch_dim`; one of the shape that it
    had at the capture goes to every microbatch.

    Args:
        captured: of the module, or of one with equal shapes, on a microbatch.
        stages: of the captured graph.
        pipeline: schedule and number of microbatches.
        batch_dim: dimension along which tensors of a whole batch are cut.
        module, processes, settings: as a `StepRunner` takes them.

    Raises:
        PipelineError: the stages are none of this step, or the schedule cannot run them.
        ExecutionError: as a `StepRunner`.
    """

    def __init__(
        self,
        captured: CapturedStep,
        stages: Stages,
        pipeline: Pipeline,
        module: nn.Module,
        processes: Devices,
        *,
        batch_dim: int = 0,
        **settings: Any,
    ) -> None:
        self.stages, self.pipeline, self.batch_dim = stages, pipeline, batch_dim
        self._n_batches = pipeline.microbatches
        super().__init__(captured, stages.device_of, module, processes, **settings)

    def step(self, *inputs: Any, **named_inputs: Any) -> Tensor | list[Tensor]:
        """Runs a step, as `StepRunner` does; compares the first batch at once with its microbatches."""
        if self.n_steps == 0:
            given, count = named_inputs or inputs, self.pipeline.microbatches
            say_if_no_mean(self.captured, lambda: joined(self._ask("state")), given, count, self.batch_dim)
        return super().step(*inputs, **named_inputs)

    def action_times(self, step: StepTimes) -> list[ActionTime]:
        """Lists when each action ran, by device, in its order; the updates come last.

        Args:
            step: one of `timed_steps(..., timed_ops=True)`.

        Returns:
            Start of the first op and end of the last, in seconds since the step began.
        """
        zero_s = min(each.start_s for each in step.records)
        found = []
        for device, actions in enumerate(self._actions):
            spans, instructions = step.records[device].spans, self.programs[device].instructions
            for action, first, end in actions:
                calls = [spans[at] for at in range(first, end) if isinstance(instructions[at], Call)]
                # An action without ops has the time at which the device comes to it.
                start_s, end_s = (calls[0][0], calls[-1][1]) if calls else (spans[first][0],) * 2
                found.append(ActionTime(device, *action, start_s - zero_s, end_s - zero_s))
            start_s, end_s = spans[-1]
            last = self.pipeline.microbatches
            found.append(ActionTime(device, -1, -1, last, start_s - zero_s, end_s - zero_s))
        return found

    def _cut(self, device_of: IntArray) -> list[DeviceProgram]:
        programs, self._actions = cut_pipeline(
            self.captured, self.stages, self.pipeline, self.processes.n_devices
        )
        return programs

    def _flat_inputs(self, inputs: Any) -> list[Tensor]:
        count = self.pipeline.microbatches
        given = inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs
        if not isinstance(given, list):
            cut = cut_inputs(self.captured.step, given, count, self.batch_dim)
            return [tensors[microbatch] for microbatch in range(count) for tensors in cut]
        if len(given) != count:
            raise ExecutionError(
                f"{len(given)} microbatches; the pipeline has {count}, so give a list of {count}"
            )
        return [tensor for each in given for tensor in self.captured.step.flat_inputs(each)]


def cut_inputs(step: Step, inputs: Any, count: int, dim: int) -> list[list[Tensor]]:
    """Cuts each input of a whole batch into those of microbatches; one of the captured shape is for all.

    Raises:
        ExecutionError: an input is none of so many microbatches.
    """
    found = []
    for index, (tensor, captured) in enumerate(zip(step.tensors_in(inputs), step.tensors, strict=True)):
        shape, size = list(captured.shape), int(tensor[-1]) if tensor.dim() == 1 and len(tensor) else 0
        offsets = split_offsets(tensor, size, count)
        if tensor.dtype == captured.dtype and list(tensor.shape) == shape:
            found.append([tensor] * count)
        elif offsets and (offsets[0].dtype, list(offsets[0].shape)) == (captured.dtype, shape):
            found.append(offsets)
        else:
            if -len(shape) <= dim < len(shape):
                shape[dim] *= count
            if tensor.dtype != captured.dtype or list(tensor.shape) != shape:
                raise ExecutionError(
                    f"input {index} is {tensor.dtype} {list(tensor.shape)}; {count} microbatches have "
                    f"{captured.dtype} {shape}"
                )
            found.append(list(tensor.chunk(count, dim)))
    return found


def say_if_no_mean(
    captured: CapturedStep, state: Callable[[], Mapping[str, Tensor]], inputs: Any, count: int, dim: int
) -> None:
    """Prints if the mean loss of microbatches is not that of the whole batch, on this machine's processor.

    Nothing is compared if that is costly or impossible, or the step draws random numbers.

    Args:
        state: gives the parameters and buffers by path; they are not changed.
        inputs: the whole batch, which is cut along `dim`.
    """
    step = captured.step
    tags = (getattr(node.target, "tags", ()) for node in captured.trace.nodes)
    is_random = any(torch.Tag.nondeterministic_seeded in each for each in tags)
    if count == 1 or is_random or not step.has_loss or captured.graph.flops.sum() * count > MOST_FLOPS:
        return
    values = {path: tensor.cpu() for path, tensor in state().items()}
    try:
        parts = zip(*cut_inputs(step, inputs, count, dim), strict=True)
        with torch.no_grad():
            whole, *losses = (
                step.run([values[path].clone() for path in step.state], [tensor.cpu() for tensor in tensors])
                for tensors in (step.tensors_in(inputs), *parts)
            )
    except Exception:  # code of the user's, which may run with microbatches alone
        return
    mean = torch.stack(losses).mean()
    if not whole.isclose(mean, rtol=RTOL):
        print(
            f"the mean loss of the microbatches is {mean.item():.5g}, but {whole.item():.5g} of the whole "
            "batch at once: it is a sum, or depends on all of the batch, as a batch norm does; gradients "
            "differ too",
            file=sys.stderr,
        )
