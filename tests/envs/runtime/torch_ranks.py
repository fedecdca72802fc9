"""Models whose pipelined steps the ranks of a process group compare with plain steps."""

from __future__ import annotations

import copy
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import start_processes

from agent import PipelinePlan, place
from graphs.capture.loss import find_loss
from graphs.capture.structures import split_batch
from tests.examples import gpt2

N_MICROBATCHES = 4
CASES: tuple[tuple[str, int, str, tuple[int, ...]], ...] = (
    ("transformer", 3, "zero-bubble", ()),
    ("transformer", 3, "searched", ()),
    ("gpt2", 2, "1f1b", (0, 1)),
)
"""Models, numbers of ranks, schedules and recomputed stages."""


class Transformer(nn.Module):
    """A plain transformer whose embedding is read by every layer and tied to the head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(8, 11)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        embedded = hidden = self.words(words)
        for layer in self.layers:
            hidden = layer(hidden + embedded)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def make(name: str) -> tuple[nn.Module, Any]:
    """Makes a model in float64, and a batch."""
    torch.manual_seed(0)
    if name == "gpt2":
        module, _ = gpt2.make()
        words = torch.randint(120, (2 * N_MICROBATCHES, 6))
        return module.double(), {"input_ids": words, "labels": words}
    words = torch.randint(11, (2 * N_MICROBATCHES, 5))
    return Transformer().double(), (words, words.flip(0))


@cache
def planned(name: str, n_devices: int, schedule: str) -> PipelinePlan:
    """Places a model as a pipeline on so many devices."""
    module, batch = make(name)
    settings: dict[str, Any] = {"placer": "equal-time", "optimizer": None, "budget": 100}
    return place(
        module, batch, cluster=f"4xv100:{n_devices}", pipeline=schedule, split=N_MICROBATCHES, **settings
    )


def compare_in_ranks(folder: Path, port: int) -> None:
    """Compares in three ranks, which are forked when all is planned."""
    torch.set_num_threads(1)
    for name, n_ranks, schedule, _ in CASES:
        planned(name, n_ranks, schedule)
    start_processes(compare, (folder, port), nprocs=3, start_method="fork")


def compare(rank: int, folder: Path, port: int) -> None:
    """Runs three ranks, then two, and compares their losses and gradients with those of plain steps."""
    for name, n_ranks, schedule, recomputed in CASES:
        if rank < n_ranks:
            file = f"file://{folder / f'{name}-{schedule}'}"
            dist.init_process_group("gloo", init_method=file, rank=rank, world_size=n_ranks)
            _compare(name, n_ranks, schedule, recomputed, folder)
            dist.destroy_process_group()
    if rank < 2:
        run_snippet(rank, port)


def run_snippet(rank: int, port: int) -> None:
    """Runs the snippet of the README as torchrun does on two devices."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    readme = (Path(__file__).parents[3] / "envs" / "README.md").read_text(encoding="utf-8")
    (snippet,) = (
        each for each in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "pipeline_stages" in each
    )
    assert sum(map(bool, snippet.splitlines())) <= 8
    names: dict[str, Any] = {}
    exec(snippet.replace("split=8", 'split=8, cluster="4xv100:2"'), names)
    assert (names["losses"] is None) == (rank == 0)
    dist.destroy_process_group()


def _compare(name: str, n_ranks: int, schedule: str, recomputed: tuple[int, ...], folder: Path) -> None:
    module, batch = make(name)
    plain, plan = copy.deepcopy(module), planned(name, n_ranks, schedule)
    plan = replace(plan, stages=replace(plan.stages, recomputed=recomputed))
    if schedule == "searched":  # a whole backward pass, one that is split, and one that is late
        assert len(plan.stages.actions) == n_ranks
        orders = ("FFFFBBBB", "FFIWFIIFIWWW", "FFIFIIFIWWWW")
        plan = replace(plan, stages=replace(plan.stages, actions=orders))
    stages = plan.pipeline_stages(module)
    found = [stages.step(batch), stages.step(batch)][-1]
    if schedule == "searched":
        assert stages.csv.splitlines()[1] == "1F0,1F1,1I0,1W0,1F2,1I1,1I2,1F3,1I3,1W1,1W2,1W3"
        row = stages.schedule.pipeline_order[dist.get_rank()]
        assert ",".join(map(str, row)) == stages.csv.splitlines()[dist.get_rank()]
    if schedule == "zero-bubble":  # runs the same actions from the table
        table = folder / f"rank{dist.get_rank()}.csv"
        table.write_text(stages.csv)
        stages.schedule._load_csv(str(table))
        found = stages.step(batch)
    losses = []
    for inputs in split_batch(batch, N_MICROBATCHES):
        returned = plain(**inputs) if isinstance(inputs, dict) else plain(*inputs)
        losses.append(find_loss(returned)[0])
    (torch.stack(losses).sum() / N_MICROBATCHES).backward()
    if dist.get_rank() == n_ranks - 1:
        torch.testing.assert_close(found, torch.stack(losses).detach(), rtol=1e-9, atol=1e-9)
    else:
        assert found is None
    expected = dict(plain.named_parameters(remove_duplicate=False))
    trained = {id(parameter) for parameter in stages.parameters()}
    own = [(path, each) for path, each in module.named_parameters() if id(each) in trained]
    assert len(own) == len(trained) > 0
    for path, parameter in own:
        torch.testing.assert_close(parameter.grad, expected[path].grad, rtol=1e-9, atol=1e-9)
    assert stages.state_dict().keys() <= module.state_dict().keys()
