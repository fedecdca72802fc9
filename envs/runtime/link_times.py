"""Times transfers between the processes of devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from envs.runtime.backends.device_process import DeviceTask
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.backends.transports import offsets_of
from envs.runtime.backends.wire import StepRecord, pack
from envs.runtime.device_program import DeviceProgram, Instruction, Receive, Send, Slot, TensorSpec, Transfer


def time_transfers(n_bytes: int, repeats: int, processes: DeviceProcesses) -> list[float]:
    """Times a transfer from device 0 to device 1, as half of the way there and back.

    Args:
        n_bytes: a multiple of 4.
        repeats: number of round trips, after one that is not timed.
        processes: of at least two devices.

    Returns:
        Seconds of one transfer, (repeats,).
    """
    spec = TensorSpec.of(torch.empty(n_bytes // 4, device="meta"))
    there, back = Transfer(0, 0, 1, 0, spec), Transfer(1, 1, 0, 0, spec)
    programs: list[tuple[Instruction, ...]] = [
        (Send(there, Slot(0)), Receive(back, Slot(1))),
        (Receive(there, Slot(1)), Send(back, Slot(1))),
        *[()] * (processes.n_devices - 2),
    ]
    offsets, size = offsets_of([spec, spec])
    processes.memory.grow(size)
    tasks = [_task(device, each, offsets, size, spec) for device, each in enumerate(programs)]
    processes.ask([("load", task) for task in tasks])
    records: list[StepRecord] = processes.tell("steps", repeats + 1, False)[0]
    return [(each.end_s - each.start_s) / 2 for each in records[1:]]


def _task(
    device: int, instructions: tuple[Instruction, ...], offsets: Sequence[int], size: int, spec: TensorSpec
) -> DeviceTask:
    program = DeviceProgram(
        device=device,
        n_slots=2,
        instructions=instructions,
        frees=((),) * len(instructions),
        state=(("sent", Slot(0)),),
        constants=(),
        inputs=(),
        trained=(),
        new_values=(),
        outputs=(),
    )
    state = {"sent": pack(torch.ones(spec.shape))}
    return DeviceTask(
        program=program,
        memory_bytes=size,
        transfer_offsets=offsets,
        inputs={},
        state=state,
        constants={},
        optimizer=None,
        seed=0,
    )
