"""The process of the CUDA devices keeps all in order: streams and events are recorded, which needs no GPU."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from envs.runtime.backends.cuda.stream_host import bound_to, program_order
from envs.runtime.backends.device_process import DeviceHost
from envs.runtime.backends.processes import DeviceProcesses, members_of
from envs.runtime.backends.transports import SharedMemoryTransport
from envs.runtime.cut import cut
from envs.runtime.device_program import (
    Call,
    DeviceProgram,
    ExecutionError,
    Receive,
    Send,
    Transfer,
    find_function,
)
from envs.runtime.runner import StepRunner
from graphs.capture.capture import capture_step
from graphs.capture.captured_step import CapturedStep
from tests.envs.runtime import small_models
from tests.envs.runtime.recorded_streams import OneProcess, RecordedCuda
from tests.envs.runtime.small_models import assert_trains_as_plain, make, random_devices

NAMES = ["cuda:0", "cuda:1", "cuda:2"]
WITH_CPU = ["cuda:0", "cpu", "cuda:1"]
N_STEPS = 2


@pytest.fixture(autouse=True)
def _on_any_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the cores of this process alone."""
    monkeypatch.setattr(DeviceHost, "pin", lambda host: None)


@cache
def model(name: str) -> tuple[nn.Module, tuple[Tensor, ...], CapturedStep]:
    if name == "bag":
        torch.manual_seed(0)
        module, inputs = small_models.Net(), small_models.INPUTS
    else:
        module, inputs = make(name)  # type: ignore[assignment]
    return module, inputs, capture_step(module, inputs, optimizer="sgd", gpu=None)


def trained(name: str, seed: int, devices: Any) -> StepRunner:
    """Asserts that a runner trains as the module that is not placed."""
    module, inputs, captured = model(name)
    device_of = random_devices(captured.graph, devices.n_devices, seed)
    runner = StepRunner(captured, device_of, module, devices, options={"lr": 0.1})
    assert_trains_as_plain(runner, module, inputs, N_STEPS, lr=0.1)
    return runner


def dense_transfers(programs: Sequence[DeviceProgram]) -> list[Transfer]:
    found = [each for program in programs for each in program.instructions if isinstance(each, Send)]
    return [each.transfer for each in found if not each.transfer.spec.sparse and each.transfer.spec.n_bytes]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["gpt", "ptb", "bag"])
def test_streams_are_in_order_and_every_tensor_is_copied_once(name: str, seed: int) -> None:
    devices = OneProcess(NAMES, RecordedCuda())
    runner = trained(name, seed, devices)
    assert not devices.order.faults
    sent = dense_transfers(runner.programs)
    assert len(sent) > 10
    if name != "bag":
        assert len(devices.order.copies) == N_STEPS * len(sent)


