"""What goes wrong while a placed step runs is one line, and leaves nothing running."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agent import place
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.device_program import DeviceLostError, ExecutionError
from envs.runtime.runner import StepRunner
from envs.runtime.step_meter import StepMeter, StepTimeStore
from graphs.capture.capture import capture_step
from graphs.capture.captured_step import CapturedStep
from tests.envs.runtime.small_models import random_devices

INPUTS = (torch.arange(24.0).view(4, 6) / 24,)


class Net(nn.Module):
    """Two layers with tied weights and a buffer; `exponent` may make the loss overflow."""

    def __init__(self, exponent: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)
        self.exponent = exponent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.norm(self.first(x)).relu())
        return (y.square().mean() * self.exponent).exp()


def captured(module: nn.Module) -> CapturedStep:
    return capture_step(module, INPUTS, optimizer="adam")


@pytest.fixture
def processes() -> Iterator[DeviceProcesses]:
    with DeviceProcesses(2, timeout_s=60) as found:
        yield found
    assert not multiprocessing.active_children()


def runner_of(module: nn.Module, processes: DeviceProcesses, **settings: object) -> StepRunner:
    step = captured(module)
    return StepRunner(step, random_devices(step.graph, 2, 0), module, processes, **settings)  # type: ignore[arg-type]


def test_a_loss_that_is_not_finite_ends_the_processes_unless_it_is_asked_for(
    processes: DeviceProcesses,
) -> None:
    infinite = runner_of(Net(exponent=1e9), processes, check_finite=False)
    assert infinite.step(*INPUTS) == float("inf")
    runner = runner_of(Net(exponent=1e9), processes)
    with pytest.raises(ExecutionError, match=r"^the loss is inf in step 1; lower the learning rate"):
        runner.step(*INPUTS)
    assert not processes.running
    with pytest.raises(ExecutionError, match="the runner is closed"):
        runner.state_dict()


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSEGV])
def test_a_device_that_dies_is_named_and_the_others_are_ended(
    stop: signal.Signals, processes: DeviceProcesses
) -> None:
    runner = runner_of(Net(), processes)
    victim = multiprocessing.active_children()[0].pid
    assert victim
    killer = threading.Timer(0.3, os.kill, (victim, stop))
    killer.start()
    with pytest.raises(ExecutionError, match=rf"^device [01]: worker killed by {stop.name}$"):
        _step_for_ever(runner)
    killer.join()
    assert not processes.running


@pytest.mark.parametrize("device", [0, 1])
def test_a_device_that_hangs_is_named_though_another_waits_for_it(device: int) -> None:
    with DeviceProcesses(2, timeout_s=60) as processes:
        runner = runner_of(Net(), processes)
        runner.step(*INPUTS)
        for process in processes._processes:
            process._timeout_s = 2.0  # now that they have loaded all that they need
        hanging = processes._processes[device]._process
        os.kill((hanging and hanging.pid) or 0, signal.SIGSTOP)
        with pytest.raises(ExecutionError, match=rf"^device {device}: no result in 2 s$"):
            runner.step(*INPUTS)
        assert not processes.running


class MortalProcesses(DeviceProcesses):
    """Loses a device in the first `deaths` commands."""

    deaths = 0

    def ask(self, commands: Sequence[tuple[str, *tuple[Any, ...]]]) -> list[Any]:
        if self.deaths:
            self.deaths -= 1
            self.close()
            raise DeviceLostError("device 1: worker killed by SIGKILL")
        return super().ask(commands)


@pytest.fixture
def meter() -> Iterator[StepMeter]:
    module = Net()
    with MortalProcesses(2, timeout_s=60) as processes:
        yield StepMeter(captured(module), module, INPUTS, processes)


def test_a_placement_whose_device_was_killed_is_tried_once_more(meter: StepMeter) -> None:
    device_of = random_devices(meter.captured.graph, 2, 0)
    assert meter.measure(device_of).feasible
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    assert meter.measure(device_of).feasible
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    assert meter.op_seconds(0).sum() > 0


def test_a_placement_that_cannot_run_is_infeasible_until_it_is_measured_again(
    tmp_path: Path, meter: StepMeter
) -> None:
    device_of = random_devices(meter.captured.graph, 2, 0)
    meter.processes.deaths = 2  # type: ignore[attr-defined]
    measurements = StepTimeStore(tmp_path / "measurements.jsonl", meter, ["cpu", "cpu"])
    broken = measurements.measure(device_of)
    assert not broken.feasible
    assert np.isnan(broken.median_s)
    assert broken.failure == "device 1: worker killed by SIGKILL"
    assert measurements.measure(device_of) is broken
    for _ in range(2):  # a later start measures it anew, and keeps that
        found = StepTimeStore(tmp_path / "measurements.jsonl", meter, ["cpu", "cpu"]).measure(device_of)
        assert 0 < found.low_s <= found.median_s <= found.high_s
        assert found.n_steps == 20
    assert len((tmp_path / "measurements.jsonl").read_text().splitlines()) == 2


def test_memory_that_cannot_be_had_is_a_reason(processes: DeviceProcesses) -> None:
    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.weight.sum() * x.new_zeros(1 << 46)).sum()

    module = Huge()
    step = capture_step(module, INPUTS, optimizer="sgd")
    runner = StepRunner(step, np.zeros(step.graph.n_ops, dtype=np.int64), module, processes)
    with pytest.raises(ExecutionError, match=r"^device 0: out of memory \(RuntimeError: .*can't allocate"):
        runner.step(*INPUTS)


@pytest.mark.parametrize("timeout_s", [float("nan"), -1.0, 0.0, "long"])
def test_a_time_limit_is_a_number_above_0(timeout_s: float) -> None:
    with pytest.raises(ExecutionError, match=r"timeout_s is .*; give seconds above 0"):
        DeviceProcesses(2, timeout_s)


def test_what_a_runner_cannot_take_is_one_line_and_loses_nothing(processes: DeviceProcesses) -> None:
    runner = runner_of(Net(), processes)
    state, x = runner.state_dict(), INPUTS[0]
    step, load, load_optimizer = runner.step, runner.load_state_dict, runner.load_optimizer_state_dict
    without_bias = {key: value for key, value in state.items() if key != "norm.bias"}
    on_meta = torch.zeros((), device="meta")
    refused: list[tuple[Any, tuple[Any, ...], str]] = [
        (step, (x[:2],), r"input 0 is torch.float32 \[2, 6\]; it was captured with .*\[4, 6\]"),
        (step, (x, x), "inputs of another structure"),
        (step, (x.to("meta"),), "an input is a meta tensor"),
        (step, (x.to_sparse(),), "an input is a sparse tensor"),
        (step, (torch.nested.nested_tensor([*x], layout=torch.jagged),), "input 0 is a nested tensor"),
        (load, (without_bias,), r"the state lacks key 'norm.bias'"),
        (load, (state | {"more": x},), "has the unknown key 'more'"),
        (load, (state | {"norm.bias": torch.ones(3)},), r"'norm.bias' is \[3\] in the state; expected \[6\]"),
        (load, (dict.fromkeys(state, "text"),), "of the state is str; give a tensor"),
        (load, ([],), r"^the state is list; give a mapping"),
        (load_optimizer, ({"norm.running_mean": {}},), "is not trained"),
        (
            load_optimizer,
            ({"first.bias": "text"},),
            "^'first.bias' of the optimizer's state is str; give a map",
        ),
        (
            load_optimizer,
            ({"first.bias": {"step": "text"}},),
            "^'step' of 'first.bias' of .* is str; give a t",
        ),
        (load_optimizer, ({"first.bias": {"step": on_meta}},), "^'step' of .* is a meta tensor"),
    ]
    for function, arguments, message in refused:
        with pytest.raises(ExecutionError, match=message):
            function(*arguments)
    assert torch.isfinite(runner.step(*INPUTS))


def test_what_no_runner_can_be_made_of_is_one_line(processes: DeviceProcesses) -> None:
    step = captured(Net())
    placed = random_devices(step.graph, 2, 0)
    with torch.device("meta"):
        on_meta = Net()
    refused: list[tuple[nn.Module, dict[str, Any], str]] = [
        (nn.Linear(2, 2), {}, r"the module has no 'first.weight'"),
        (on_meta, {}, r"'first.weight' is on the meta device and has no values"),
        (Net(), {"lr": float("nan")}, "^lr is nan; give the optimizer a finite number"),
        (Net(), {"lr": "high"}, "^optimizer 'adam' does not take lr='high': "),
        (
            Net(),
            {"betas": (float("nan"), 0.9)},
            r"^optimizer 'adam' does not take betas=\(nan, 0.9\): Invalid",
        ),
        (Net(), {"momentum": 0.5}, "^optimizer 'adam' does not take momentum=0.5: "),
    ]
    for module, options, message in refused:
        with pytest.raises(ExecutionError, match=message):
            StepRunner(step, placed, module, processes, options=options)


def test_a_second_thread_is_refused_and_changes_no_input(processes: DeviceProcesses) -> None:
    runner = runner_of(Net(), processes)
    runner.set_inputs(INPUTS)
    with runner._busy, ThreadPoolExecutor(1) as pool:
        step = pool.submit(runner.step, torch.zeros(4, 6))
        with pytest.raises(ExecutionError, match="another thread uses this runner"):
            step.result(60)
    assert torch.equal(runner._inputs[0], INPUTS[0])


def test_state_goes_in_and_out_under_the_keys_of_the_module(processes: DeviceProcesses) -> None:
    module = Net()
    runner = runner_of(module, processes, options={"lr": 0.1})
    losses = [float(runner.step(*INPUTS)) for _ in range(2)]  # type: ignore[arg-type]
    state, optimizer = runner.state_dict(), runner.optimizer_state_dict()
    assert state.keys() == module.state_dict().keys()
    assert set(optimizer) == {path for path, _ in module.named_parameters()}
    expected = [float(runner.step(*INPUTS)) for _ in range(2)]  # type: ignore[arg-type]
    assert expected[0] < losses[0]

    other = Net()
    other.load_state_dict(state)  # as a user's checkpoint would
    again = runner_of(other, processes, options={"lr": 0.1})
    again.load_optimizer_state_dict(optimizer)
    assert [float(again.step(*INPUTS)) for _ in range(2)] == expected  # type: ignore[arg-type]


def test_a_plan_for_devices_that_are_not_there_names_the_first() -> None:
    module = Net()
    plan = place(module, INPUTS, cluster="4xv100", placer="heft")
    refused = (
        (None, "cluster '4xv100': 'gpu0' is a v100, and this machine has only"),
        (["cpu", "cpu"], "2 devices for the 4 of the cluster"),
        (["cpu", "cuda:99", "cpu", "cpu"], "device 1 is 'cuda:99', and this machine has [0-9]+ CUDA devices"),
        (["cuda", "cpu", "cpu", "cpu"], "device 0 is 'cuda'; use cpu, or cuda:0 and so on"),
        (["cpu", "tpu:0", "cpu", "cpu"], "device 1 is 'tpu:0'; use cpu, or cuda:0"),
    )
    for devices, message in refused:
        with pytest.raises(ExecutionError, match=message) as caught:
            plan.compile(module, devices=devices)
        assert "\n" not in str(caught.value)
    with pytest.raises(ExecutionError, match="only a graph was placed"):
        place(plan.graph, cluster="4xv100", placer="heft").compile(module)
    with plan.compile(module, devices=["cpu"] * 4, timeout_s=60) as runner:
        assert torch.isfinite(runner.step(*INPUTS))  # type: ignore[arg-type]
    assert not multiprocessing.active_children()


def test_nothing_is_left_when_the_caller_is_killed(tmp_path: Path) -> None:
    """Neither a process nor shared memory, which has no name."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from agent import place\n"
        "from tests.envs.runtime.test_failures import INPUTS, Net\n"
        "module = Net()\n"
        "plan = place(module, INPUTS, cluster='2xk80', placer='heft')\n"
        "runner = plan.compile(module, devices=['cpu'] * 2)\n"
        "import multiprocessing\n"
        "print(*[each.pid for each in multiprocessing.active_children()], flush=True)\n"
        "while True:\n    runner.step(*INPUTS)\n"
    )
    before, environment = _shared_memory(), os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as caller:
        assert caller.stdout
        pids = [int(pid) for pid in caller.stdout.readline().split()]
        caller.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)
    while _shared_memory() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _shared_memory() - before


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _step_for_ever(runner: StepRunner) -> None:
    while True:
        runner.step(*INPUTS)
