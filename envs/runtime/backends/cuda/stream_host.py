"""The process of all CUDA devices of a machine: one host thread issues the device programs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from envs.runtime.backends.cuda.streams import Cuda, Lane, StreamTransport, room
from envs.runtime.backends.device_process import Answer, Command, DeviceHost, DeviceTask, Waits, reason
from envs.runtime.backends.signals import Inbox
from envs.runtime.backends.transports import SharedMemory, SharedMemoryTransport
from envs.runtime.backends.wire import StepRecord, pack_all, unpack_all
from envs.runtime.device_program import Call, DeviceProgram, Receive, Send
from envs.runtime.interpreter import Interpreter
from envs.runtime.user_ops import import_ops

Span: TypeAlias = tuple[Any, Any]
"""Events before and after an instruction."""
FUNCTIONS = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "attention",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": "attention_backward",
}
"""Replacements of functions that only the CPU has."""


@dataclass
class _Part:
    """The part of a step that one device runs.

    Attributes:
        inputs: each input that it reads: its place on the device, and in the memory that processes share.
    """

    lane: Lane
    interpreter: Interpreter
    transport: StreamTransport
    inputs: list[tuple[Tensor, Tensor]]


@dataclass
class StreamHost:
    """Handles the commands to all CUDA devices, the same command to each.

    Args:
        cores, memory, inboxes, barrier: arguments of `DeviceHost`.
        names: names of the devices, such as `cuda:0`, by device index.
    """

    cores: tuple[int, ...]
    memory: SharedMemory
    inboxes: Sequence[Inbox]
    barrier: Waits
    names: Mapping[int, str]
    cuda: Cuda
    _lanes: dict[int, Lane] = field(default_factory=dict)
    _parts: list[_Part] = field(default_factory=list)
    _order: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, commands: Sequence[Command]) -> Answer:
        """Does what the commands say, one to each device."""
        name = commands[0][0]
        try:
            if name == "load":
                return Answer(self.load([task for _, task in commands]))
            if name == "steps":
                return Answer(self.steps(commands[0][1], commands[0][2]))
            hosts = [self._host(part.interpreter) for part in self._parts]
            return Answer([host.do(command) for host, command in zip(hosts, commands, strict=True)])
        except Exception as error:
            return Answer(failure=reason(error))

    def load(self, tasks: Sequence[DeviceTask]) -> list[None]:
        """Loads device programs and their state in place of any others."""
        self._host(None).pin()
        if not self._lanes:
            self._lanes = {device: Lane.open(self.cuda, name) for device, name in self.names.items()}
        self._parts = []  # frees the memory of those before
        self.memory.grow(max(task.memory_bytes for task in tasks))
        arriving: dict[int, tuple[Tensor, Any]] = {}
        self._parts = [self._part(task, arriving) for task in tasks]
        self._order = program_order([task.program for task in tasks])
        return [None] * len(tasks)

    def steps(self, count: int, timed_ops: bool) -> list[list[StepRecord]]:
        """Runs steps; returns the records of each device."""
        steps = [self._step(timed_ops) for _ in range(count)]
        return [[step[index] for step in steps] for index in range(len(self._parts))]

    def _host(self, interpreter: Interpreter | None) -> DeviceHost:
        return DeviceHost(self.cores, self.memory, self.inboxes, self.barrier, interpreter)

    def _part(self, task: DeviceTask, arriving: dict[int, tuple[Tensor, Any]]) -> _Part:
        import_ops(task.program.functions, task.modules)
        index = task.program.device
        lane = self._lanes[index]
        self.cuda.use(lane.compute)  # which state and inputs are allocated on
        self.cuda.seed(self.names[index], task.seed)
        places = {key: self.memory.tensor(*place) for key, place in task.inputs.items()}
        inputs = {key: room(spec, lane.device) for key, (spec, _) in task.inputs.items()}
        shared = SharedMemoryTransport(self.memory, task.transfer_offsets, self.inboxes)
        transport = StreamTransport(self._lanes, index, arriving, shared)
        interpreter = Interpreter(
            bound_to(task.program, lane.device),
            state={path: tensor.to(lane.device) for path, tensor in unpack_all(task.state).items()},
            constants={name: tensor.to(lane.device) for name, tensor in unpack_all(task.constants).items()},
            inputs=inputs,
            transport=transport,
            optimizer=task.optimizer,
        )
        return _Part(lane, interpreter, transport, [(inputs[key], places[key]) for key in places])

    @torch.no_grad()
    def _step(self, timed_ops: bool) -> list[StepRecord]:
        self.barrier.wait()
        start_s = time.perf_counter()
        zeros = [self._zero(part.lane) if timed_ops else None for part in self._parts]
        spans: list[list[Span]] = [[] for _ in self._parts]
        outputs = self._issue(spans if timed_ops else None)
        self._parts[0].transport.signal(self._lanes.values(), wait=True)
        for lane in self._lanes.values():
            lane.compute.synchronize()  # it has waited for the copy stream
        end_s = time.perf_counter()
        return [
            StepRecord(pack_all(values), start_s, end_s, _on_clock(zero, span))
            for values, zero, span in zip(outputs, zeros, spans, strict=True)
        ]

    def _issue(self, spans: list[list[Span]] | None) -> list[dict[int, Tensor]]:
        """Issues a step; returns the outputs of each device, which may still be on their way."""
        values = []
        for part in self._parts:
            self.cuda.use(part.lane.compute)
            for tensor, place in part.inputs:
                tensor.copy_(place, non_blocking=True)
            values.append(part.interpreter.begin())
        for index, instruction in self._order:
            part = self._parts[index]
            self.cuda.use(part.lane.compute)
            before = part.lane.mark(part.lane.compute, timed=True) if spans else None
            part.interpreter.runnables[instruction](values[index])
            if spans:
                spans[index].append((before, part.lane.mark(part.lane.compute, timed=True)))
            part.transport.signal([part.lane], wait=False)
        return [
            self._end(part, value, spans[index] if spans else None)
            for index, (part, value) in enumerate(zip(self._parts, values, strict=True))
        ]

    def _end(self, part: _Part, values: list[Any], spans: list[Span] | None) -> dict[int, Tensor]:
        lane = part.lane
        self.cuda.use(lane.compute)
        lane.compute.wait_event(lane.mark(lane.copy))  # which may read what is updated now
        before = lane.mark(lane.compute, timed=True) if spans is not None else None
        outputs = part.interpreter.end(values)
        if spans is not None:
            spans.append((before, lane.mark(lane.compute, timed=True)))
        return outputs

    def _zero(self, lane: Lane) -> tuple[Any, float]:
        """Reads the host's clock at an event of a device that has nothing to do."""
        event = lane.mark(lane.compute, timed=True)
        event.synchronize()
        return event, time.perf_counter()


