"""A pipeline that runs equals the module that is not split and adds up the gradients of its microbatches."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from envs.cluster.presets import get_cluster
from envs.pipeline.arrays import N_KINDS
from envs.pipeline.chain import chain_of
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, device_actions
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.problem import Problem
from envs.runtime.backends.device_process import DeviceHost
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.cut_pipeline import action_kinds, cut_pipeline
from envs.runtime.device_program import ExecutionError, Send
from envs.runtime.pipeline_runner import PipelineRunner
from graphs.capture.capture import capture_step
from graphs.capture.captured_step import CapturedStep
from tests.envs.runtime.recorded_streams import RecordedCuda
from tests.envs.runtime.small_models import WORDS, make, plain_steps, random_stages, words
from tests.envs.runtime.torchrun_models import Net
from tests.envs.runtime.watched_process import OneProcess

M, N_STEPS = 4, 2


class UNet(nn.Module):
    """Two levels down and up, with skips, and buffers that change with every microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3 if not at else 4, 4, 3, padding=1) for at in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=1) for _ in range(2))
        self.double()

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        skips = []
        for convolution, norm in zip(self.down, self.norms, strict=True):
            skips.append(norm(convolution(image)).relu())
            image = nn.functional.avg_pool2d(skips[-1], 2)
        image = self.middle(image).relu()
        for convolution in self.up:
            image = nn.functional.interpolate(image, scale_factor=2)
            image = convolution(torch.cat([image, skips.pop()], 1)).relu()
        return nn.functional.mse_loss(image, target)


def u_net() -> tuple[nn.Module, list[Any]]:
    def image(channels: int) -> Tensor:
        return torch.randn(2, channels, 8, 8, dtype=torch.float64)

    return UNet(), [(image(3), image(4)) for _ in range(M)]


def transformer() -> tuple[nn.Module, list[Any]]:
    module, _ = make("gpt")
    return module, [(words(2, 6), words(2, 6)) for _ in range(M)]


def gpt2() -> tuple[nn.Module, list[Any]]:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=16,
        n_head=2,
        vocab_size=WORDS,
        n_positions=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    batches = [words(2, 6) for _ in range(M)]
    return transformers.GPT2LMHeadModel(config).double(), [
        {"input_ids": each, "labels": each} for each in batches
    ]


def bag() -> tuple[nn.Module, list[Any]]:
    return Net(), [(torch.randint(7, (2, 3)),) for _ in range(M)]


@cache
def model(make_model: Callable[[], tuple[nn.Module, list[Any]]]) -> tuple[nn.Module, list[Any], CapturedStep]:
    torch.manual_seed(0)
    module, batches = make_model()
    return module, batches, capture_step(module, batches[0], optimizer="sgd")


def runner_of(
    make_model: Any,
    schedule: str,
    n_ranks: int,
    devices: Any,
    seed: int = 0,
    recomputed: tuple[int, ...] = (),
    actions: tuple[str, ...] = (),
) -> PipelineRunner:
    module, _, captured = model(make_model)
    pipeline = Pipeline(schedule, M)
    stages = random_stages(captured, n_ranks, pipeline.stages_per_device, seed)
    stages = replace(stages, recomputed=recomputed, actions=actions)
    return PipelineRunner(captured, stages, pipeline, module, devices, options={"lr": 0.1})


def equal_stages(captured: CapturedStep, n_stages: int) -> Stages:
    chain = chain_of(Problem(captured.graph, get_cluster("4xv100")))
    first = np.arange(n_stages) * chain.n_pieces // n_stages
    return chain.stages(first, np.arange(n_stages))


