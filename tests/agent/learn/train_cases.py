"""A small training, on chains whose best placement is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.learn.checkpoints import CheckpointFolder
from agent.learn.config import TrainConfig
from agent.learn.metrics import CPU_S, SPEED, WALL_S
from agent.learn.problems import Split
from agent.learn.workers import SOLO, WorkerGroup
from envs.placement.render import Picture
from envs.runtime.runnable_model import RunnableModel
from graphs.op_graph import OpGraph, build_graph

SMALL = TrainConfig(
    cluster=("4xh100",),
    demonstrations=1,
    search=50,
    imitation_epochs=2,
    dagger_rounds=1,
    timesteps=2048,
    hidden=16,
    rounds=1,
    n_envs=8,
    repeats=4,
    n_steps=32,
    batch_size=128,
    learning_rate=3e-4,
    epochs=2,
    eval_every=2,
    checkpoint_every=2,
    threads=1,
)


def chains(n_chains: int, length: int, name: str) -> OpGraph:
    """Chains of equal ops without anything between them: four devices take a fourth of the time."""
    ops = [{"name": f"{c}.{i}", "flops": 1e12} for i in range(length) for c in range(n_chains)]
    tensors = [(op, 1e3, [op + n_chains]) for op in range(n_chains * (length - 1))]
    return build_graph(name, "chains", ops, tensors)


@dataclass
class MemoryContext:
    """A context that keeps the numbers, and stops after some updates."""

    folder: Path
    stop_after: int = 10**9
    seed: int = 0
    device: str = "cpu"
    rows: list[dict[str, float]] = field(default_factory=list)
    pictures: list[tuple[int, str]] = field(default_factory=list)
    runnable: RunnableModel | None = None
    group: WorkerGroup = SOLO

    def __post_init__(self) -> None:
        train_on = tuple(chains(4, length, f"chains{length}") for length in (3, 4))
        self.graphs = Split(train_on, (chains(4, 5, "chains5"),), (chains(4, 6, "chains6"),))
        self.folder.mkdir(exist_ok=True)
        self.checkpoints = CheckpointFolder(self.folder / "checkpoints")

    def report(self, timesteps: int, metrics: Mapping[str, float]) -> None:
        self.rows.append({"timesteps": timesteps, **metrics})

    def show(self, timesteps: int, tag: str, picture: Picture) -> None:
        self.pictures.append((timesteps, tag))

    def announce(self, activity: str, share: float) -> None:
        assert 0 <= share <= 1

    def should_stop(self) -> bool:
        return len(self.rows) >= self.stop_after


def numbers(context: MemoryContext) -> list[dict[str, float]]:
    """What was reported, without what the clock decides."""
    clock = {WALL_S, CPU_S, SPEED}
    return [{key: value for key, value in row.items() if key not in clock} for row in context.rows]
