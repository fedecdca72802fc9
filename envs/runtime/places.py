"""The step of one microbatch, cut by place, and what its values are when it runs once for every microbatch.

A place is an action, as if every action had a device of its own, or the home of what a device has once:
parameters, inputs and updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from envs.runtime.device_program import (
    Call,
    DeviceProgram,
    ExecutionError,
    Receive,
    Send,
    Slot,
    Transfer,
    slots_in,
)

ALL, SUM = -1, -2
"""In place of a microbatch: what all of them share, and the sum over all."""

Made: TypeAlias = tuple[int, int]
"""The place that makes a value, and the index of its slot there."""
Value: TypeAlias = tuple[int, int, int]
"""The same, and the microbatch."""


@dataclass(frozen=True, eq=False)
class Places:
    """The step of one microbatch, cut by place.

    Attributes:
        parts: what each place runs: the actions, then the homes of the devices.
        first_home: the first place that is a home.
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
        """The op behind the next value of each buffer that the step changes, and the buffer's path.

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
