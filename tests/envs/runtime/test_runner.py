"""What runs on the devices of a placement equals the plain step: losses, gradients, parameters."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm

from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.device_program import ExecutionError
from envs.runtime.runner import StepRunner
from graphs.capture.capture import capture_step
from graphs.granularity import GRANULARITIES, with_granularity
from tests.envs.runtime.small_models import MODELS, assert_trains_as_plain, make, random_devices
from tests.graphs.capture.capture_cases import Calls

N_DEVICES, N_STEPS = 3, 2


def parts(layer: nn.Module, x: Tensor, counts: Tensor) -> Tensor:
    means = [layer(part).mean() for part in x.split(counts.tolist())]
    return torch.stack(means).sum() + layer(x)[x[:, 0] > 2].square().mean()


@pytest.fixture(scope="module")
def processes() -> Iterator[DeviceProcesses]:
    with DeviceProcesses(N_DEVICES, timeout_s=120) as found:
        yield found


@pytest.mark.parametrize("family", MODELS)
def test_a_placed_step_equals_the_plain_one(family: str, processes: DeviceProcesses) -> None:
    module, inputs = make(family)
    captured = capture_step(module, inputs, optimizer="sgd")
    for seed, granularity in enumerate(GRANULARITIES):
        graph = with_granularity(captured.graph, granularity)
        device_of = random_devices(graph, N_DEVICES, seed)
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 0.1})
        assert_trains_as_plain(runner, module, inputs, N_STEPS, lr=0.1)


def test_clones_whose_keywords_change_nothing_run(processes: DeviceProcesses) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(spectral_norm(nn.Linear(4, 4)), orthogonal(nn.Linear(4, 4))).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    captured = capture_step(module, x, optimizer="sgd", notify=lambda _: None)
    device_of = random_devices(captured.graph, N_DEVICES, 0)
    runner = StepRunner(captured, device_of, module, processes, options={"lr": 0.1})
    assert_trains_as_plain(runner, module, (x,), N_STEPS, lr=0.1)


def test_values_that_a_step_was_captured_with_are_checked_in_each_step() -> None:
    torch.manual_seed(0)
    module, x = Calls(parts).double(), torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    inputs = x, torch.tensor([2, 1])
    captured = capture_step(module, inputs, optimizer="sgd", notify=lambda _: None)
    device_of = random_devices(captured.graph, 2, 0)
    with DeviceProcesses(2, timeout_s=120) as processes:
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 1e-4})
        assert_trains_as_plain(runner, module, inputs, N_STEPS, lr=1e-4)
        message = "device [01]: .*op '.*' yields 1; the step holds for .* which yield 2; capture it again"
        with pytest.raises(ExecutionError, match=message):
            runner.step(x, torch.tensor([1, 2]))


def test_memory_formats_are_found_by_processes_that_do_not_run_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pickle takes them from the first module that has `torch`, which may be the script."""
    script = types.ModuleType("__mp_main__")
    script.torch = torch  # type: ignore[attr-defined]
    modules = {name: module for name, module in sys.modules.items() if name != "__mp_main__"}
    monkeypatch.setattr(sys, "modules", {"__mp_main__": script, **modules})
    content = pickle.dumps(torch.channels_last)
    assert b"__mp_main__" not in content
    assert pickle.loads(content) is torch.channels_last
