"""Writes the device programs of a pipeline: the actions of a step, once for every microbatch.

The step of one microbatch is cut by place, as if every action had a device of its own; what a device has once
(parameters, inputs, updates) is at a place too, its home. A device program strings its actions together in
the order of the schedule. What an action hands to another one of its device stays in a slot. What goes to
another device is sent once for each microbatch, parameters once in the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

from envs.pipeline.schedules import Action
from envs.runtime.cut import frees_of
from envs.runtime.device_program import (
    Call,
    DeviceProgram,
    ExecutionError,
    Instruction,
    Receive,
    Send,
    Slot,
    Transfer,
    slots_in,
    with_replaced,
)

ALL, SUM = -1, -2
"""In place of a microbatch: what all of them share, and the sum over all."""

Made: TypeAlias = tuple[int, int]
"""The place that makes a value, and the index of its slot there."""
Value: TypeAlias = tuple[int, int, int]
"""The same, and the microbatch."""
K = TypeVar("K", str, int)


class ActionSpan(NamedTuple):
    """An action, and its instructions in the program of the device: from `first` on, before `end`."""

    action: Action
    first: int
    end: int


@dataclass(frozen=True, eq=False)
class Places:
    """The step of one microbatch, cut by place.

    Attributes:
        parts: what each place runs: the actions, then the homes of the devices.
        devices: device of each place.
        first_home: the first place that is a home.
        count: number of microbatches.
    """

    parts: list[DeviceProgram]
    devices: list[int]
    first_home: int
    count: int

    @property
    def homes(self) -> list[DeviceProgram]:
        """The parts of what devices have once."""
        return self.parts[self.first_home :]

    @cached_property
    def transfers(self) -> dict[tuple[Value, int], Transfer]:
        """Transfers between devices by value and target; those who write programs add them."""
        return {}

    @cached_property
    def inputs(self) -> set[Made]:
        """The inputs of the model, which differ between microbatches though they have a home."""
        return {(home.device, slot.index) for home in self.homes for _, slot in home.inputs}

    @cached_property
    def _sends(self) -> dict[Made, Send]:
        """The instruction that sends what is received in a slot of a place."""
        pairs = [(part.device, each) for part in self.parts for each in part.instructions]
        sends = {each.transfer.index: each for _, each in pairs if isinstance(each, Send)}
        return {(at, e.out.index): sends[e.transfer.index] for at, e in pairs if isinstance(e, Receive)}

    @cached_property
    def gradients(self) -> set[Made]:
        """The tensors whose sums the gradients are, or are views of."""
        found = set()
        for home in self.homes:
            needed = {slot for _, slot in home.trained}
            for each in reversed(home.instructions):
                if isinstance(each, Call) and each.out in needed:
                    needed.update(slots_in(each.arguments))
                elif isinstance(each, Receive) and each.out in needed:
                    found.add(self.made(home.device, each.out))
        return found

    @cached_property
    def changed(self) -> dict[Made, tuple[Made, str]]:
        """What makes the next value of each buffer that the step changes, and the buffer's path.

        Raises:
            ExecutionError: no op does.
        """
        found = {}
        for home in self.homes:
            for path, slot in home.new_values:
                made = self.made(home.device, slot)
                if made[0] >= self.first_home:
                    raise ExecutionError(f"buffer '{path}' becomes a view; microbatches cannot pass it on")
                found[home.device, dict(home.state)[path].index] = made, path
        return found

    def made(self, place: int, slot: Slot) -> Made:
        """Returns what made the value in a slot of a place."""
        send = self._sends.get((place, slot.index))
        return (send.transfer.source, send.value.index) if send else (place, slot.index)

    def value(self, place: int, slot: Slot, microbatch: int) -> Value:
        """Returns the value in a slot of a place as an action of a microbatch reads it."""
        made = self.made(place, slot)
        if made[0] < self.first_home <= place:  # at the end of the step
            return (*made, SUM if made in self.gradients else self.count - 1)
        if made[0] < self.first_home or made in self.inputs:
            return (*made, microbatch)
        if microbatch > 0 and made in self.changed:
            return (*self.changed[made][0], microbatch - 1)
        return (*made, ALL)


class DeviceWriter:
    """Writes the program of one device.

    Attributes:
        instructions: so far.
        spans: the actions so far.
    """

    def __init__(self, places: Places, device: int) -> None:
        self.places, self.device = places, device
        self.home = places.parts[places.first_home + device]
        self.instructions: list[Instruction] = []
        self.spans: list[ActionSpan] = []
        self._slots: dict[Value, Slot] = {}
        self._n_slots = 0
        self._received: list[tuple[int, Value]] = []
        self._n_sent, self._n_runs = Counter[int](), Counter[int]()

    def begin(self) -> None:
        """Sends the parameters, and the inputs of all microbatches."""
        home, inputs = self.home, self.places.inputs
        for _, slot in (*home.state, *home.constants):
            self._new((home.device, slot.index, ALL))
        first = [each for each in home.instructions if isinstance(each, Send)]
        for microbatch in range(self.places.count):
            for _, slot in home.inputs:
                self._new((home.device, slot.index, microbatch))
            for each in first:
                if microbatch == 0 or (home.device, each.value.index) in inputs:
                    self._send(each, self.places.value(home.device, each.value, microbatch))

    def run(self, action: Action, place: int) -> None:
        """Runs an action."""
        first, microbatch = len(self.instructions), action.microbatch
        self._n_runs[place] += 1
        for each in self.places.parts[place].instructions:
            if not isinstance(each, Send):
                self._add(each, place, microbatch)
            elif each.transfer.target < self.places.first_home:
                self._send(each, self.places.value(place, each.value, microbatch))
            elif self._n_runs[place] == self.places.count:
                made = place, each.value.index
                self._send(each, (*made, SUM if made in self.places.gradients else microbatch))
        self.spans.append(ActionSpan(action, first, len(self.instructions)))

    def end(self) -> None:
        """Brings gradients and changed buffers to their parameters and buffers."""
        for each in self.home.instructions:
            if not isinstance(each, Send):
                self._add(each, self.home.device, ALL)

    def find_senders(self) -> None:
        """Says of each value that is received which transfer brings it; all programs have been written.

        Raises:
            ExecutionError: nothing sends it.
        """
        for at, value in self._received:
            if (value, self.device) not in self.places.transfers:
                path = next(path for made, path in self.places.changed.values() if made == value[:2])
                raise ExecutionError(
                    f"buffer '{path}' is read before the stage that changes it, or on another device; put "
                    "the ops that read or change it into one stage"
                )
            self.instructions[at] = Receive(self.places.transfers[value, self.device], self._slots[value])

    def program(self, n_inputs: int, n_outputs: int) -> DeviceProgram:
        """Returns the program.

        Args:
            n_inputs, n_outputs: of a microbatch.
        """
        home = self.home
        inputs, outputs = list[tuple[int, Slot]](), list[tuple[int, Slot]]()
        for m in range(self.places.count):
            inputs += [(m * n_inputs + index, slot) for index, slot in self._named(home, home.inputs, m)]
            for part in self.places.parts:
                if self.places.devices[part.device] == self.device:
                    named = self._named(part, part.outputs, m)
                    outputs += [(m * n_outputs + index, slot) for index, slot in named]
        found = DeviceProgram(
            device=self.device,
            n_slots=self._n_slots,
            instructions=tuple(self.instructions),
            frees=(),
            state=self._named(home, home.state),
            constants=self._named(home, home.constants),
            inputs=tuple(inputs),
            trained=self._named(home, home.trained),
            new_values=self._named(home, home.new_values),
            outputs=tuple(outputs),
        )
        ends = (found.state, found.constants, found.inputs, found.trained, found.new_values, found.outputs)
        kept = {slot.index for each in ends for _, slot in each}
        return replace(found, frees=frees_of(self.instructions, kept))

    def _named(
        self, part: DeviceProgram, slots: Iterable[tuple[K, Slot]], microbatch: int = ALL
    ) -> tuple[tuple[K, Slot], ...]:
        """Returns names with the slots of this program, in place of those of a place."""
        found = [(name, self.places.value(part.device, slot, microbatch)) for name, slot in slots]
        return tuple((name, self._slots[value]) for name, value in found)

    def _new(self, value: Value) -> Slot:
        self._n_slots += 1
        slot = self._slots[value] = Slot(self._n_slots - 1)
        return slot

    def _add(self, each: Call | Receive, place: int, microbatch: int) -> None:
        value = self.places.value(place, each.out, microbatch)
        if isinstance(each, Call):
            self._call(each, place, microbatch, value)
        elif value not in self._slots:
            self._received.append((len(self.instructions), value))
            self.instructions.append(replace(each, out=self._new(value)))

    def _call(self, each: Call, place: int, microbatch: int, value: Value) -> None:
        def slot_of(slot: Slot) -> Slot:
            return self._slots[self.places.value(place, slot, microbatch)]

        function = each.function
        arguments = with_replaced(each.arguments, Slot, slot_of)
        if function == "ones_like":  # the gradient of the loss by itself
            function, arguments = "aten.full_like.default", (*arguments, 1 / self.places.count)
        keywords = with_replaced(each.keywords, Slot, slot_of)
        self.instructions.append(Call(each.op, function, arguments, keywords, self._new(value)))
        if value[:2] in self.places.gradients:
            self._accumulate(each.op, value)

    def _accumulate(self, op: int, value: Value) -> None:
        """Adds a gradient to the sum, which has memory of its own from the second microbatch on."""
        total, new = (*value[:2], SUM), self._slots[value]
        if total in self._slots:
            function = "aten.add.Tensor" if self._n_runs[value[0]] == 2 else "aten.add_.Tensor"
            self.instructions.append(Call(op, function, (self._slots[total], new), {}, self._new(total)))
        else:
            self._slots[total] = new

    def _send(self, each: Send, value: Value) -> None:
        """Sends a value to the device of another place, unless it is this one or has it."""
        target, transfers = self.places.devices[each.transfer.target], self.places.transfers
        if target == self.device or (value, target) in transfers:
            return
        spec = each.transfer.spec
        if spec.sparse and value[2] == SUM:
            spec = replace(spec, n_bytes=spec.n_bytes * self.places.count)
        rank = self._n_sent[target]
        transfers[value, target] = Transfer(len(transfers), self.device, target, rank, spec)
        self._n_sent[target] += 1
        self.instructions.append(Send(transfers[value, target], self._slots[value]))
