"""Trains a model as it was placed: each device runs its part of the captured step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from envs.runtime.backends.device_process import DeviceTask
from envs.runtime.backends.transports import SharedMemory, offsets_of
from envs.runtime.backends.wire import StepRecord, pack, pack_all, unpack, unpack_all
from envs.runtime.cut import cut
from envs.runtime.device_program import ExecutionError, TensorSpec
from envs.runtime.interpreter import OptimizerSettings
from envs.runtime.module_state import (
    check_mapping,
    check_optimizer_state,
    check_options,
    check_values,
    constants_of,
    keys_of,
    state_of,
)
from envs.runtime.plain_check import PlainCheck
from envs.runtime.user_ops import modules_with_ops
from graphs.capture.captured_step import CapturedStep
from graphs.capture.loss import CaptureError
from graphs.capture.step import unwrapped
from graphs.system.array_types import IntArray
from graphs.system.errors import print_notice

STOP = "stop"


@dataclass(frozen=True)
class StepTimes:
    """The times of a measured step.

    Attributes:
        total_s: from the first start of a device to the last end.
    """

    total_s: float
    records: tuple[StepRecord, ...]


class Devices(Protocol):
    """The interface of devices to a runner: `DeviceProcesses`, or in each rank of torchrun
    `TorchrunDevices`.

    Attributes:
        names: torch device of each.
    """

    memory: SharedMemory
    n_devices: int
    names: list[str]

    @property
    def running(self) -> bool:
        """Says whether they can be asked."""

    def ask(self, commands: Sequence[tuple[str, *tuple[Any, ...]]]) -> list[Any]:
        """Gives each device a command, and returns all answers."""

    def close(self) -> None:
        """Ends them."""


class StepRunner:
    """A captured step that runs on the processes of the devices; it holds the model's state.

    Args:
        captured: step of the module, or of one with equal shapes.
        device_of: device of each op of the captured graph, int (n_ops,).
        module: the values of its parameters and buffers are copied; it is not changed.
        processes: one for each device; they run this step from now on. Whoever made them closes them.
        options: keywords of the optimizer, such as `lr`; torch's defaults otherwise.
        seed: device `i` draws its random numbers (dropout) from seed + i.
        check_finite: true if a step whose loss is not finite is an error.
        check: true if the first two steps are compared with those of the plain module, as `PlainCheck` does,
            if it is small enough; `stop` makes a difference an error.

    Raises:
        ExecutionError: the step cannot be cut, the module is another one, or the optimizer does not take
                an option.
    """

    def __init__(
        self,
        captured: CapturedStep,
        device_of: IntArray,
        module: nn.Module,
        processes: Devices,
        *,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
        check_finite: bool = True,
        check: bool | str = False,
    ) -> None:
        check_options(captured, options or {})
        if check not in (True, False, STOP):
            raise ExecutionError(f"check is {check!r}; give True, False or '{STOP}'")
        self._busy = RLock()
        self.captured, self.processes, module = captured, processes, unwrapped(module)
        self.check_finite = check_finite
        self.n_steps = 0
        self._path_of_key = keys_of(captured, module)
        optimizer = OptimizerSettings(captured.updates.rules, dict(options or {}))
        self._stops, self._plain = check == STOP, None
        if check and PlainCheck.can_run(captured):
            drawn = device_of if set(processes.names) == {"cpu"} else None
            self._plain = PlainCheck(captured, module, drawn, seed)
        elif self._stops:
            print_notice(
                "steps are not compared with the plain module, which is too large for this processor"
            )
        self._load(device_of, module, optimizer, seed)

    def _load(
        self, device_of: IntArray, module: nn.Module, optimizer: OptimizerSettings | None, seed: int
    ) -> None:
        """Gives the devices their tasks; notes what belongs to each, and where the inputs lie."""
        self.programs = cut(self.captured, device_of, self.processes.n_devices)
        self._state = [[path for path, _ in one.state] for one in self.programs]
        self._trained = [[path for path, _ in one.trained] for one in self.programs]
        specs = {one.index: one.spec for program in self.programs for one in program.transfers}
        transfers = [specs[index] for index in range(len(specs))]
        offsets, inputs, n_bytes = self._lay_out(transfers)
        modules = modules_with_ops((name for one in self.programs for name in one.functions), module)
        state, constants = state_of(self.captured, module), constants_of(self.captured)
        tasks = [
            DeviceTask(
                program=program,
                memory_bytes=n_bytes,
                transfer_offsets=offsets,
                inputs={index: inputs[index] for index, _ in program.inputs},
                state=pack_all({path: state[path] for path, _ in program.state}),
                constants=pack_all({name: constants[name] for name, _ in program.constants}),
                optimizer=optimizer,
                seed=seed + program.device,
                modules=modules,
            )
            for program in self.programs
        ]
        self.processes.ask([("load", task) for task in tasks])

    def step(self, *inputs: Any, **named_inputs: Any) -> Tensor | list[Tensor]:
        """Runs one step.

        Args:
            inputs, named_inputs: module's inputs, as at the capture: by position or by keyword.

        Returns:
            The loss before the update; of a step captured for inference, the outputs.

        Raises:
            ExecutionError: the inputs are others than at the capture, a device failed, or the loss is not
                finite; after the last two the processes are ended.
        """
        with self._in_one_thread():
            self.set_inputs(named_inputs or inputs)
            if self._plain:
                tensors = self.captured.step.flat_inputs(named_inputs or inputs)
                self._plain.run(joined(self._ask("state")), tensors)
            records = [device[0] for device in self._ask("steps", 1, False)]
            made = self._result(records)
            if self._plain:
                self._compare(self._plain, made)
            return made

    def _compare(self, plain: PlainCheck, made: Tensor | list[Tensor]) -> None:
        off = plain.difference(made, self.gradients(), joined(self._ask("state")))
        self._plain = None if off or plain.is_done else plain
        if not plain.is_comparable and self._stops:
            print_notice("steps are not compared: the plain module cannot draw their random numbers")
        if not off:
            return
        line = f"step {self.n_steps}: {off}; see 'What is carried over' in docs/how-to/run.md"
        if self._stops:
            self.close()
            raise ExecutionError(line)
        print_notice(f"{line}; check='{STOP}' stops here, check=False compares nothing")

    def timed_steps(self, count: int, *, timed_ops: bool = False) -> list[StepTimes]:
        """Runs steps on the inputs at hand and times them.

        Args:
            timed_ops: true to read the clock around every op, which takes time of its own.

        Raises:
            ExecutionError: as `step`.
        """
        by_device: list[list[StepRecord]] = self._ask("steps", count, timed_ops)
        for records in zip(*by_device, strict=True):
            self._result(records)
        return [
            StepTimes(max(run.end_s for run in records) - min(run.start_s for run in records), records)
            for records in zip(*by_device, strict=True)
        ]

    def set_inputs(self, inputs: Any) -> None:
        """Copies inputs to where the devices read them.

        Raises:
            ExecutionError: they are others than at the capture.
        """
        try:
            flat = self.captured.step.flat_inputs(inputs)
        except CaptureError as error:
            raise ExecutionError(str(error)) from None
        for tensor in flat:
            check_values("an input", tensor)
        with self._in_one_thread():
            for place, tensor in zip(self._inputs, flat, strict=True):
                place.copy_(tensor)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns parameters and buffers under the keys of the module's own `state_dict`."""
        state = joined(self._ask("state"))
        return {key: state[path] for key, path in self._path_of_key.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Sets parameters and buffers.

        Raises:
            ExecutionError: a key is missing or unknown, or a tensor has another shape.
        """
        check_mapping("the state", state)
        for label, keys in (
            ("lacks", self._path_of_key.keys() - state.keys()),
            ("has the unknown", state.keys() - self._path_of_key.keys()),
        ):
            if keys:
                raise ExecutionError(f"the state {label} key '{min(keys)}'; give the module's state_dict")
        for key, path in self._path_of_key.items():
            check_values(f"'{key}' of the state", state[key])
            if state[key].shape != self.captured.step.state[path].shape:
                raise ExecutionError(
                    f"'{key}' is {list(state[key].shape)} in the state; "
                    f"expected {list(self.captured.step.state[path].shape)}"
                )
        packed = {path: pack(state[key]) for key, path in self._path_of_key.items()}
        self._share_out("set_state", packed, self._state)

    def optimizer_state_dict(self) -> dict[str, dict[str, Any]]:
        """Returns what the optimizer keeps of each parameter, by path; empty before the first step."""
        return joined(self._ask("optimizer_state"))

    def load_optimizer_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets what the optimizer keeps of each parameter.

        Raises:
            ExecutionError: a parameter is not trained here, or something is neither tensor nor number.
        """
        check_optimizer_state(state)
        if unknown := state.keys() - self.captured.updates.rules.keys():
            raise ExecutionError(f"the optimizer's state has '{min(unknown)}', which is not trained")
        self._share_out("set_optimizer_state", pack_all(state), self._trained)

    def gradients(self) -> dict[str, Tensor]:
        """Returns the gradients of the last step by path, dense."""
        return joined(self._ask("gradients"))

    def close(self) -> None:
        """Ends the processes; the state that was not fetched is lost."""
        self.processes.close()

    def __enter__(self) -> StepRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lay_out(
        self, transfers: Sequence[TensorSpec]
    ) -> tuple[list[int], list[tuple[TensorSpec, int]], int]:
        """Lays transfers and inputs out in the memory; returns offsets, places of inputs, and bytes."""
        specs = [TensorSpec.of(tensor) for tensor in self.captured.step.tensors]
        offsets, n_bytes = offsets_of([*transfers, *specs])
        self.processes.memory.grow(n_bytes)
        places = list(zip(specs, offsets[len(transfers) :], strict=True))
        self._inputs = [self.processes.memory.tensor(*place) for place in places]
        return offsets[: len(transfers)], places, n_bytes

    def _ask(self, name: str, *arguments: Any) -> list[Any]:
        return self._ask_all([(name, *arguments)] * self.processes.n_devices)

    def _share_out(self, name: str, packed: Mapping[str, Any], wanted: Sequence[Sequence[str]]) -> None:
        """Gives each device what belongs to the paths that it wants, those without a value left out."""
        self._ask_all([(name, {path: packed[path] for path in paths if path in packed}) for paths in wanted])

    def _ask_all(self, commands: Sequence[tuple[str, *tuple[Any, ...]]]) -> list[Any]:
        if not self.processes.running:
            raise ExecutionError("the runner is closed; compile the plan again")
        with self._in_one_thread():
            return self.processes.ask(commands)

    @contextmanager
    def _in_one_thread(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise ExecutionError("another thread uses this runner; let one thread at a time call it")
        try:
            yield
        finally:
            self._busy.release()

    def _result(self, records: Sequence[StepRecord]) -> Tensor | list[Tensor]:
        self.n_steps += 1
        outputs_of = {index: unpack(value) for record in records for index, value in record.outputs.items()}
        outputs = [outputs_of[index] for index in range(len(outputs_of))]
        if not self.captured.step.has_loss:
            return outputs
        loss = torch.stack(outputs).mean(0)
        if self.check_finite and not math.isfinite(loss.item()):
            self.close()
            raise ExecutionError(
                f"the loss is {loss.item():g} in step {self.n_steps}; lower the learning rate, "
                "or begin from an earlier state"
            )
        return loss


def joined(by_device: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {path: unpack_all(packed) for device in by_device for path, packed in device.items()}
