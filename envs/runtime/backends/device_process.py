"""The process of one device: it holds the device's state and executes commands."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from envs.runtime.backends.signals import Inbox
from envs.runtime.backends.transports import SharedMemory, SharedMemoryTransport, Transport
from envs.runtime.backends.wire import Packed, StepRecord, pack_all, unpack, unpack_all
from envs.runtime.device_program import DeviceProgram, TensorSpec
from envs.runtime.interpreter import Interpreter, OptimizerSettings
from envs.runtime.user_ops import import_ops
from graphs.system.errors import InputError, is_out_of_memory

Command: TypeAlias = tuple[str, *tuple[Any, ...]]
"""The name of a method of `DeviceHost`, and its arguments."""


@dataclass(frozen=True, kw_only=True)
class DeviceTask:
    """The device program that a device runs from now on.

    Attributes:
        inputs: layout and place of each input of the model in the shared memory, by index.
        seed: seed of random numbers.
        transfer_offsets: where each transfer lies in the shared memory, in bytes, by index.
        state, constants: values of its parameters and buffers, and of the constants that it reads, by name.
        modules: names of Python modules that may define operators of the device program.
    """

    memory_bytes: int
    inputs: Mapping[int, tuple[TensorSpec, int]]
    optimizer: OptimizerSettings | None
    seed: int
    program: DeviceProgram
    transfer_offsets: Sequence[int]
    state: dict[str, Packed]
    constants: dict[str, Packed]
    modules: Sequence[str] = ()


@dataclass(frozen=True)
class Answer:
    """The answer of a process: a value for each of its devices, or the reason of a failure in one line."""

    value: Any = None
    failure: str = ""


class Waits(Protocol):
    """A barrier."""

    def wait(self) -> object:
        """Waits until all devices do."""


@dataclass
class DeviceHost:
    """Handles the commands to a device.

    Args:
        cores: processor cores that the process is pinned to; one thread runs on each.
        memory: shared with the other devices and the caller.
        barrier: at which all devices wait before each step.
    """

    cores: tuple[int, ...]
    memory: SharedMemory
    inboxes: Sequence[Inbox]
    barrier: Waits
    _state: Interpreter | None = None

    def __call__(self, commands: Sequence[Command]) -> Answer:
        """Does what the only command says."""
        try:
            return Answer([self.do(command) for command in commands])
        except Exception as error:
            return Answer(failure=reason(error))

    def do(self, command: Command) -> Any:
        """Executes a command and returns its result."""
        name, *arguments = command
        return getattr(self, name)(*arguments)

    @property
    def loaded(self) -> Interpreter:
        """The runner of the steps of the present task."""
        assert self._state is not None, "no task was loaded"
        return self._state

    def load(self, task: DeviceTask) -> None:
        """Loads a task and its state in place of any other."""
        self.pin()
        torch.manual_seed(task.seed)
        self._state = None  # frees the memory of the one before
        self.memory.grow(task.memory_bytes)
        inputs = {index: self.memory.tensor(*place) for index, place in task.inputs.items()}
        import_ops(task.program.functions, task.modules)
        self._state = Interpreter(
            task.program,
            state=unpack_all(task.state),
            constants=unpack_all(task.constants),
            inputs=inputs,
            transport=self.transport(task),
            optimizer=task.optimizer,
        )

    def pin(self) -> None:
        """Runs this process on its cores alone, with one thread on each."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        torch.set_num_threads(len(self.cores))

    def transport(self, task: DeviceTask) -> Transport:
        """Makes what brings tensors from and to other devices."""
        return SharedMemoryTransport(self.memory, task.transfer_offsets, self.inboxes)

    def steps(self, count: int, timed_ops: bool) -> list[StepRecord]:
        """Runs steps; all devices begin each of them together."""
        return [self._step(timed_ops) for _ in range(count)]

    def _step(self, timed_ops: bool) -> StepRecord:
        loaded = self.loaded
        self.barrier.wait()
        start_s = time.perf_counter()
        outputs, spans = loaded.timed_step() if timed_ops else (loaded.step(), [])
        end_s = time.perf_counter()
        return StepRecord(pack_all(outputs), start_s, end_s, tuple(spans))

    def state(self) -> dict[str, Packed]:
        """Returns the parameters and buffers that live here."""
        return pack_all(self.loaded.state)

    def gradients(self) -> dict[str, Packed]:
        """Returns the gradients of the last step of the parameters that are trained here."""
        trained = self.loaded.trained.items()
        return pack_all({path: tensor.grad for path, tensor in trained if tensor.grad is not None})

    def set_state(self, state: dict[str, Packed]) -> None:
        """Sets parameters and buffers, all or some of those that live here."""
        for path, packed in state.items():
            self.loaded.state[path].copy_(unpack(packed))

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Returns what the optimizer keeps of each parameter, by path."""
        return pack_all(self.loaded.optimizer_state())

    def set_optimizer_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Sets what the optimizer keeps of each parameter, by path."""
        self.loaded.set_optimizer_state(unpack_all(state))


def reason(error: Exception) -> str:
    """Tells in one line why a command failed."""
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()]
    text = ": ".join([*([] if isinstance(error, InputError) else [type(error).__name__]), *lines[:1]])
    return f"out of memory ({text})" if is_out_of_memory(error) else text
