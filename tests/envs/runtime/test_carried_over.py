"""What a model does beside calling ops is carried into steps or found by comparing them; steps are timed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from envs.runtime.backends.device_process import DeviceTask
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.backends.wire import StepRecord
from envs.runtime.device_program import Call, ExecutionError
from envs.runtime.runner import StepRunner
from envs.runtime.step_meter import StepMeter
from graphs.capture.capture import capture_step
from tests.envs.runtime.small_models import make, random_devices

N_STEPS = 3


class Net(nn.Module):
    """A small network that a subclass, or a function given to it, makes unusual."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("other", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.calls, self.log, self.table = 0, list[float](), None

    def forward(self, x: Tensor) -> Tensor:
        return (self.b(self.a(x).tanh()) - x * self.kept).square().mean()


class Assigns(Net):
    """Reads a buffer in its backward pass, and swaps it with another."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.a(x).tanh())
        loss = (y * self.kept - self.other).square().mean()
        self.kept, self.other = self.other, (self.kept * 0.5 + y.mean(0)).detach()
        return loss


class Momentum(Net):
    """Follows its weights by another layer, written in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(4, 8).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        self.slow.weight.data = self.slow.weight.data * 0.5 + self.a.weight.data * 0.5
        with torch.no_grad():
            self.slow.bias.mul_(0.5).add_(self.a.bias, alpha=0.5)
        return super().forward(x) + (self.a(x) - self.slow(x)).square().mean()


class Clips(Net):
    """Changes a weight that is trained."""

    def forward(self, x: Tensor) -> Tensor:
        self.a.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class Counts(Net):
    """Scales by numbers that it reads from tensors, and keeps others for a log alone."""

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        loss = super().forward(x) / self.count.item() + x.abs().max().item() * self.a(x).mean()
        self.log.append(float(loss))
        return loss


class Tables(Net):
    """Makes a table and a buffer at the first call."""

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(4, dtype=x.dtype).cos()
            self.register_buffer("scale", torch.full((4,), 2.0, dtype=x.dtype))
        return super().forward(x * self.table * self.scale)


