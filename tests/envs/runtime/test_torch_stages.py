"""Stages of a plan in torch.distributed.pipelining: cuts at modules, replicas, real steps, and bad input."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint
from torch.multiprocessing import start_processes

from agent import place
from envs.cluster.presets import get_cluster
from envs.pipeline.module_cuts import _beginnings, _nearest
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import phases_of
from envs.problem import Problem
from envs.runtime import torch_stages
from envs.runtime.plain_check import cut_inputs
from envs.runtime.torch_stages import TorchStages
from graphs.capture.capture import capture_step
from graphs.capture.captured_step import CapturedStep
from graphs.capture.structures import split_batch
from tests.agent.contexts.worker_cases import free_port
from tests.examples import models
from tests.faults.processes import PATIENCE_S
from tests.fork_server import context
from tests.graphs.capture.capture_cases import Calls
from tests.test_readme import blocks


def test_cuts_move_to_the_nearest_modules_and_the_step_is_that_of_the_new_stages() -> None:
    module, settings = Tied(), {"cluster": "4xv100:3", "pipeline": "1f1b", "split": 4, "optimizer": None}
    plan = place(module, (WORDS,), budget=60, **settings)
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
    two = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    settings = {"cluster": "4xv100:2", "placer": "equal-time", "optimizer": None}
    of_module = place(module, x, pipeline="gpipe", **settings)
    few = place(two, x, pipeline="1f1b", split=1, **settings)
    plan = place(two, x, pipeline="1f1b", split=2, **settings)
    of_graph = place(plan.graph, pipeline="1f1b", **settings)
    stages, pipelined = plan.pipeline_stages(two), plan.objective.pipelined
    swapped = replace(plan.stages, stage_of=np.where(plan.stages.stage_of < 0, -1, 1 - plan.stages.stage_of))
    zero_bubble = PipelinedProblem(plan.objective.problem, Pipeline("zero-bubble", 2))
    recomputed = replace(plan.stages, recomputed=(1,))
    on_meta = copy.deepcopy(two).to("meta")
    refused: list[tuple[Callable[[], object], str]] = [
        (
            lambda: of_module.pipeline_stages(module),
            "has 0 modules that a stage can begin with, and the plan has 2 stages",
        ),
        (lambda: few.pipeline_stages(two), "at least as many microbatches as stages, not 1 for 2; use gpipe"),
        (
            lambda: TorchStages(pipelined, swapped, plan.captured, two),
            "take ops out of program order, in which modules are split; place with",
        ),
        (
            lambda: TorchStages(zero_bubble, recomputed, plan.captured, two),
            "^torch runs a stage again for each of its parameters with",
        ),
        (lambda: stages.step(x), "the plan has 2 devices, and 0 processes are there; start one each"),
        (lambda: stages.step(torch.zeros(3, 4)), r"input 0 is torch.float32 \[3, 4\]; 2 microbatches have"),
        (lambda: stages.step(torch.zeros(8, 4)), r"input 0 is torch\.float32"),
        (lambda: plan.pipeline_stages(module), r"the module has no '0\.weight', which the captured"),
        (lambda: plan.pipeline_stages(on_meta), "is on the meta device and has no values"),
        (lambda: of_graph.pipeline_stages(two), "only a graph was placed; place the module"),
    ]
    for refuse, message in refused:
        with pytest.raises(ValueError, match=message):
            refuse()


M, N_STEPS = 8, 3
WORDS = torch.randint(11, (2 * M, 5), generator=torch.Generator().manual_seed(0))
Groups = tuple[tuple[int, ...], ...]


class Tied(nn.Module):
    """Has an embedding that every layer reads and the head is tied to, and norms whose statistics change."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5), nn.Tanh()) for _ in range(4)
        )
        self.head = nn.Linear(8, 11)
        self.head.weight = self.words.weight
        self.double()

    def forward(self, words: Tensor) -> Tensor:
        x = embedded = self.words(words)
        for layer in self.layers:
            x = layer(x + embedded)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def pipelined_by(captured: CapturedStep, pipeline: Pipeline) -> PipelinedProblem:
    return PipelineObjective(Problem(captured.graph, get_cluster("4xv100")), pipeline).pipelined


@dataclass(frozen=True)
class Case:
    module: nn.Module
    batch: Any
    schedule: str = "1f1b"
    groups: Groups = ()
    shares: tuple[int, ...] = ()
    """Microbatches of each replica, which also shards the optimizer; empty = equally many."""

    @property
    def stages(self) -> TorchStages:
        """Makes equal stages on two devices of a replica."""
        devices = self.groups[0] if self.groups else (0, 1)
        pipeline = Pipeline(self.schedule, M, replicas=max(len(self.groups), 1))
        captured = capture_step(self.module, split_batch(self.batch, M)[0], optimizer=None)
        pipelined = pipelined_by(captured, pipeline)
        n_stages = 2 * pipeline.stages_per_device
        first = np.arange(n_stages) * pipelined.chain.n_pieces // n_stages
        stages = pipelined.chain.stages(first, np.resize(devices, n_stages))
        stages = replace(stages, groups=self.groups)
        with (
            patch.object(torch_stages, "shares_of", lambda *_: self.shares) if self.shares else nullcontext()
        ):
            return TorchStages(pipelined, stages, captured, self.module)

    def plain_step(self, module: nn.Module, share: int) -> Tensor:
        """Computes the gradients of all microbatches, and leaves the buffers of the first replica's share."""
        losses = []
        for number, inputs in enumerate(split_batch(self.batch, M)):
            made = module(**inputs).loss if isinstance(inputs, dict) else module(*inputs)
            (made / M).backward()
            losses.append(made.detach())
            if number == share - 1:
                buffers = {path: each.clone() for path, each in module.named_buffers()}
        module.load_state_dict(buffers, strict=False)
        return torch.stack(losses)


