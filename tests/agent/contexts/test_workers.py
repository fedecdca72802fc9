"""Workers that train one policy together keep the same weights, resume exactly and fail together."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Any

import numpy as np
import pytest
import torch

from agent.contexts import distributed, process_group
from agent.contexts.distributed import SharedCheckpoints
from agent.contexts.process_group import ProcessGroup
from agent.learn import actor_critic
from agent.learn.checkpoints import CheckpointFolder
from agent.learn.train import Result, train
from agent.learn.workers import SoloGroup, WorkersDifferError, average_gradients, check_same
from tests.agent.contexts.worker_cases import in_workers
from tests.agent.learn.train_cases import SMALL, MemoryContext, numbers

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


def test_all_workers_stop_where_one_is_asked_to(tmp_path: Path) -> None:
    first, second = in_workers(partial(trained, stop_after={1: 1}, timesteps=1024), tmp_path)
    assert not first[0].finished
    assert first[0].updates == second[0].updates == 2
    assert first[2], "a checkpoint is left"


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
    assert told == [(os.getpid(), SIGTERM)]