class Averages(Net):
    """A batch norm that averages over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return (self.b(self.norm(self.a(x)).tanh()) - x).square().mean()


def hooked() -> nn.Module:
    module = Net()
    module.a.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    module.a.weight.register_hook(lambda gradient: gradient * 3)
    return module


def patched() -> nn.Module:
    """Calls the module itself, whose buffers and parameters a copy does not have, from a closure."""
    module = Averages()
    module.norm.momentum = 0.1
    plain, norm = module.forward, module.norm
    module.forward = lambda x: plain(x) + norm(module.a(x)).square().mean()  # type: ignore[method-assign]
    return module


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


def batches() -> list[Tensor]:
    return list(torch.randn(N_STEPS, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


def train_plain(module: nn.Module, *optimizers: torch.optim.Optimizer) -> list[float]:
    losses = []
    for x in batches():
        loss = module(x)
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.fixture(scope="module")
def processes() -> Iterator[DeviceProcesses]:
    with DeviceProcesses(2, timeout_s=60) as devices:
        yield devices


def runner_of(module: nn.Module, devices: DeviceProcesses, seed: int, check: bool | str) -> StepRunner:
    captured = capture_step(module, batches()[0], optimizer="sgd", notify=lambda _: None)
    placed = random_devices(captured.graph, 2, seed)
    return StepRunner(captured, placed, module, devices, options={"lr": 0.1}, check=check)


@pytest.mark.parametrize("make", [Assigns, Momentum, Clips, Counts, Tables, Averages, hooked, patched])
def test_what_forward_does_is_carried_over(
    make: Callable[[], nn.Module], processes: DeviceProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    module, plain = made(make), made(make)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    runner = runner_of(module, processes, seed=0, check="stop")
    losses = [float(runner.step(x)) for x in batches()]
    assert losses == pytest.approx(train_plain(plain, torch.optim.SGD(plain.parameters(), 0.1)), abs=1e-12)
    state = runner.state_dict()
    for name, tensor in plain.state_dict().items():
        assert name == "scale" or torch.allclose(state[name], tensor, atol=1e-12)
    for name, tensor in module.state_dict().items():
        assert before[name].equal(tensor)  # the module that was given is as it was
    assert capsys.readouterr().err == ""


class Anneals(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Masks(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * float(np.random.rand()) + random.random())  # noqa: NPY002


@pytest.mark.parametrize(("make", "step"), [(Anneals, 2), (Masks, 1)])
def test_the_first_difference_is_named_and_may_stop(
    make: Callable[[], nn.Module], step: int, processes: DeviceProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = runner_of(made(make), processes, seed=0, check=True)
    for x in batches():
        runner.step(x)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"step {step}: the loss differs from the plain module's by")
    with DeviceProcesses(2, timeout_s=60) as others:
        stopped = runner_of(made(make), others, seed=0, check="stop")
        with pytest.raises(ExecutionError, match=f"step {step}: the loss differs"):
            [stopped.step(x) for x in batches()]
    with pytest.raises(ExecutionError, match="check is 'no'"):
        runner_of(made(make), processes, seed=0, check="no")


class Drops(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.randn_like(x)
        return super().forward(F.dropout(F.dropout(x, 0.3), 0.2, self.training))


def test_steps_are_compared_with_the_random_numbers_of_the_devices(
    processes: DeviceProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        runner = runner_of(made(Drops), processes, seed=seed, check="stop")
        assert len({float(runner.step(batches()[0])) for _ in range(3)}) == 3
    assert capsys.readouterr().err == ""


def test_options_with_which_an_optimizer_keeps_more_are_named(
    processes: DeviceProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    captured = capture_step(made(Net), batches()[0], optimizer="sgd", notify=lambda _: None)
    placed = random_devices(captured.graph, 2, 0)
    for options in ({"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}):
        StepRunner(captured, placed, made(Net), processes, options=options)
    assert capsys.readouterr().err.startswith(
        "with lr=0.1, momentum=0.9 the optimizer keeps 608 bytes, 608 more than planned; "
    )


def test_instances_of_optimizers_update_the_parameters_that_they_hold(processes: DeviceProcesses) -> None:
    plain = made(Net)
    matrices = [each for each in plain.parameters() if each.dim() == 2]
    others = [each for each in plain.parameters() if each.dim() != 2]
    optimizers = [torch.optim.Muon(matrices, lr=0.1), torch.optim.SGD(others[:1], lr=0.2, momentum=0.9)]
    captured = capture_step(plain, batches()[0], optimizer=optimizers, notify=lambda _: None)
    runner = StepRunner(captured, random_devices(captured.graph, 2, 0), plain, processes)
    for x in batches():
        runner.step(x)
    train_plain(plain, *optimizers)
    state, kept = runner.state_dict(), runner.optimizer_state_dict()
    for path, tensor in plain.state_dict().items():
        torch.testing.assert_close(state[path], tensor)
    assert {name for each in kept.values() for name in each} == {"momentum_buffer"}
    runner.load_optimizer_state_dict(kept)
    assert runner.optimizer_state_dict().keys() == kept.keys()
    with pytest.raises(ExecutionError, match=r"state has 'b\.bias', which is not trained"):
        runner.load_optimizer_state_dict({"b.bias": {}})


class CountingProcesses(DeviceProcesses):
    """Keeps the last tasks of the devices, and says that each instruction took a second."""

    tasks: Sequence[DeviceTask] = ()

    def ask(self, commands: Sequence[tuple[str, *tuple[Any, ...]]]) -> list[Any]:
        if commands[0][0] == "load":
            self.tasks = [task for _, task in commands]
        answers = super().ask(commands)
        if commands[0][0] != "steps":
            return answers
        return [[self._counted(record) for record in records] for records in answers]

    def _counted(self, record: StepRecord) -> StepRecord:
        spans = tuple((float(at), at + 1.0) for at in range(len(record.spans)))
        return StepRecord(record.outputs, 0.0, float(len(spans)), spans)


@pytest.fixture(scope="module")
def meter() -> Iterator[StepMeter]:
    module, inputs = make("gpt")
    captured = capture_step(module, inputs, optimizer="sgd")
    with CountingProcesses(2, timeout_s=60) as processes:
        yield StepMeter(captured, module, inputs, processes)


def test_an_op_takes_the_time_of_the_views_before_it(meter: StepMeter) -> None:
    graph = meter.captured.graph
    seconds = meter.op_seconds(1, 2)
    ran = [task.program.instructions for task in meter.processes.tasks]  # type: ignore[attr-defined]
    ops = [at for at, each in enumerate(ran[1]) if isinstance(each, Call) and each.op >= 0]
    assert len(ran[1]) > len(ops) > 100  # there are views
    expected = np.zeros(graph.n_ops)
    for at, before in zip(ops, [-1, *ops], strict=False):
        expected[ran[1][at].op] += at - before
    updates = list(meter.captured.op_of_update.values())
    assert seconds[updates].sum() == pytest.approx(1)
    seconds[updates] = 0
    assert seconds.tolist() == expected.tolist()
