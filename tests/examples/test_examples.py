"""Models that users bring: captured, placed per op and per module, handed over, and run as placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from agent import place
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.runner import StepRunner
from graphs.capture.capture import capture_step
from graphs.granularity import with_granularity
from tests.envs.runtime.small_models import plain_steps, random_devices
from tests.examples import models, recommender

pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLES: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str, str]] = {
    "gpt2": (models.make_gpt2, "adamw", "4xv100"),
    "unet": (models.make_unet, "adafactor", "4xv100"),
    "recommender": (recommender.make, "adam", "gpu+cpu"),
    "recommender, sparse": (recommender.make_sparse, "sgd", "gpu+cpu"),
    "lstm": (models.make_lstm, "sgd", "4xv100"),
}
"""What makes each, its optimizer, and the cluster that it is for."""


@pytest.fixture(scope="module")
def processes() -> Iterator[DeviceProcesses]:
    with DeviceProcesses(2, timeout_s=120) as found:
        yield found


def in_float64(module: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    return module.double(), tree_map(lambda each: each.double() if each.is_floating_point() else each, inputs)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_placed_and_handed_over(name: str, tmp_path: Path) -> None:
    make, optimizer, cluster = EXAMPLES[name]
    module, inputs = make()
    for training, granularity in ((False, "op"), (True, "module")):
        plan = place(
            module,
            inputs,
            cluster=cluster,
            placer="annealing",
            budget=200,
            optimizer=optimizer,
            training=training,
            granularity=granularity,
        )
        assert plan.step_time.fits
        assert plan.step_time.total_s >= plan.lower_bound_s > 0
    plan.save_all(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"annealing.json", "annealing.device_map.json"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_placed(name: str, processes: DeviceProcesses) -> None:
    make, optimizer, _ = EXAMPLES[name]
    module, inputs = in_float64(*make())
    captured = capture_step(module, inputs, optimizer=optimizer)
    losses, _, state = plain_steps(module, inputs, 3, optimizer, lr=1e-3)
    for seed, granularity in enumerate(("op", "module")):
        device_of = random_devices(with_granularity(captured.graph, granularity), 2, seed)
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 1e-3})
        runner.set_inputs(inputs)
        found = [float(step) for step in (_step(runner, inputs) for _ in range(3))]
        assert found == pytest.approx(losses, rel=1e-9)
        after = runner.state_dict()
        assert after.keys() == state.keys()
        for key, value in state.items():
            # Adam divides by roots of squares, which magnifies the rounding of gradients near zero.
            torch.testing.assert_close(after[key], value, rtol=1e-7, atol=1e-7, msg=key)


def _step(runner: StepRunner, inputs: Any) -> Any:
    return runner.step(**inputs) if isinstance(inputs, dict) else runner.step(*inputs)


def test_an_example_runs_for_inference(processes: DeviceProcesses) -> None:
    module, inputs = in_float64(*models.make_lstm())
    captured = capture_step(module, inputs, training=False)
    device_of = random_devices(captured.graph, 2, 0)
    outputs = StepRunner(captured, device_of, module, processes).step(*inputs)
    assert isinstance(outputs, list)
    torch.testing.assert_close(outputs[0], module.eval()(*inputs).detach(), rtol=1e-9, atol=1e-9)


class Dropping(nn.Module):
    """Two dropouts of ones, on two devices if placed so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dropout(0.25), nn.Dropout(0.25)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.first(x * self.scale), self.second(x * self.scale)]).mean()


def test_dropout_is_right_in_distribution(processes: DeviceProcesses) -> None:
    """The mean of what is kept and scaled up is 1; steps and seeds draw anew, the same seed the same."""
    module, inputs = Dropping(), torch.ones(200, 500)
    captured = capture_step(module, inputs, optimizer="sgd")
    graph = captured.graph
    dropouts = [op for op, kind in enumerate(graph.op_types) if kind == "aten.native_dropout"]
    assert len(dropouts) == 2
    device_of = np.zeros(graph.n_ops, dtype=np.int64)
    device_of[dropouts[1]] = 1

    def means(seed: int) -> list[float]:
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 0.0}, seed=seed)
        return [float(_step(runner, (inputs,))) for _ in range(5)]

    drawn = means(seed=1)
    assert means(seed=1) == drawn
    assert len({*drawn, *means(seed=2)}) == 10
    sigma = (0.25 / 0.75 / (2 * inputs.numel())) ** 0.5
    assert all(abs(mean - 1.0) < 5 * sigma for mean in drawn)
