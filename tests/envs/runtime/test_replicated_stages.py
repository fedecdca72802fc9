"""Replicas of a pipeline and tied weights on two stages, in processes, train as the unsplit module does."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import start_processes

from envs.cluster.presets import get_cluster
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from envs.runtime import torch_stages
from envs.runtime.torch_stages import TorchStages
from graphs.capture.capture import capture_step
from graphs.capture.captured_step import CapturedStep
from graphs.capture.structures import split_batch
from tests.faults.processes import PATIENCE_S
from tests.fork_server import context

M, N_STEPS = 8, 3
WORDS = torch.randint(11, (2 * M, 5), generator=torch.Generator().manual_seed(0))
Groups = tuple[tuple[int, ...], ...]


class Tied(nn.Module):
    """Has an embedding that is tied to the head, and norms whose statistics change."""

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
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 11, "n_positions": 8, "use_cache": False}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates)).double()


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


def train_in_ranks(folder: Path) -> None:
    """Trains models in four forked ranks, or in the first two of them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sequences = WORDS.tile(1, 2)[:, :6]
    cases = [
        Case(Tied(), (WORDS,), "interleaved-1f1b:2", ((2, 0), (1, 3))),
        Case(Tied(), (WORDS,), "1f1b", ((0, 1), (2, 3)), shares=(5, 3)),
        Case(gpt2(), {"input_ids": sequences, "labels": sequences}),
    ]
    start_processes(train, ([(each, each.stages) for each in cases], folder), nprocs=4, start_method="fork")


def train(rank: int, cases: list[tuple[Case, TorchStages]], folder: Path) -> None:
    for number, (case, stages) in enumerate(cases):
        n_ranks = sum(map(len, stages.mesh))
        if rank < n_ranks:
            file = f"file://{folder / str(number)}"
            dist.init_process_group("gloo", init_method=file, rank=rank, world_size=n_ranks)
            compare(rank, case, stages)
            dist.destroy_process_group()


def compare(rank: int, case: Case, stages: TorchStages) -> None:
    """Compares losses, gradients and the state after each update; tied copies are equal to the bit."""
    plain = copy.deepcopy(case.module)
    if rank not in stages.mesh[0]:  # gets the values of the first replica
        case.module.load_state_dict({key: 2 * each for key, each in plain.state_dict().items()})
    expected, tied = torch.optim.Adam(plain.parameters(), lr=0.1), next(stages.module.parameters())
    stages.stages  # noqa: B018  joins the ranks
    optimizer = sharded_adam(stages) if case.shares else torch.optim.Adam(stages.parameters(), lr=0.1)
    for _ in range(N_STEPS):
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
    process = context.Process(target=train_in_ranks, args=(tmp_path,))
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