def assert_trains_as_plain(runner: PipelineRunner, make_model: Any, inputs: Any = None) -> None:
    module, batches, _ = model(make_model)
    losses, gradients, state = plain_steps(module, batches, N_STEPS, "sgd", lr=0.1)
    found = [float(runner.step(inputs or batches)) for _ in range(N_STEPS)]  # type: ignore[arg-type]
    assert found == pytest.approx(losses, rel=1e-9)
    found_gradients, found_state = runner.gradients(), runner.state_dict()
    assert found_gradients.keys() == gradients.keys()
    assert found_state.keys() == state.keys()
    for path, gradient in gradients.items():
        torch.testing.assert_close(found_gradients[path], gradient.to_dense(), rtol=1e-9, atol=1e-9)
    for key, value in state.items():
        torch.testing.assert_close(found_state[key], value, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def processes() -> Iterator[DeviceProcesses]:
    with DeviceProcesses(3, timeout_s=60) as found:
        yield found


@pytest.mark.parametrize(
    ("make_model", "schedule", "n_ranks", "recomputed"),
    [
        (u_net, "gpipe", 3, ()),
        (transformer, "1f1b", 3, (0, 2)),
        (gpt2, "interleaved-1f1b:2", 2, (1, 2)),
        (u_net, "zero-bubble", 2, ()),
    ],
)
def test_processes_train_as_the_module_that_is_not_split(
    make_model: Any, schedule: str, n_ranks: int, recomputed: tuple[int, ...], processes: DeviceProcesses
) -> None:
    runner = runner_of(make_model, schedule, n_ranks, processes, recomputed=recomputed)
    assert_trains_as_plain(runner, make_model)
    sent = [each.transfer for each in runner.programs[0].instructions if isinstance(each, Send)]
    assert len({each.target for each in sent}) == n_ranks - 1  # stages are skipped


@pytest.fixture
def _on_any_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the cores of this process alone."""
    monkeypatch.setattr(DeviceHost, "pin", lambda host: None)


@pytest.mark.usefixtures("_on_any_core")
@pytest.mark.parametrize(("schedule", "n_ranks"), [("1f1b", 3), ("interleaved-1f1b:2", 2)])
def test_streams_train_so_with_sparse_gradients_and_parameters_elsewhere(schedule: str, n_ranks: int) -> None:
    devices = OneProcess(["cuda:0", "cuda:1", "cuda:2"], RecordedCuda())
    runner = runner_of(bag, schedule, n_ranks, devices, 5)
    assert any(each.spec.sparse for program in runner.programs for each in program.transfers)
    assert_trains_as_plain(runner, bag)
    assert not devices.order.faults


@pytest.mark.usefixtures("_on_any_core")
def test_devices_of_both_kinds_wait_for_each_other() -> None:
    devices = OneProcess(["cuda:0", "cpu", "cuda:1"], RecordedCuda("query"))
    assert_trains_as_plain(runner_of(u_net, "1f1b", 3, devices), u_net)
    assert not devices.order.faults


@pytest.mark.usefixtures("_on_any_core")
def test_one_microbatch_is_the_plain_step() -> None:
    module, batches, captured = model(bag)
    devices = OneProcess(["cuda:0", "cuda:1"], RecordedCuda())
    runner = PipelineRunner(
        captured, random_stages(captured, 2, 1, 0), Pipeline("1f1b", 1), module, devices, options={"lr": 0.1}
    )
    losses, gradients, _ = plain_steps(module, batches[0], N_STEPS, "sgd", lr=0.1)
    assert [float(runner.step(*batches[0])) for _ in range(N_STEPS)] == pytest.approx(losses, rel=1e-9)  # type: ignore[arg-type]
    for path, gradient in runner.gradients().items():
        torch.testing.assert_close(gradient, gradients[path].to_dense(), rtol=1e-9, atol=1e-9)


def test_a_parameter_is_sent_once_and_activations_once_for_each_microbatch() -> None:
    _, _, captured = model(transformer)
    programs, _ = cut_pipeline(captured, equal_stages(captured, 3), Pipeline("1f1b", M), 3)
    (tied,) = {value.shape for value in captured.step.state.values() if value.shape[:1] == (WORDS,)}
    sent = Counter(
        (each.transfer.target, each.transfer.spec.shape == tied)
        for each in programs[0].instructions
        if isinstance(each, Send)
    )
    assert sent[2, True] == 1
    assert sent[1, False] > 0
    assert sent[1, False] % M == 0


def ops_of(pipelined: PipelinedProblem, stages: Stages, action: int) -> list[int]:
    """The ops that the simulator has in an action."""
    _, list_of = pipelined._run(stages, np.zeros(0))
    ops: list[int] = np.flatnonzero(list_of == pipelined._agenda(stages).list_of[action]).tolist()
    return ops


def test_an_order_of_its_own_trains_as_plain(processes: DeviceProcesses) -> None:
    actions = ("FFFFBBBB", "FFIWFIIFIWWW", "FFIFIIFIWWWW")
    runner = runner_of(transformer, "searched", 3, processes, recomputed=(1,), actions=actions)
    assert_trains_as_plain(runner, transformer)


@pytest.mark.parametrize("make_model", [transformer, u_net, bag])
def test_actions_have_the_ops_that_the_simulator_gives_them(make_model: Any) -> None:
    _, _, captured = model(make_model)
    mixed = ("FFFFBBBB", "FFFFIIIIWWWW", "FBFBFBFB")
    for schedule, actions in (("1f1b", ()), ("zero-bubble", ()), ("searched", mixed)):
        pipelined = PipelinedProblem(Problem(captured.graph, get_cluster("4xv100")), Pipeline(schedule, M))
        stages = replace(random_stages(captured, 3, 1, 1), actions=actions)
        kinds = action_kinds(captured.graph, stages, pipelined.pipeline)
        for stage in range(len(stages.devices)):
            for kind in (FORWARD, BACKWARD, WEIGHT):
                expected = np.flatnonzero((stages.stage_of == stage) & (kinds == kind))
                assert ops_of(pipelined, stages, stage * N_KINDS + kind) == expected.tolist()


def test_action_times_are_those_of_the_schedule(processes: DeviceProcesses) -> None:
    runner = runner_of(transformer, "1f1b", 2, processes)
    runner.set_inputs(model(transformer)[1])
    (step,) = runner.timed_steps(1, timed_ops=True)
    times = runner.action_times(step)
    expected = device_actions(runner.pipeline, 2)
    for device in range(3):
        own = [each for each in times if each.device == device]
        bounds = [second for each in own for second in (each.start_s, each.end_s)]
        assert bounds == sorted(bounds)
        rank = runner.stages.ranks.tolist().index(device) if device < 2 else None
        actions = [] if rank is None else [tuple(each) for each in expected[rank]]
        assert [each[1:4] for each in own] == [*actions, (-1, -1, M)]
    assert min(each.start_s for each in times) >= 0
    assert max(each.end_s for each in times) <= step.total_s
    end_s = {each[1:4]: each.end_s for each in times}
    for microbatch in range(M):
        assert end_s[0, 0, microbatch] < end_s[0, 1, microbatch] < end_s[1, 1, microbatch]
        assert end_s[1, 1, microbatch] < end_s[1, 0, microbatch]


def test_a_whole_batch_is_cut_into_microbatches(processes: DeviceProcesses) -> None:
    runner, batches = runner_of(u_net, "gpipe", 2, processes), model(u_net)[1]
    assert_sets(runner, tuple(torch.cat(each) for each in zip(*batches, strict=True)), batches)
    target = batches[0][1]  # of the shape of a microbatch, so all have it
    whole = torch.cat([image for image, _ in batches]), target
    assert_sets(runner, whole, [(image, target) for image, _ in batches])
    runner, batches = runner_of(gpt2, "gpipe", 2, processes), model(gpt2)[1]
    runner.batch_dim = 1
    whole_words = torch.cat([each["labels"] for each in batches], 1)
    assert_sets(runner, {"labels": whole_words, "input_ids": whole_words}, batches)


def assert_sets(runner: PipelineRunner, whole: Any, batches: list[Any]) -> None:
    set_by = []
    for given in (whole, batches):
        for place in runner._inputs:
            place.zero_()
        runner.set_inputs(given)
        set_by.append([place.clone() for place in runner._inputs])
    for found, expected in zip(*set_by, strict=True):
        assert torch.equal(found, expected)


def test_other_inputs_are_refused_in_one_line(processes: DeviceProcesses) -> None:
    runner = runner_of(transformer, "1f1b", 3, processes)
    batches = model(transformer)[1]
    for given, reason in (
        (batches[:3], r"^3 microbatches; the pipeline has 4, so give a list of 4$"),
        (
            [*batches[:3], (words(2, 5), words(2, 6))],
            r"^input 0 is torch.int64 \[2, 5\]; it was captured with",
        ),
        (
            (words(7, 6), words(8, 6)),
            r"^input 0 is torch.int64 \[7, 6\]; 4 microbatches have torch.int64 \[8, 6\]$",
        ),
        ((words(8, 6),), "inputs of another structure"),
    ):
        with pytest.raises(ExecutionError, match=reason):
            runner.set_inputs(given)


def test_stages_that_cannot_run_are_refused_in_one_line() -> None:
    _, _, captured = model(transformer)
    stages = random_stages(captured, 2, 1, 0)
    swapped = replace(stages, stage_of=np.where(stages.stage_of < 0, -1, 1 - stages.stage_of))
    for wrong, schedule, reason in (
        (
            stages,
            "interleaved-1f1b:2",
            "^schedule 'interleaved-1f1b:2' has 2 stages on each device, in rounds",
        ),
        (replace(stages, stage_of=np.minimum(stages.stage_of, 0)), "1f1b", "^stage 1 has no forward ops"),
        (replace(stages, stage_of=stages.stage_of[1:]), "1f1b", r"^the stages are of \d+ ops; the step has"),
        (
            replace(stages, devices=np.array([0, 4])),
            "1f1b",
            "^the stages use device 4, but there are 3 devices",
        ),
        (swapped, "1f1b", "^the schedule cannot run these stages: device . and another wait for each other"),
    ):
        with pytest.raises(PipelineError, match=reason):
            cut_pipeline(captured, wrong, Pipeline(schedule, M), 3)


class Counting(nn.Module):
    """Reads a buffer first, and changes it last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("count", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.first(x * self.count))
        self.count.copy_(y.mean(0).detach())
        return y.sum()


def test_a_buffer_that_a_later_stage_changes_is_refused() -> None:
    captured = capture_step(Counting(), (torch.ones(2, 3),), optimizer="sgd")
    stages = equal_stages(captured, 2)
    with pytest.raises(ExecutionError, match=r"^buffer 'count' is read before the stage that"):
        cut_pipeline(captured, stages, Pipeline("1f1b", M), 2)


def test_a_device_that_dies_is_named(processes: DeviceProcesses) -> None:
    runner = runner_of(transformer, "1f1b", 2, processes)
    runner.set_inputs(model(transformer)[1])
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    with pytest.raises(ExecutionError, match=r"^device [0-2]: worker killed by SIGKILL$"):
        runner.timed_steps(1)