@pytest.mark.parametrize(("name", "forgotten"), [("gpt", "query"), ("bag", "")])
def test_shared_memory_is_signalled_after_it_is_written(
    name: str, forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = OneProcess(WITH_CPU, RecordedCuda(forgotten))
    signal, checked = SharedMemoryTransport.signal, []

    def checking(self: SharedMemoryTransport, transfer: Transfer) -> None:
        if transfer.source != 1 and not transfer.spec.sparse:
            checked.append(devices.order.has_been_written(self._place(transfer)))
        signal(self, transfer)

    monkeypatch.setattr(SharedMemoryTransport, "signal", checking)
    trained(name, 0, devices)
    assert not devices.order.faults
    assert len(checked) > 5
    assert all(checked)


class Counter(nn.Module):
    """Counts its steps in a buffer, which it reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("count", torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        count = self.count + 1
        y = (x * self.count * self.weight).sum()
        self.count.copy_(count)
        return y


@pytest.mark.parametrize("names", [NAMES, WITH_CPU])
def test_state_is_not_updated_before_it_has_been_sent(names: list[str]) -> None:
    module, inputs = Counter(), (torch.ones(3, dtype=torch.float64),)
    captured = capture_step(module, inputs, optimizer="sgd")
    device_of = np.full(captured.graph.n_ops, 1)
    device_of[[captured.graph.op_names.index(name) for name in ("count", "add", "copy")]] = 0
    devices = OneProcess(names, RecordedCuda("query"))
    runner = StepRunner(captured, device_of, module, devices, options={"lr": 0.0})
    assert [float(runner.step(*inputs)) for _ in range(3)] == [3.0, 6.0, 9.0]  # type: ignore[arg-type]
    assert [len(dense_transfers([each])) for each in runner.programs] == [1, 0, 0]
    assert not devices.order.faults


@pytest.mark.parametrize("forgotten", ["wait", "keep"])
def test_what_is_out_of_order_is_found(forgotten: str) -> None:
    devices = OneProcess(NAMES, RecordedCuda(forgotten))
    trained("gpt", 0, devices)
    words = "freed while" if forgotten == "keep" else "does not wait for"
    assert any(words in fault for fault in devices.order.faults)


@pytest.mark.parametrize("members", [(0, 1, 2), (0, 2)])
@pytest.mark.parametrize("name", ["gpt", "bag"])
def test_programs_are_merged_in_program_order(name: str, members: tuple[int, ...]) -> None:
    captured = model(name)[2]
    for seed in range(3):
        programs = [cut(captured, random_devices(captured.graph, 3, seed), 3)[index] for index in members]
        order = program_order(programs)
        for index, program in enumerate(programs):
            assert [at for each, at in order if each == index] == list(range(len(program.instructions)))
        _assert_in_program_order([programs[index].instructions[at] for index, at in order], programs, order)


def _assert_in_program_order(
    merged: Sequence[Any], programs: Sequence[DeviceProgram], order: list[tuple[int, int]]
) -> None:
    ops = [each.op if isinstance(each, Call) else -1 for each in merged]
    computed = [op for op in ops if op >= 0]
    assert computed == sorted(computed)
    sent = {each.transfer.index: at for at, each in enumerate(merged) if isinstance(each, Send)}
    for at, (each, (program, _)) in enumerate(zip(merged, order, strict=True)):
        own = [op if index == program else -1 for (index, _), op in zip(order, ops, strict=True)]
        if isinstance(each, Receive):  # all that comes before its use has been issued
            following = min((op for op in own[at:] if op >= 0), default=np.inf)
            assert all(op < following for op in ops[:at])
            assert all(op >= following for op in ops[at:] if op >= 0)
            assert sent.get(each.transfer.index, -1) < at
        if isinstance(each, Send):  # nothing has been issued since what it sends
            assert max([-1, *ops[:at]]) <= max([-1, *own[:at]])


def test_one_process_drives_all_gpus() -> None:
    assert members_of(["cuda:1", "cpu", "cuda:0", "cpu"]) == [(0, 2), (1,), (3,)]
    assert members_of(["cpu", "cpu"]) == [(0,), (1,)]
    assert members_of(["cpu", "cuda:0"]) == [(0,), (1,)]


def test_processes_of_both_kinds_train_as_the_plain_step() -> None:
    with DeviceProcesses(WITH_CPU, timeout_s=60, cuda=RecordedCuda()) as processes:
        runner = trained("bag", 1, processes)
        assert len(multiprocessing.active_children()) == 2
        (timed,) = runner.timed_steps(1, timed_ops=True)
        for record, program in zip(timed.records, runner.programs, strict=True):
            spans = np.array(record.spans)
            assert spans.shape == (len(program.instructions) + 1, 2)
            assert np.all(np.diff(spans.ravel()[[0, -1]]) > 0)
            assert record.start_s <= spans.min()
            assert np.ptp(spans) <= record.end_s - record.start_s
        os.kill(multiprocessing.active_children()[0].pid or 0, 9)
        with pytest.raises(ExecutionError, match=r"^device (0, 2|1): worker killed by SIGKILL$"):
            runner.step(*small_models.INPUTS)
    assert not multiprocessing.active_children()


def test_calls_are_bound_to_their_device() -> None:
    gpu = torch.device("cuda:1")
    for name in ("gpt", "moe"):
        captured = capture_step(*make(name), optimizer="sgd", gpu=None)
        (program,) = cut(captured, np.zeros(captured.graph.n_ops, dtype=np.int64), 1)
        bound = bound_to(program, gpu)
        text, before = repr(bound.instructions), repr(program.instructions)
        assert "for_cpu" not in text
        assert "type='cpu'" not in text
        assert ("for_cpu" in before) == (name == "gpt")
        assert before.count("type='cpu'") == text.count(repr(gpu))


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_that_of_the_cpu(layout: tuple[int, ...], masked: bool) -> None:
    torch.manual_seed(0)
    back = [layout.index(dim) for dim in range(4)]
    shape = [(2, 3, 6, 4)[dim] for dim in layout]
    query, key, value = (torch.randn(shape, dtype=torch.float64).permute(back) for _ in range(3))
    mask = torch.randn(2, 1, 6, 6, dtype=torch.float64) if masked else None
    name = "aten._scaled_dot_product_flash_attention_for_cpu{}.default"
    made = []
    for forward, backward in (
        (name.format(""), name.format("_backward")),
        ("attention", "attention_backward"),
    ):
        given = (query, key, value)
        out, sums = find_function(forward)(*given, 0.0, not masked, attn_mask=mask, scale=0.3)
        grad = torch.ones_like(out) + query
        gradients = find_function(backward)(
            grad, *given, out, sums, 0.0, not masked, attn_mask=mask, scale=0.3
        )
        made.append((out, sums, *gradients))
    for expected, found in zip(*made, strict=True):
        torch.testing.assert_close(found, expected, check_stride=True)


def test_a_gpu_cannot_be_two_devices() -> None:
    with pytest.raises(ExecutionError, match="device 2 is 'cuda:0' again; name each CUDA device once"):
        DeviceProcesses(["cuda:0", "cpu", "cuda:0"], cuda=RecordedCuda())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("names", [["cuda:0"], ["cuda:0", "cpu"], ["cuda:0", "cuda:1"]])
@pytest.mark.parametrize("name", ["gpt", "ptb", "bag"])
def test_gpus_train_as_the_plain_step(name: str, names: list[str]) -> None:
    if len(names) - names.count("cpu") > torch.cuda.device_count():
        pytest.skip("needs another GPU")
    if name == "gpt" and torch.__version__ < (2, 13):
        pytest.skip("fake tensors of torch before 2.13 have the sums of attention in float64 in float32")
    with DeviceProcesses(names, timeout_s=300) as processes:
        trained(name, 0, processes)