def train_in_ranks(folder: Path, port: int) -> None:
    """Trains models in four forked ranks, or in the first two of them, which then run the page's snippet."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = [
        Case(Tied(), (WORDS,), "interleaved-1f1b:2", ((2, 0), (1, 3))),
        Case(Tied(), (WORDS,), "1f1b", ((0, 1), (2, 3)), shares=(5, 3)),
        Case(models.make_gpt2()[0].double(), {"input_ids": WORDS, "labels": WORDS}),
        Case(Tied(), (WORDS,), "zero-bubble"),
    ]
    staged = [(each, each.stages) for each in cases]
    start_processes(train, (staged, folder, port), nprocs=4, start_method="fork")


def train(rank: int, cases: list[tuple[Case, TorchStages]], folder: Path, port: int) -> None:
    for number, (case, stages) in enumerate(cases):
        n_ranks = sum(map(len, stages.mesh))
        if rank < n_ranks:
            file = f"file://{folder / str(number)}"
            dist.init_process_group("gloo", init_method=file, rank=rank, world_size=n_ranks)
            compare(rank, case, stages, folder / f"rank{rank}.csv")
            dist.destroy_process_group()
    if rank < 2:
        run_snippet(rank, port)


def run_snippet(rank: int, port: int) -> None:
    """Runs the snippet of the page as torchrun does on two devices."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    page = (Path(__file__).parents[3] / "docs/how-to/pipelines.md").read_text(encoding="utf-8")
    (snippet,) = (each for each in blocks(page, "python") if "pipeline_stages" in each)
    assert sum(map(bool, snippet.splitlines())) <= 8
    names: dict[str, Any] = {}
    exec(snippet.replace("split=8", 'split=8, cluster="4xv100:2"'), names)
    assert (names["losses"] is None) == (rank == 0)
    dist.destroy_process_group()


def compare(rank: int, case: Case, stages: TorchStages, table: Path) -> None:
    """Compares losses, gradients and the state after each update; tied copies are equal to the bit.

    The last step takes its actions from the exported table, where torch has one for the schedule.
    """
    plain = copy.deepcopy(case.module)
    if rank not in stages.mesh[0]:  # gets the values of the first replica
        case.module.load_state_dict({key: 2 * each for key, each in plain.state_dict().items()})
    expected, tied = torch.optim.Adam(plain.parameters(), lr=0.1), next(stages.module.parameters())
    stages.stages  # noqa: B018  joins the ranks
    optimizer = sharded_adam(stages) if case.shares else torch.optim.Adam(stages.parameters(), lr=0.1)
    for step in range(N_STEPS):
        if step == N_STEPS - 1 and case.schedule != "1f1b":
            table.write_text(stages.csv)
            stages.schedule._load_csv(str(table))
        expected.zero_grad()
        losses, found = case.plain_step(plain, stages.shares[0]), stages.step(case.batch)
        assert (found is None) == all(rank != ranks[-1] for ranks in stages.mesh)
        if found is not None:
            torch.testing.assert_close(found, losses, rtol=1e-9, atol=1e-12)
        trained = set(map(id, stages.parameters()))
        for one, other in zip(stages.module.parameters(), plain.parameters(), strict=True):
            if id(one) in trained:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
        expected.step(), optimizer.step()
        whole, state = plain.state_dict(), stages.state_dict()
        same = {key: whole[key] for key in state}
        torch.testing.assert_close(state, same, rtol=1e-7, atol=1e-9)
        assert id(tied) in trained
        copies = [torch.empty_like(tied) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, tied.detach())
        assert all(torch.equal(each, tied) for each in copies)


def sharded_adam(stages: TorchStages) -> torch.optim.Optimizer:
    with warnings.catch_warnings(action="ignore"):  # of torch's own import
        from torch.distributed.optim import ZeroRedundancyOptimizer

    group = stages.replica_group
    return ZeroRedundancyOptimizer(stages.parameters(), torch.optim.Adam, process_group=group, lr=0.1)


def test_replicas_and_tied_stages_train_as_the_unsplit_module(tmp_path: Path) -> None:
    process = context.Process(target=train_in_ranks, args=(tmp_path, free_port()))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def test_replicas_that_cannot_run_are_one_line() -> None:
    case = Case(Tied(), (WORDS,), groups=((0, 2), (3, 1)))
    stages = case.stages
    assert stages.mesh == ((0, 2), (3, 1))
    assert stages.csv.count("F") == M
    with pytest.raises(ValueError, match="the plan has 4 devices, and 0 processes are there; start one each"):
        stages.step((WORDS,))
    for n_replicas, count, reason in (
        (2, 7, "7 microbatches cannot be divided equally among 2 replicas; give a multiple of 2, such as 8"),
        (4, 8, "devices for 2 replicas, and its pipeline has 4; place the module again"),
        (2, 2, "at least as many microbatches as stages, not 1 for 2; use gpipe"),
    ):
        pipelined = pipelined_by(stages.captured, Pipeline("1f1b", count, replicas=n_replicas))
        with pytest.raises(ValueError, match=reason):
            TorchStages(pipelined, stages.cuts.stages, stages.captured, case.module)
