"""Writes the device programs of a pipeline: the actions of a step, once for every microbatch.

A device program strings its actions together in the order of the schedule. What an action hands to another
one of its device stays in a slot. What goes to another device is sent once for each microbatch, parameters
once in the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, TypeVar

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
    with_replaced,
)
from envs.runtime.places import ALL, SUM, Places, Value

K = TypeVar("K", str, int)


class ActionSpan(NamedTuple):
    """An action, and its instructions in the program of the device: from `first` on, before `end`."""

    action: Action
    first: int
    end: int


class DeviceWriter:
    """Writes the program of one device."""

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
