"""What runs on the devices of a placement equals the plain step: losses, gradients, parameters."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.device_program import ExecutionError
from envs.runtime.runner import StepRunner
from graphs.capture.capture import capture_step
from graphs.granularity import GRANULARITIES, with_granularity
from tests.envs.runtime.small_models import MODELS, make, plain_steps, random_devices
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
    losses, gradients, state = plain_steps(module, inputs, N_STEPS, "sgd", lr=0.1)
    for seed, granularity in enumerate(GRANULARITIES):
        graph = with_granularity(captured.graph, granularity)
        device_of = random_devices(graph, N_DEVICES, seed)
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 0.1})
        found = [float(runner.step(*inputs)) for _ in range(N_STEPS)]  # type: ignore[arg-type]
        assert found == pytest.approx(losses, rel=1e-9), granularity
        found_gradients, found_state = runner.gradients(), runner.state_dict()
        assert found_gradients.keys() == gradients.keys()
        assert found_state.keys() == state.keys()
        for path, gradient in gradients.items():
            torch.testing.assert_close(found_gradients[path], gradient, rtol=1e-9, atol=1e-9)
        for key, value in state.items():
            torch.testing.assert_close(found_state[key], value, rtol=1e-9, atol=1e-9)


def test_values_that_a_step_was_captured_with_are_checked_in_each_step() -> None:
    torch.manual_seed(0)
    module, x = Calls(parts).double(), torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    inputs = x, torch.tensor([2, 1])
    captured = capture_step(module, inputs, optimizer="sgd", notify=lambda _: None)
    losses, _, state = plain_steps(module, inputs, N_STEPS, "sgd", lr=1e-4)
    device_of = random_devices(captured.graph, 2, 0)
    with DeviceProcesses(2, timeout_s=120) as processes:
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 1e-4})
        found = [float(runner.step(*inputs)) for _ in range(N_STEPS)]  # type: ignore[arg-type]
        assert found == pytest.approx(losses, rel=1e-9)
        for key, value in runner.state_dict().items():
            torch.testing.assert_close(value, state[key], rtol=1e-9, atol=1e-9)
        message = "device [01]: op '.*' yields 1; the step holds for .* which yield 2; capture it again"
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
