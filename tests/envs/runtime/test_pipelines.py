"""A pipeline that runs equals the module that is not split and adds up the gradients of its microbatches."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from envs.cluster.presets import get_cluster
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.device_program import ExecutionError
from envs.runtime.pipeline_runner import PipelineRunner
from envs.runtime.plain_check import PlainCheck
from envs.runtime.torch_stages import TorchStages
from graphs.capture.capture import capture_step
from graphs.capture.captured_step import CapturedStep
from tests.envs.runtime.small_models import WORDS, Net, assert_trains_as_plain, make, words
from tests.envs.runtime.test_user_ops import Net as Scaling

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


def scaling() -> tuple[nn.Module, list[Any]]:
    """Calls an operator of the user's, and has a parameter that nothing reads."""
    module = Scaling()
    module.unused = nn.Linear(2, 2)
    return module.double(), [(torch.randn(2, 6, dtype=torch.float64),) for _ in range(M)]


class Centred(nn.Module):
    """Assigns to a buffer that its backward pass reads, and averages over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=None)
        self.register_buffer("centre", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.norm(self.layer(x)).tanh() * self.centre
        self.centre = self.centre * 0.5 + y.detach().mean(0) * 0.5
        return y


class Last(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()


def centred() -> tuple[nn.Module, list[Any]]:
    module = nn.Sequential(*(Centred() for _ in range(4)), Last(6, 2)).double()
    return module, [(torch.randn(8, 6, dtype=torch.float64),) for _ in range(M)]


def hooked() -> tuple[nn.Module, list[Any]]:
    module, batches = centred()
    module[0].layer.weight.register_hook(torch.zeros_like)  # type: ignore[union-attr]
    return module, batches


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
    recomputed: tuple[int, ...] = (),
    **options: Any,
) -> PipelineRunner:
    """Cuts a model into equal stages on devices, the last one first."""
    module, _, captured = model(make_model)
    pipelined = PipelinedProblem(Problem(captured.graph, get_cluster("4xv100")), Pipeline(schedule, M))
    n_stages = n_ranks * pipelined.pipeline.stages_per_device
    first = np.arange(n_stages) * pipelined.chain.n_pieces // n_stages
    stages = pipelined.chain.stages(first, -np.arange(n_stages) % n_ranks, recomputed=recomputed)
    split = TorchStages(pipelined, stages, captured, module)
    return PipelineRunner(split, devices, options={"lr": 0.1} | options)


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
        (bag, "1f1b", 2, ()),
        (scaling, "gpipe", 2, ()),
        (centred, "1f1b", 2, ()),
    ],
)
def test_processes_train_as_the_module_that_is_not_split(
    make_model: Any, schedule: str, n_ranks: int, recomputed: tuple[int, ...], processes: DeviceProcesses
) -> None:
    before = {key: value.clone() for key, value in model(make_model)[0].state_dict().items()}
    runner = runner_of(make_model, schedule, n_ranks, processes, recomputed)
    losses = assert_trains_as_plain(runner, *model(make_model)[:2], N_STEPS, lr=0.1)
    for key, value in model(make_model)[0].state_dict().items():
        assert torch.equal(value, before[key]), key
    runner.load_state_dict(before)
    assert float(runner.step(model(make_model)[1])) == pytest.approx(losses[0], rel=1e-9)  # type: ignore[arg-type]


def test_hooks_of_gradients_are_refused(processes: DeviceProcesses) -> None:
    with pytest.raises(PipelineError, match=r"'0\.layer\.weight' has a hook"):
        runner_of(hooked, "gpipe", 2, processes)


def test_a_pipeline_whose_random_numbers_are_its_own_says_that_it_is_not_compared(
    processes: DeviceProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = runner_of(noisy, "gpipe", 2, processes)
    runner._stops, runner._plain = True, PlainCheck(runner.captured, noisy()[0], None, 0)
    runner.step(noisy()[1])
    assert "steps are not compared: the plain module cannot draw" in capsys.readouterr().err


class Noisy(nn.Module):
    """Draws random numbers in an op without inputs, and in dropout before statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)) for _ in range(4))
        )
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + torch.rand(6, dtype=x.dtype)).square().mean()  # type: ignore[no-any-return]


def noisy() -> tuple[nn.Module, list[Any]]:
    return Noisy(), [(torch.randn(8, 6, dtype=torch.float64),) for _ in range(M)]


def test_random_numbers_are_new_in_each_step_and_those_of_the_first_run_in_a_second_one(
    processes: DeviceProcesses,
) -> None:
    found = []
    for recomputed in ((), (0, 1)):
        runner = runner_of(noisy, "interleaved-1f1b:2", 1, processes, recomputed, lr=0.0)
        losses = [float(runner.step(model(noisy)[1])) for _ in range(2)]  # type: ignore[arg-type]
        assert losses[0] != losses[1]
        found.append({"losses": torch.tensor(losses)} | runner.gradients() | runner.state_dict())
    for name, expected in found[0].items():
        assert torch.equal(found[1][name], expected), name


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
        ([(words(2, 6), torch.tensor(1)), *batches[1:]], "^input 1 is torch.int64"),
        (
            (words(7, 6), words(8, 6)),
            r"^input 0 is torch.int64 \[7, 6\]; 4 microbatches have torch.int64 \[8, 6\]$",
        ),
        ((words(8, 6),), "inputs of another structure"),
    ):
        with pytest.raises(ExecutionError, match=reason):
            runner.set_inputs(given)


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


def counting() -> tuple[nn.Module, list[Any]]:
    return Counting(), [(torch.ones(2, 3),) for _ in range(M)]


def test_what_torch_cannot_run_is_refused_in_one_line(processes: DeviceProcesses) -> None:
    with pytest.raises(PipelineError, match=r"^buffer 'count' changes, and stages 0 and 1 use it"):
        runner_of(counting, "1f1b", 2, processes)
    with pytest.raises(PipelineError, match=r"^torch runs a stage again for each of its parameters with"):
        runner_of(transformer, "zero-bubble", 2, processes, recomputed=(0,))
    mixed = DeviceProcesses(1)
    mixed.n_devices, mixed.names = 2, ["cpu", "cuda:0"]
    with pytest.raises(PipelineError, match=r"^torch runs a pipeline on CPUs or on GPUs, not on both"):
        runner_of(transformer, "1f1b", 2, mixed)


def test_a_device_that_dies_is_named(processes: DeviceProcesses) -> None:
    runner = runner_of(transformer, "1f1b", 2, processes)
    runner.set_inputs(model(transformer)[1])
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    with pytest.raises(ExecutionError, match=r"^device [0-2]: worker killed by SIGKILL$"):
        runner.timed_steps(1)
