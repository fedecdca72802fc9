"""Stages that run forward again train as stages that do not, and hold fewer bytes in between."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agent import Pipeline, place
from envs.cluster.presets import get_cluster
from envs.pipeline.schedules import RECOMPUTE
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.problem import Problem
from envs.runtime.backends.device_process import DeviceHost
from envs.runtime.cut import cut
from envs.runtime.cut_pipeline import N_KINDS, _run_again, action_kinds, cut_pipeline
from envs.runtime.device_program import Call
from envs.runtime.interpreter import Interpreter
from envs.runtime.module_state import constants_of, state_of
from envs.runtime.torch_split import StageModule
from tests.envs.runtime.recorded_streams import RecordedCuda
from tests.envs.runtime.small_models import random_stages
from tests.envs.runtime.test_pipelines import (
    M,
    assert_trains_as_plain,
    model,
    ops_of,
    runner_of,
    transformer,
    u_net,
)
from tests.envs.runtime.watched_process import OneProcess


class Dropping(nn.Module):
    """Draws random numbers between layers, and changes statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.5))
                for _ in range(4)
            )
        )
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()  # type: ignore[no-any-return]


def dropping() -> tuple[nn.Module, list[Any]]:
    return Dropping(), [(torch.randn(64, 64, dtype=torch.float64),) for _ in range(M)]


@pytest.fixture
def _on_any_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the cores of this process alone."""
    monkeypatch.setattr(DeviceHost, "pin", lambda host: None)


@pytest.mark.usefixtures("_on_any_core")
def test_streams_train_as_the_module_that_is_not_split() -> None:
    devices = OneProcess(["cuda:0", "cuda:1"], RecordedCuda())
    assert_trains_as_plain(runner_of(u_net, "zero-bubble", 2, devices, recomputed=(0, 1)), u_net)
    assert not devices.order.faults


@pytest.mark.usefixtures("_on_any_core")
def test_the_second_run_draws_the_random_numbers_of_the_first() -> None:
    found = []
    for recomputed in ((), (0, 1)):
        devices = OneProcess(["cuda:0"], RecordedCuda())
        runner = runner_of(dropping, "interleaved-1f1b:2", 1, devices, recomputed=recomputed)
        losses = torch.stack([runner.step(model(dropping)[1]) for _ in range(2)])  # type: ignore[arg-type]
        found.append({"losses": losses} | runner.gradients() | runner.state_dict())
    for name, expected in found[0].items():
        assert torch.equal(found[1][name], expected), name


@pytest.mark.parametrize("make_model", [transformer, u_net, dropping])
def test_the_ops_that_run_again_are_those_of_the_simulator(make_model: Any) -> None:
    _, _, captured = model(make_model)
    graph, stages = captured.graph, replace(random_stages(captured, 3, 1, 1), recomputed=(0, 2))
    pipelined = PipelinedProblem(Problem(graph, get_cluster("4xv100")), Pipeline("1f1b", M))
    _, _, runs = pipelined._second_runs
    place_of = stages.stage_of * N_KINDS + action_kinds(graph, stages, pipelined.pipeline)
    parts = cut(captured, np.where(stages.stage_of < 0, 3 * N_KINDS, place_of), 3 * N_KINDS + 1)
    for stage in stages.recomputed:
        _run_again(parts, stage * N_KINDS)
        calls = parts[stage * N_KINDS + 3].instructions
        ran = sorted(each.op for each in calls if isinstance(each, Call) and each.op >= 0)
        again = ops_of(pipelined, stages, stage * N_KINDS + RECOMPUTE)
        assert ran == runs.first[again].tolist() != []


def tensors_in(values: Any) -> Iterator[Tensor]:
    return (each for each in tree_leaves(values) if isinstance(each, Tensor))


class NoTransport:
    """Stands in for the transport of the only device."""

    def begin_step(self) -> None:
        pass


def test_bytes_between_the_instructions_of_a_device_fall_as_simulated() -> None:
    module, batches, captured = model(u_net)
    pipelined = PipelinedProblem(Problem(captured.graph, get_cluster("4xv100")), Pipeline("gpipe", M))
    simulated, measured = list[float](), list[int]()
    for recomputed in ((), (0,)):
        stages = pipelined.chain.stages(np.array([0]), np.array([0]), recomputed=recomputed)
        simulated.append(pipelined.simulate(stages).peak_bytes[0])
        (program,), _ = cut_pipeline(captured, stages, pipelined.pipeline, 1)
        device = Interpreter(
            program,
            state=state_of(captured, copy.deepcopy(module)),
            constants=constants_of(captured),
            inputs=dict(enumerate(each for batch in batches for each in captured.step.flat_inputs(batch))),
            transport=NoTransport(),  # type: ignore[arg-type]
            optimizer=None,
        )
        values, peak = device.begin(), 0
        for run in device.runnables:
            with torch.no_grad():
                run(values)
            held = {
                each.data_ptr(): each.nbytes() for each in map(Tensor.untyped_storage, tensors_in(values))
            }
            peak = max(peak, sum(held.values()))
        measured.append(peak)
    assert measured[1] < 0.6 * measured[0]
    assert measured[0] - measured[1] == pytest.approx(simulated[0] - simulated[1], rel=0.15)


class HeldBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that ops made and that are still held."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **kwargs or {})
        for each in tensors_in(made):
            storage = each.untyped_storage()
            self._storages[storage._cdata] = weakref.ref(storage)
        return made

    @property
    def count(self) -> int:
        """Bytes."""
        return sum(storage.nbytes() for each in self._storages.values() if (storage := each()) is not None)


class OneResult(nn.Sequential):
    """Returns a tuple, as parts of stages do."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (super().forward(x),)


