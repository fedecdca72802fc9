"""Workers that train one policy together keep the same weights, resume exactly and fail together."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agent.contexts import distributed, process_group
from agent.contexts.distributed import SharedCheckpoints
from agent.contexts.process_group import ProcessGroup
from agent.learn import actor_critic
from agent.learn.checkpoints import CheckpointFolder
from agent.learn.metrics import UPDATES
from agent.learn.train import Result, train
from agent.learn.workers import SoloGroup, WorkersDifferError, average_gradients, check_same
from graphs.system.json_files import read_json
from tests.agent.contexts.worker_cases import free_port, in_workers
from tests.agent.learn.train_cases import SMALL, MemoryContext, numbers
from tests.faults.processes import TRAIN, TRAINING, Command, rows_of
from tests.training_cases import place, write_toys

SHORT = replace(SMALL, timesteps=512, order=("topo", "random"))


def trained(
    group: ProcessGroup | SoloGroup, folder: Path, stop_after: dict[int, int] | None = None, **changes: Any
) -> tuple[Result, list[dict[str, float]], dict[str, Any]]:
    """The result, the numbers logged, and the tensors of the last checkpoint, if there is one."""
    folder = folder / f"{group.rank} of {group.size}"
    context = MemoryContext(folder, stop_after=(stop_after or {}).get(group.rank, 10**9), group=group)
    context.checkpoints = SharedCheckpoints(folder / "checkpoints", group)
    result = train(replace(SHORT, **changes), context)
    saved = CheckpointFolder(folder / "checkpoints").latest()
    return result, numbers(context), {k: t.numpy() for k, t in saved.tensors.items()} if saved else {}


def halted(group: ProcessGroup, folder: Path) -> list[Any]:
    """Trains in one go, and again in two."""
    (folder / "halted").mkdir(exist_ok=True)
    again = partial(trained, group, folder / "halted", checkpoint_every=3, timesteps=2048)
    return [trained(group, folder, checkpoint_every=3, timesteps=2048), again({0: 6}), again()]


def test_two_workers_learn_together_and_resume_as_if_nothing_was(tmp_path: Path) -> None:
    """That their weights are equal is checked at each checkpoint."""
    first, second = in_workers(halted, tmp_path)
    (whole, rows, weights), (before, rows_before, _), (after, rows_after, again) = first
    assert not before.finished
    assert before.updates < after.updates == whole.updates == second[0][0].updates == 8
    assert [*rows_before[: before.updates + 1], *rows_after] == rows
    assert all(np.array_equal(again[name], tensor) for name, tensor in weights.items())
    assert whole.gains["held_out"][1] < 0.9 * whole.gains["held_out"][0]
    assert not second[0][2], "the first worker alone writes"


def scores_that_are_not_finite(group: ProcessGroup, folder: Path) -> object:
    """Trains until scores of the second worker are NaN."""
    if group.rank == 1:
        actor_critic.check_scores = not_finite
    return trained(group, folder)


def not_finite(*_: object) -> None:
    raise FloatingPointError("the policy's scores are not finite")


def test_all_workers_diverge_where_one_does(tmp_path: Path) -> None:
    for error in in_workers(scores_that_are_not_finite, tmp_path):
        assert error.kind == "DivergedError", error
        assert "after 0 updates: the policy's scores are not finite" in error.text


def full_disk(group: ProcessGroup, folder: Path, failing: int) -> object:
    """Fails in one worker, while the others wait for it; the first, which holds the store, leaves last."""
    process_group.FAREWELL_S = 3600.0
    if group.rank == failing:
        raise OSError(28, "No space left on device")
    return group.gather(torch.zeros(1))


@pytest.mark.parametrize("failing", [0, 1])
def test_workers_that_wait_learn_why_another_failed(tmp_path: Path, failing: int) -> None:
    for rank, failure in enumerate(in_workers(partial(full_disk, failing=failing), tmp_path, size=3)):
        assert failure.kind == ("OSError" if rank == failing else "WorkerLostError")
        who = "" if rank == failing else f"worker {failing} failed: OSError: "
        assert failure.text == f"{who}[Errno 28] No space left on device"


def exchanges(group: ProcessGroup, folder: Path) -> dict[str, Any]:
    """One of each exchange."""
    weights = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)]
    (weights[0].sum() * (1.0 + group.rank)).backward()
    if group.rank:
        weights[1].sum().backward()
    average_gradients(group, weights)
    flags = group.gather(torch.tensor([group.rank == 1, False]))
    check_same(group, [torch.ones(3)])
    with pytest.raises(WorkersDifferError, match="the weights of worker 1 differ from those of worker 0"):
        check_same(group, [torch.tensor([0.0 if group.rank == 0 else 1e-30])])
    said = group.broadcast(b"from 0" if group.rank == 0 else b"ignored")
    return {"gradients": [weight.grad.tolist() for weight in weights], "flags": flags.tolist(), "said": said}


def test_exchanges(tmp_path: Path) -> None:
    for answer in in_workers(exchanges, tmp_path):
        assert answer["gradients"] == [[1.5, 1.5], [0.5]], "a missing one counts as 0"
        assert answer["flags"] == [False, False, True, False]
        assert answer["said"] == b"from 0"


def test_a_worker_stops_when_torchrun_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, told = iter([7, 7, 1]), list[tuple[int, ...]]()
    monkeypatch.setattr(distributed, "ONE_SIGNAL_S", 0.01)
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    monkeypatch.setattr("os.kill", lambda *words: told.append(words))
    distributed._stop_with(7)
    assert told == [(os.getpid(), signal.SIGTERM)]


__all__ = ["place"]
ROOT = Path(__file__).parents[3]
FLAGS = [*TRAINING.split(), "--context", "distributed"]
ENDLESS = [*FLAGS, "--timesteps", "1000000"]


class Workers:
    """Two processes that run the training command in a folder each, with the environment of torchrun."""

    def __init__(self, folder: Path, *words: str, other: Path | None = None) -> None:
        folders = (folder, other or folder)
        ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.commands = [Command(TRAIN, words, folders[rank], RANK=str(rank), **ranks) for rank in range(2)]

    @property
    def outputs(self) -> list[str]:
        """What each has printed."""
        return [command.output for command in self.commands]

    def wait(self) -> list[int]:
        """Waits for the end of both; returns their exit codes."""
        try:
            return [command.wait() for command in self.commands]
        finally:
            for command in self.commands:
                command.process.kill()

    def wait_until_trained(self, run: Path, updates: int) -> None:
        """Waits until some updates are reported."""
        rows = run / "metrics.jsonl"
        self.commands[0].wait_until(lambda: rows.exists() and len(rows_of(run)) >= updates)


def test_one_worker_that_is_told_to_stop_stops_all_and_the_run_goes_on(place: Path) -> None:
    run, words = place / "runs" / "first", ["--name", "first"]
    other = place / "machine"
    (other / "runs" / "first").mkdir(parents=True)
    (other / "runs" / "first" / "result.json").write_text("another's")
    write_toys(other)
    workers = Workers(place, *ENDLESS, *words, other=other)
    workers.wait_until_trained(run, 5)
    os.kill(workers.commands[1].process.pid or 0, signal.SIGTERM)
    assert workers.wait() == [1, 1], workers.outputs
    n_rows = len(rows_of(run))
    first, second = workers.outputs
    assert "resume with train_agent.py --resume --name first, started as before" in first
    assert second == ""
    assert [path.read_text() for path in other.glob("runs/*/*")] == ["another's"], "the first alone writes"

    more = str(read_json(run / "config.json")["n_envs"] * 16 * (n_rows + 2))
    workers = Workers(place, "--resume", *words, "--timesteps", more)
    assert workers.wait() == [0, 0], workers.outputs
    assert read_json(run / "result.json")["finished"]
    updates = [row[UPDATES] for row in rows_of(run)]
    assert updates == list(range(len(updates)))
    assert len(updates) > n_rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n-envs", "3"], "n_envs is 3, which 2 workers cannot share; use a multiple of 2"),
        (["--families", "nosuch"], "unknown family 'nosuch'"),
        (["--context", "local"], "context is local; torchrun is for --context distributed"),
    ],
)
def test_wrong_input_is_said_once_and_ends_all(place: Path, words: list[str], message: str) -> None:
    workers = Workers(place, *FLAGS, "--name", "wrong", *words)
    assert workers.wait() == [2, 2]
    first, second = workers.outputs
    assert message in first
    assert first.count("\n") == 1
    assert second == ""
    assert not (place / "runs").exists()


def test_a_worker_that_is_killed_ends_the_others(place: Path) -> None:
    run = place / "runs" / "killed"
    workers = Workers(place, *ENDLESS, "--name", "killed")
    workers.wait_until_trained(run, 3)
    workers.commands[1].process.kill()
    assert workers.wait() == [1, -9]
    assert "another worker has ended" in workers.outputs[0]
    assert list((run / "checkpoints").iterdir())


def test_torchrun(place: Path) -> None:
    words = ["--nproc-per-node", "2", str(ROOT / "train_agent.py"), *FLAGS, "--name", "first"]
    command = Command("torch.distributed.run", words, place, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    assert command.wait() == 0, command.output
    assert command.output.count("of one device's step time") == 1
    assert read_json(place / "runs" / "first" / "result.json")["finished"]
