"""Stages of a plan in torch.distributed.pipelining: cuts at modules, real steps, and bad input."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import SplitPoint

from agent import Pipeline, place
from envs.pipeline.module_cuts import _beginnings, _nearest
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import phases_of
from envs.runtime.microbatches import cut_inputs
from envs.runtime.torch_stages import TorchStages
from graphs.capture.capture import capture_step
from tests.agent.contexts.worker_cases import free_port
from tests.envs.runtime.torch_ranks import compare_in_ranks, make
from tests.faults.processes import PATIENCE_S
from tests.fork_server import context
from tests.graphs.capture.capture_cases import Calls


def test_processes_of_a_pipeline_equal_plain_steps(tmp_path: Path) -> None:
    process = context.Process(target=compare_in_ranks, args=(tmp_path, free_port()))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def test_cuts_move_to_the_nearest_modules_and_the_step_is_that_of_the_new_stages() -> None:
    module, batch = make()
    plan = place(module, batch, cluster="4xv100:3", pipeline="1f1b", split=4, budget=60, optimizer=None)
    stages = plan.pipeline_stages(module)
    cuts = stages.cuts
    assert stages.split_spec == dict.fromkeys(cuts.modules, SplitPoint.BEGINNING)
    assert cuts.step_time.total_s == plan.objective.pipelined.simulate(cuts.stages).total_s
    assert cuts.planned_s == plan.step_time.total_s
    assert cuts.n_moved == (cuts.stages.stage_of != plan.stages.stage_of).sum()
    for stage, path in enumerate(cuts.modules, start=1):
        first = int(np.argmax(cuts.stages.stage_of == stage))
        assert f"{plan.graph.modules[first]}.".startswith(f"{path}.")


def test_a_plan_of_modules_moves_nothing() -> None:
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    settings = {"cluster": "4xv100:2", "placer": "equal-time", "granularity": "module", "optimizer": None}
    stages = place(module, torch.zeros(4, 4), pipeline="1f1b", split=4, **settings).pipeline_stages(module)
    assert stages.cuts.n_moved == 0
    assert stages.split_spec == {"2": SplitPoint.BEGINNING}
    assert repr(stages).startswith("split before 2: no op moves to begin stages with modules; a step takes")
    assert stages.csv == "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"


@pytest.mark.parametrize("seed", range(20))
def test_nearest_cuts_are_the_least_of_all_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    allowed = np.sort(rng.choice(40, 8, replace=False))
    wanted = np.sort(rng.choice(40, 3, replace=False))
    chosen = _nearest(wanted, allowed)
    assert chosen == sorted(set(chosen))
    least = min(np.abs(np.array(each) - wanted).sum() for each in combinations(allowed.tolist(), 3))
    assert np.abs(np.array(chosen) - wanted).sum() == least


class Summed(nn.Sequential):
    """Its loss is a sum over the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().sum()


def test_a_loss_that_is_no_mean_is_said_in_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    for module, n_lines in ((Summed(nn.Linear(4, 4)), 1), (nn.Linear(4, 4), 0)):
        plan = place(module, torch.ones(8, 4), cluster="4xv100:1", pipeline="gpipe", split=4, optimizer=None)
        stages = plan.pipeline_stages(module)
        stages.step(torch.ones(8, 4)), stages.step(torch.ones(8, 4))
        assert capsys.readouterr().err.count("of the whole batch at once: it is a sum") == n_lines
    dist.destroy_process_group()


def test_a_whole_batch_is_cut_into_microbatches() -> None:
    step, x = (
        capture_step(nn.Bilinear(4, 4, 1), (torch.zeros(2, 4), torch.zeros(2, 4))).step,
        torch.randn(8, 4),
    )
    cut, same = cut_inputs(step, (x, x[:2]), 4, 0)  # one of the captured shape is for all
    assert torch.equal(torch.stack(cut), x.view(4, 2, 4))
    assert torch.equal(torch.stack(same), x[:2].expand(4, 2, 4))
    wide = x.view(2, 16)
    for cut in cut_inputs(step, (wide, wide), 4, 1):
        assert torch.equal(torch.cat(cut, 1), wide)
    with pytest.raises(ValueError, match="inputs of another structure"):
        cut_inputs(step, (x,), 4, 0)


class TwiceWhole(nn.Module):
    """Calls a block without ops of its own twice, then a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.block(self.first(x)))).mean()


def test_a_block_that_is_called_twice_begins_no_stage() -> None:
    captured = capture_step(TwiceWhole(), torch.zeros(4, 4))
    forward = np.flatnonzero(phases_of(captured.graph) == 0)
    found = _beginnings(captured.graph, forward, lambda _: True)
    assert list(found.values()) == ["last"]


def test_what_torch_cannot_run_is_one_line() -> None:
    # No stage can begin with a layer that is called twice.
    module, x = Calls(lambda layer, x: layer(layer(x).relu()).relu().mean()), torch.zeros(4, 4)
    settings = {"cluster": "4xv100:2", "placer": "equal-time", "optimizer": None}
    plan = place(module, x, pipeline="gpipe", **settings)
    with pytest.raises(
        ValueError, match="has 0 modules that a stage can begin with, and the plan has 2 stages"
    ):
        plan.pipeline_stages(module)
    two = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    few = place(two, x, pipeline="1f1b", split=1, **settings)
    with pytest.raises(ValueError, match="at least as many microbatches as stages, not 1 for 2; use gpipe"):
        few.pipeline_stages(two)
    plan = place(two, x, pipeline="1f1b", split=2, **settings)
    swapped = np.where(plan.stages.stage_of < 0, -1, 1 - plan.stages.stage_of)
    with pytest.raises(
        ValueError, match="take ops out of program order, in which modules are split; place with"
    ):
        TorchStages(plan.objective.pipelined, replace(plan.stages, stage_of=swapped), plan.captured, two)
    again = PipelinedProblem(plan.objective.problem, Pipeline("zero-bubble", 2))
    with pytest.raises(ValueError, match=r"^torch runs a stage again for each of its parameters with"):
        TorchStages(again, replace(plan.stages, recomputed=(1,)), plan.captured, two)
    stages = plan.pipeline_stages(two)
    with pytest.raises(ValueError, match="the plan has 2 devices, and 0 processes are there; start one each"):
        stages.step(x)
    with pytest.raises(ValueError, match=r"input 0 is torch.float32 \[3, 4\]; 2 microbatches have"):
        stages.step(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"input 0 is torch\.float32"):
        stages.step(torch.zeros(8, 4))
    with pytest.raises(
        ValueError, match="the module has no '0.weight', which the captured".replace(".", r"\.")
    ):
        plan.pipeline_stages(module)
    with pytest.raises(ValueError, match="is on the meta device and has no values"):
        plan.pipeline_stages(two.to("meta"))
    with pytest.raises(ValueError, match="only a graph was placed; place the module"):
        place(plan.graph, pipeline="1f1b", **settings).pipeline_stages(two)
