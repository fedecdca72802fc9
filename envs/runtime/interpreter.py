"""Runs the device program of one device, step by step."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from envs.runtime.backends.transports import Transport
from envs.runtime.device_program import (
    Call,
    DeviceProgram,
    ExecutionError,
    Instruction,
    Send,
    Slot,
    find_function,
    slots_in,
    with_replaced,
)
from graphs.capture.known_values import shapes_of
from graphs.optimizers import UpdateRule

Values: TypeAlias = list[Any]
Runnable: TypeAlias = Callable[[Values], None]


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizers that update the parameters, and their settings.

    Attributes:
        rules: those of the parameters by path.
        options: keywords of all of them, such as `lr`, which replace those of the rules.
    """

    rules: Mapping[str, UpdateRule]
    options: Mapping[str, Any]

    def make(self, trained: Mapping[str, Tensor]) -> list[torch.optim.Optimizer]:
        """Makes the optimizers of some parameters, one for each rule of theirs."""
        groups: dict[UpdateRule, list[Tensor]] = {}
        for path, tensor in trained.items():
            if path in self.rules:
                groups.setdefault(self.rules[path], []).append(tensor)
        return [rule.with_options(self.options).make(tensors) for rule, tensors in groups.items()]


class Interpreter:
    """The process-local half of a runner: the state of one device, and its device program.

    Args:
        state: each parameter and buffer that lives here, by path; they are changed in place.
        constants: each constant of the model that the device program reads, by name.
        inputs: each input that the device program reads, by index; their values may change between steps.
        transport: brings tensors from and to other devices.
        optimizer: optimizer of the parameters; None leaves them as they are.

    Attributes:
        trained: parameters that are trained here, by path.
        runnables: each instruction of the device program as a function that changes the values of a step.
    """

    def __init__(
        self,
        program: DeviceProgram,
        *,
        state: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
        inputs: Mapping[int, Tensor],
        transport: Transport,
        optimizer: OptimizerSettings | None,
    ) -> None:
        self.program, self.transport = program, transport
        self.state, self.trained = dict(state), {path: state[path] for path, _ in program.trained}
        self.optimizers = optimizer.make(self.trained) if optimizer else []
        self._sources = [
            *((slot.index, self.state[path]) for path, slot in program.state),
            *((slot.index, constants[name]) for name, slot in program.constants),
            *((slot.index, inputs[index]) for index, slot in program.inputs),
        ]
        pairs = zip(program.instructions, program.frees, strict=True)
        self.runnables = [_bind(instruction, frees, transport) for instruction, frees in pairs]

    @torch.no_grad()
    def step(self) -> dict[int, Tensor]:
        """Runs one step; returns the outputs that this device makes, by index."""
        values = self.begin()
        for run in self.runnables:
            run(values)
        return self.end(values)

    @torch.no_grad()
    def timed_step(self) -> tuple[dict[int, Tensor], list[tuple[float, float]]]:
        """Runs one step and reads the clock around every instruction.

        Returns:
            The outputs that this device makes, and start and end of every instruction and of the optimizer's
            updates, the last; in seconds of the clock that all processes of a machine share.
        """
        values, clock, spans = self.begin(), time.perf_counter, list[tuple[float, float]]()
        for run in self.runnables:
            start = clock()
            run(values)
            spans.append((start, clock()))
        start = clock()
        outputs = self.end(values)
        spans.append((start, clock()))
        return outputs, spans

    def begin(self) -> Values:
        """Begins a step; returns its values, of which only the sources are known."""
        self.transport.begin_step()
        values: Values = [None] * self.program.n_slots
        for slot, tensor in self._sources:
            values[slot] = tensor
        return values

    def end(self, values: Values) -> dict[int, Tensor]:
        """Updates the state after the last instruction; returns the outputs by index."""
        outputs = {index: values[slot.index].clone() for index, slot in self.program.outputs}
        for path, slot in self.program.trained:
            self.trained[path].grad = values[slot.index]
        # One may be what another was before the step; the optimizer updates what forward has left.
        changed = {path: values[slot.index].clone() for path, slot in self.program.new_values}
        for path, value in changed.items():
            self.state[path].copy_(value)
        for optimizer in self.optimizers:
            optimizer.step()
        return outputs

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Returns what the optimizer keeps of each parameter, by path; nothing before the first step."""
        path_of = {tensor: path for path, tensor in self.trained.items()}
        return {
            path_of[tensor]: dict(state_of)
            for optimizer in self.optimizers
            for tensor, state_of in optimizer.state.items()
        }

    def set_optimizer_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets what the optimizer keeps of each parameter, by path."""
        for path, state_of in state.items():
            tensor = self.trained[path]
            groups = [(candidate, group) for candidate in self.optimizers for group in candidate.param_groups]
            (optimizer,) = (
                candidate for candidate, group in groups if any(held is tensor for held in group["params"])
            )
            optimizer.state[tensor] = {
                # Optimizers count their steps on the CPU.
                key: value.to(tensor.device) if isinstance(value, Tensor) and key != "step" else value
                for key, value in state_of.items()
            }


def _bind(instruction: Instruction, frees: tuple[int, ...], transport: Transport) -> Runnable:
    """Turns an instruction into a function that changes the values of a step."""
    if isinstance(instruction, Call):
        return _bind_call(instruction, frees)
    if isinstance(instruction, Send):
        return _bind_send(instruction, frees, transport)
    transfer, out = instruction.transfer, instruction.out.index

    def receive(values: Values) -> None:
        values[out] = transport.receive(transfer)
        for slot in frees:
            values[slot] = None

    return receive


def _bind_send(instruction: Send, frees: tuple[int, ...], transport: Transport) -> Runnable:
    transfer, sent = instruction.transfer, instruction.value.index

    def send(values: Values) -> None:
        transport.send(transfer, values[sent])
        for slot in frees:
            values[slot] = None

    return send


def _bind_call(call: Call, frees: tuple[int, ...]) -> Runnable:
    function, out = find_function(call.function), call.out.index
    arguments = [_reader(argument) for argument in call.arguments]
    keywords = call.keywords
    has_slots = any(True for _ in slots_in(list(keywords.values())))

    def run(values: Values) -> None:
        values_read = [read(values) if callable(read) else read for read in arguments]
        named = _read(keywords, values) if has_slots else keywords
        values[out] = function(*values_read, **named)
        if call.held is not None:
            _check_held(call, values[out])
        for slot in frees:
            values[slot] = None

    return run


def _check_held(call: Call, made: Any) -> None:
    """Checks that an op yields what it did for the values that the step was captured with."""
    shapes = shapes_of(made) or made
    if shapes != call.held and not (isinstance(made, float) and math.isclose(made, call.held, rel_tol=1e-5)):
        where = f"{call.line}: " if call.line else ""
        raise ExecutionError(
            f"{where}op '{call.function}' yields {shapes}; the step holds for the inputs and weights of its "
            f"capture, which yield {call.held}; capture it again, or keep to tensors there"
        )


def _reader(argument: Any) -> Any:
    """Returns a function of the values for an argument that names slots, any other argument as it is."""
    if isinstance(argument, Slot):
        return operator.itemgetter(argument.index)
    return (lambda values: _read(argument, values)) if any(True for _ in slots_in(argument)) else argument


def _read(argument: Any, values: Values) -> Any:
    return with_replaced(argument, Slot, lambda slot: values[slot.index])
