"""Signals between devices: counted by sender, none lost, also where a pipe is full."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import torch

from envs.runtime.backends.signals import Barrier, Inbox
from envs.runtime.backends.transports import SharedMemory, SharedMemoryTransport
from envs.runtime.device_program import TensorSpec, Transfer


def together(*works: Callable[[], object]) -> bool:
    """Runs functions in threads; returns whether all ended."""
    threads = [Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


def test_signals_are_counted_by_sender() -> None:
    inbox = Inbox()
    for sender in (0, 700, 0):
        assert inbox.tell(sender)
    for sender in (700, 0, 0):
        inbox.take(sender)
    assert not inbox.collect()
    assert together(lambda: inbox.take(1), lambda: inbox.tell(2) and inbox.tell(1))
    inbox.take(2)


def test_devices_that_send_more_than_pipes_hold_do_not_wait_for_each_other_for_ever() -> None:
    spec, count, inboxes = TensorSpec.of(torch.zeros(1)), 50_000, [Inbox(), Inbox()]
    memory = SharedMemory(spec.n_bytes)
    devices = [SharedMemoryTransport(memory, [0] * count, inboxes) for _ in range(2)]

    def run(device: int) -> None:
        other = 1 - device
        for rank in range(count):
            devices[device].signal(Transfer(rank, device, other, rank, spec))
        devices[device].receive(Transfer(count - 1, other, device, count - 1, spec))

    assert together(lambda: run(0), lambda: run(1))


def test_a_barrier_lets_nobody_through_before_all_are_there() -> None:
    inboxes, arrived = [Inbox() for _ in range(3)], [0] * 3

    def run(index: int) -> None:
        barrier = Barrier(index, inboxes)
        for count in range(1, 50):
            arrived[index] = count
            barrier.wait()
            assert min(arrived) >= count
            barrier.wait()
        arrived[index] = -1

    assert together(*(lambda index=index: run(index) for index in range(3)))
    assert arrived == [-1] * 3
