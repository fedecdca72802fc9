"""A model whose pipelined steps the ranks of a process group compare with plain steps."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import start_processes

from agent import PipelinePlan, place
from graphs.capture.structures import split_batch

N_MICROBATCHES, N_RANKS = 4, 3


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


def make() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Makes the model in float64, and a batch."""
    torch.manual_seed(0)
    words = torch.randint(11, (2 * N_MICROBATCHES, 5))
    return Transformer().double(), (words, words.flip(0))


def compare_in_ranks(folder: Path, port: int) -> None:
    """Compares in three ranks, which are forked when all is planned."""
    torch.set_num_threads(1)
    settings: dict[str, Any] = {"placer": "equal-time", "optimizer": None, "budget": 100}
    settings |= {"cluster": f"4xv100:{N_RANKS}", "pipeline": "zero-bubble", "split": N_MICROBATCHES}
    plan = place(*make(), **settings)
    start_processes(compare, (plan, folder, port), nprocs=N_RANKS, start_method="fork")


def compare(rank: int, plan: PipelinePlan, folder: Path, port: int) -> None:
    """Compares losses and gradients of three ranks with those of plain steps; then two run a snippet."""
    file = f"file://{folder / 'group'}"
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=N_RANKS)
    _compare(rank, plan, folder)
    dist.destroy_process_group()
    if rank < 2:
        run_snippet(rank, port)


def run_snippet(rank: int, port: int) -> None:
    """Runs the snippet of the page as torchrun does on two devices."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    page = (Path(__file__).parents[3] / "docs/how-to/pipelines.md").read_text(encoding="utf-8")
    (snippet,) = (
        each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "pipeline_stages" in each
    )
    assert sum(map(bool, snippet.splitlines())) <= 8
    names: dict[str, Any] = {}
    exec(snippet.replace("split=8", 'split=8, cluster="4xv100:2"'), names)
    assert (names["losses"] is None) == (rank == 0)
    dist.destroy_process_group()


def _compare(rank: int, plan: PipelinePlan, folder: Path) -> None:
    module, batch = make()
    plain = copy.deepcopy(module)
    stages = plan.pipeline_stages(module)
    losses = [plain(*inputs) for inputs in split_batch(batch, N_MICROBATCHES)]
    (torch.stack(losses).sum() / N_MICROBATCHES).backward()
    expected = dict(plain.named_parameters(remove_duplicate=False))
    for source in ("schedule", "table"):
        found = stages.step(batch)
        if rank == N_RANKS - 1:
            torch.testing.assert_close(found, torch.stack(losses).detach(), rtol=1e-9, atol=1e-9)
        else:
            assert found is None
        trained = {id(parameter) for parameter in stages.parameters()}
        own = [(path, each) for path, each in module.named_parameters() if id(each) in trained]
        assert len(own) == len(trained) > 0
        for path, parameter in own:
            torch.testing.assert_close(parameter.grad, expected[path].grad, rtol=1e-9, atol=1e-9)
        if source == "schedule":  # then runs the same actions from the table
            table = folder / f"rank{rank}.csv"
            table.write_text(stages.csv)
            stages.schedule._load_csv(str(table))
    assert stages.state_dict().keys() <= module.state_dict().keys()
