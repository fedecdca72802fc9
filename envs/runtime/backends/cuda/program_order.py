"""The order in which one host thread issues several device programs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from envs.runtime.device_program import Call, DeviceProgram, Receive, Send


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