def test_a_stage_of_torch_frees_its_activations_and_leaves_buffers_and_random_numbers_alone() -> None:
    torch.manual_seed(0)
    module, found, held = Dropping().layers, [], []
    for recomputes in (False, True):
        part = OneResult(copy.deepcopy(module))
        changed = [path for path, _ in part.named_buffers()]
        stage = StageModule(part, ["x"], ["y"], ["x"], ["y"], recomputes=recomputes, changed=changed)
        torch.manual_seed(1)
        x = [torch.randn(64, 64, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        with HeldBytes() as made:
            outputs = [stage(each)[0] for each in x]
            held.append(made.count)
        torch.stack(outputs).square().sum().backward()
        gradients = [each.grad for each in (*x, *part.parameters())]
        found.append([*outputs, *gradients, *part.buffers(), torch.rand(1)])
    assert held[1] < 0.5 * held[0]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_module_that_does_not_fit_otherwise_is_placed_with_recomputation_and_runs() -> None:
    torch.manual_seed(0)
    module, batch = Dropping(), torch.randn(4 * 4096, 64, dtype=torch.float64)
    settings: dict[str, Any] = {"split": 4, "budget": 60, "optimizer": "sgd"}
    memory = place(module, batch, cluster="4xv100:2", pipeline="gpipe", **settings).step_time.peak_bytes.max()
    cluster = get_cluster("4xv100:2")
    devices = tuple(replace(each, memory_bytes=0.5 * memory) for each in cluster.devices)
    small = replace(cluster, devices=devices, name="small")
    without = Pipeline("gpipe", 4, may_recompute=False)
    assert not place(module, batch, cluster=small, pipeline=without, **settings).step_time.fits
    plan = place(module, batch, cluster=small, pipeline="gpipe", **settings)
    assert plan.step_time.fits
    assert "recomputed" in plan.explain()
    stages: Stages = plan.stages
    assert stages.recomputed
    assert plan.pipeline_stages(module).cuts.stages.recomputed == stages.recomputed
    with plan.compile(module, devices=["cpu", "cpu"], lr=0.1) as runner:
        assert float(runner.step(batch)) > 0  # type: ignore[arg-type]
