"""What runs on the devices of a placement equals the plain step: losses, gradients, parameters."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator

import pytest
import torch

from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.runner import StepRunner
from graphs.capture.capture import capture_step
from graphs.granularity import GRANULARITIES, with_granularity
from tests.envs.runtime.small_models import MODELS, make, plain_steps, random_devices

N_DEVICES, N_STEPS = 3, 2


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
