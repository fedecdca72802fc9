"""A small training, on chains whose best placement is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Image, KVWriter

from agent.learn.checkpoints import CheckpointFolder
from agent.learn.config import TrainConfig
from agent.learn.metrics import CPU_S, SPEED, WALL_S
from agent.learn.workers import SOLO, WorkerGroup
from envs.runtime.runnable_model import RunnableModel
from graphs.dataset import Split
from graphs.op_graph import OpGraph, build_graph

SMALL = TrainConfig(
    cluster=("4xh100",),
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


class Memory(KVWriter):
    """Keeps the rows that are logged, and of pictures what is drawn."""

    def __init__(self) -> None:
        self.rows = list[dict[str, float]]()
        self.pictures = list[tuple[int, str]]()

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        numbers = {name: float(value) for name, value in key_values.items() if not hasattr(value, "__dict__")}
        self.rows.append({"timesteps": step, **numbers})
        self.pictures += [(step, name) for name, value in key_values.items() if isinstance(value, Image)]

    def close(self) -> None:
        pass


@dataclass
class MemoryContext:
    """A context that keeps the numbers, and stops after some updates."""

    folder: Path
    stop_after: int = 10**9
    seed: int = 0
    device: str = "cpu"
    runnable: RunnableModel | None = None
    group: WorkerGroup = SOLO
    callbacks: tuple[BaseCallback, ...] = ()

    def __post_init__(self) -> None:
        train_on = tuple(chains(4, length, f"chains{length}") for length in (3, 4))
        self.graphs = Split(train_on, (chains(4, 5, "chains5"),), (chains(4, 6, "chains6"),))
        self.folder.mkdir(exist_ok=True)
        self.checkpoints = CheckpointFolder(self.folder / "checkpoints")
        self._memory = Memory()
        self.outputs = (self._memory,)
        self.rows, self.pictures = self._memory.rows, self._memory.pictures

    def announce(self, activity: str, share: float) -> None:
        assert 0 <= share <= 1

    def should_stop(self) -> bool:
        return len(self.rows) >= self.stop_after


def numbers(context: MemoryContext) -> list[dict[str, float]]:
    """What was logged, without what the clock decides."""
    clock = {WALL_S, CPU_S, SPEED, "time/time_elapsed", "time/iterations"}
    return [{key: value for key, value in row.items() if key not in clock} for row in context.rows]
