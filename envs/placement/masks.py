"""Masks: the devices that are offered for the op at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from envs.placement import EVERY_DEVICE, FREE_MEMORY
from envs.placement.generator import MdpError
from graphs.system.array_types import BoolArray
from graphs.system.errors import checked
from graphs.system.jit import kernel

if TYPE_CHECKING:
    from envs.problem import Problem


@dataclass(frozen=True, eq=False)
class Mask:
    """Says which devices are offered for an op.

    Attributes:
        needs_memory: only those with free memory for the op's placement unit.
        allowed: devices that a unit may be on, bool (n_units, n_devices), or a function that returns them for
            a problem; by default, all.
    """

    needs_memory: bool = True
    allowed: BoolArray | Callable[[Problem], BoolArray] | None = None

    def __post_init__(self) -> None:
        checked(MdpError, "needs_memory", self.needs_memory, bool)

    def table(self, problem: Problem) -> BoolArray:
        """Returns the devices that each placement unit of a problem may be on, bool (n_units, n_devices).

        Raises:
            ValueError: a table of another shape or type, or a unit without a device that could hold it.
        """
        shape = (len(problem.graph.units), problem.n_devices)
        if self.allowed is None:
            return np.ones(shape, dtype=np.bool_)
        table = np.asarray(self.allowed(problem) if callable(self.allowed) else self.allowed)
        where = f"mask of '{problem.graph.name}' on {problem.cluster.name}"
        if table.shape != shape or table.dtype != np.bool_:
            remedy = "" if callable(self.allowed) else "; use a function to give each problem a table"
            wanted = f"expected (n_units, n_devices) = {shape}, bool{remedy}"
            raise ValueError(f"{where}: {table.dtype}, shape {table.shape}; {wanted}")
        holds = problem.footprint_bytes[:, None] <= problem.arrays.memory
        lost = ~(table & (holds | (not self.needs_memory))).any(axis=1)
        if lost.any():
            op = problem.graph.op_names[int(problem.graph.units.row(int(np.argmax(lost)))[0])]
            raise ValueError(f"{where}: allows no device that can hold '{op}'; allow at least one")
        return table


NAMED = {FREE_MEMORY: Mask(), EVERY_DEVICE: Mask(needs_memory=False)}
"""Masks by the names that settings have for them."""


@kernel
def fill_mask(m, p, episode, op, rules, mask):
    """Marks the allowed devices with free memory for the unit of an op, or all; it may stay where it is.

    Args:
        mask: int8 (max_devices,); written.

    Returns:
        Whether there is such a device, bool.
    """
    any_free = False
    unit = m.unit_of[op]
    footprint = m.footprint_bytes[unit]
    for device in range(len(mask)):
        mask[device] = 0
        if device < len(p.memory):
            stays = episode.device_of[op] == device
            has_memory = not rules.masks or episode.load[device] + footprint <= p.memory[device]
            if stays or (has_memory and m.allowed[unit, device]):
                mask[device] = 1
                any_free = True
    return any_free
