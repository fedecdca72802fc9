"""Signals between devices are counted, and steps over processes of torchrun equal the plain step."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from agent import place
from envs.placements.placement import Placement
from envs.runtime.backends.signals import Barrier, Inbox
from envs.runtime.backends.torchrun import TorchrunDevices
from envs.runtime.backends.transports import SharedMemory, SharedMemoryTransport
from envs.runtime.backends.wire import StepRecord, decode, encode, pack, unpack
from envs.runtime.cut import cut
from envs.runtime.device_program import DeviceProgram, ExecutionError, TensorSpec, Transfer
from envs.runtime.runner import StepRunner
from tests.agent.contexts.worker_cases import free_port
from tests.envs.runtime.small_models import INPUTS, Net, assert_trains_as_plain, random_devices
from tests.faults.processes import PATIENCE_S
from tests.fork_server import context


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


def train(port: int) -> None:
    """Trains as two ranks do that torchrun starts, this process and one that ends before the last step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = Net()
    plan = place(module, INPUTS, cluster="2xk80", placer="heft", optimizer="sgd")
    draws = (random_devices(plan.graph, 2, seed) for seed in range(99))
    placed = next(each for each in draws if kinds_sent(cut(plan.captured, each, 2)) == {True, False})
    plan = replace(plan, placement=Placement(placed))
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    other = get_context("fork").Process(target=as_rank, args=(1, ranks, module, plan))
    other.start()
    runner = as_rank(0, ranks, module, plan)
    other.join()
    assert other.exitcode == 0
    with pytest.raises(ExecutionError, match=r"^device 0: another device has ended"):
        runner.step(*INPUTS)


def kinds_sent(programs: list[DeviceProgram]) -> set[bool]:
    return {each.spec.sparse for program in programs for each in program.transfers}


def as_rank(rank: int, ranks: dict[str, str], module: Net, plan: Any) -> StepRunner:
    """Compares steps with those of the module, and returns the runner of the placement."""
    os.environ |= ranks | {"RANK": str(rank)}
    runner: StepRunner = plan.compile(module, devices="torchrun", timeout_s=60, lr=0.1)
    losses = assert_trains_as_plain(runner, module, INPUTS, 3, lr=0.1)
    runner.load_state_dict(module.state_dict())
    assert float(runner.step(*INPUTS)) == pytest.approx(losses[0], rel=1e-9)  # type: ignore[arg-type]
    return runner


def test_two_processes_of_torchrun_equal_the_plain_step_and_notice_that_one_is_gone() -> None:
    process = context.Process(target=train, args=(free_port(),))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def test_without_torchrun_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ExecutionError, match="start one process per device by torchrun"):
        TorchrunDevices()


def test_answers_survive_the_wire() -> None:
    values = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    record = StepRecord({0: pack(values)}, 1.5, 2.25, ((0.1, 0.2), (0.3, 0.4)))
    assert decode(encode([record])) == [record]
    state = {"layer.weight": {"step": pack(torch.tensor(3.0)), "count": 2, "none": None}}
    assert decode(encode(state)) == state
    assert decode(encode(None)) is None
    empty = decode(encode({"e": pack(torch.empty(0, 4))}))
    assert unpack(empty["e"]).shape == (0, 4)


@pytest.mark.parametrize(
    "content", [b"", b"12345678", b"\x02\0\0\0\0\0\0\0{}", np.random.default_rng(0).bytes(99)]
)
def test_what_is_no_answer_is_refused(content: bytes) -> None:
    with pytest.raises(ExecutionError, match="another device sent what is no answer"):
        decode(content)