def _on_clock(zero: tuple[Any, float] | None, spans: Sequence[Span]) -> tuple[tuple[float, float], ...]:
    """Returns the seconds of events on the host's clock."""
    if zero is None:
        return ()
    event, zero_s = zero
    return tuple(
        (zero_s + event.elapsed_time(start) / 1e3, zero_s + event.elapsed_time(end) / 1e3)
        for start, end in spans
    )


def bound_to(program: DeviceProgram, device: torch.device) -> DeviceProgram:
    """Returns the device program with its calls on a device.

    Calls name the device, where they named the CPU, and functions that only the CPU has are replaced.
    """
    instructions = list(program.instructions)
    for index, call in enumerate(instructions):
        if isinstance(call, Call):
            arguments, keywords = _on((call.arguments, call.keywords), device)
            function = FUNCTIONS.get(call.function, call.function)
            instructions[index] = replace(call, function=function, arguments=arguments, keywords=keywords)
    return replace(program, instructions=tuple(instructions))


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.device):
        return device
    if isinstance(value, dict):
        return {key: _on(item, device) for key, item in value.items()}
    return type(value)(_on(item, device) for item in value) if isinstance(value, list | tuple) else value


def program_order(programs: Sequence[DeviceProgram]) -> list[tuple[int, int]]:
    """Merges device programs into one list, in program order of their ops.

    Every device program keeps its own order. A value is sent right after it is made, and received right
    before its first use. So a host thread that waits for a value from another process has sent all that the
    value can depend on.

    Args:
        programs: device programs of one `cut`, all or some.

    Returns:
        A position in `programs` and that of one of its instructions, for each instruction.
    """
    keys = [_keys(program) for program in programs]
    inside = {program.device for program in programs}
    position, sent = [0] * len(programs), set[int]()
    order: list[tuple[int, int]] = []

    def ready(index: int) -> bool:
        if position[index] == len(keys[index]):
            return False
        instruction = programs[index].instructions[position[index]]
        is_inside = isinstance(instruction, Receive) and instruction.transfer.source in inside
        return not is_inside or instruction.transfer.index in sent  # type: ignore[union-attr]

    for _ in range(sum(len(of_device) for of_device in keys)):
        index = min(filter(ready, range(len(programs))), key=lambda index: keys[index][position[index]])
        order.append((index, position[index]))
        instruction = programs[index].instructions[position[index]]
        if isinstance(instruction, Send):
            sent.add(instruction.transfer.index)
        position[index] += 1
    return order


def _keys(program: DeviceProgram) -> list[float]:
    """Finds the op that each instruction belongs to.

    What sends a result or takes it apart belongs to the op before, all else to the next.
    """
    keys: list[float] = [math.inf] * len(program.instructions)
    following = math.inf
    for index, instruction in reversed(list(enumerate(program.instructions))):
        if isinstance(instruction, Call) and instruction.op >= 0:
            following = instruction.op
        keys[index] = following
    last = -1.0
    for index, instruction in enumerate(program.instructions):
        follows = isinstance(instruction, Send) or (
            isinstance(instruction, Call) and instruction.function == "getitem"
        )
        last = keys[index] = last if follows else max(last, keys[index])
    return keys
