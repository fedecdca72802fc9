"""Workers that train one policy together equal one worker with the joined batch, and fail together."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from agent.contexts import distributed
from agent.contexts.process_group import ProcessGroup
from agent.learn import actor_critic
from agent.learn.train import Result, train
from agent.learn.workers import SOLO, SoloGroup, WorkersDifferError, check_same, joined_rows
from tests.agent.contexts.worker_cases import in_workers
from tests.agent.learn.train_cases import SMALL, MemoryContext, numbers

TOLERANCE = 1e-3
"""Sums of 32-bit floats in another order differ by some 1e-7 of their size, and the updates that follow each
other in these tests let that grow. One other decision changes the numbers by more than a hundredth."""
SHORT = replace(SMALL, timesteps=512, order=("topo", "random"))


def trained(
    group: ProcessGroup | SoloGroup, folder: Path, stop_after: dict[int, int] | None = None, **changes: Any
) -> tuple[Result, list[dict[str, float]], dict[str, Any]]:
    """The result, the numbers reported, and the tensors of the last checkpoint, if there is one."""
    folder = folder / f"{group.rank} of {group.size}"
    context = MemoryContext(folder, stop_after=(stop_after or {}).get(group.rank, 10**9), group=group)
    result = train(replace(SHORT, **changes), context)
    saved = context.checkpoints.latest()
    return result, numbers(context), {k: t.numpy() for k, t in saved.tensors.items()} if saved else {}


@pytest.mark.parametrize("changes", [{}, {"mdp": "improve", "batch_size": 2, "timesteps": 256}])
def test_two_workers_equal_one_with_the_joined_batch(tmp_path: Path, changes: dict[str, Any]) -> None:
    """All phases; with minibatches of two decisions, one worker often has none of them."""
    job = partial(trained, **changes)
    (_, rows, weights), (first, second) = job(SOLO, tmp_path), in_workers(job, tmp_path)
    for row, joint in zip(rows, first[1], strict=True):
        assert row == pytest.approx(joint, rel=TOLERANCE, abs=TOLERANCE)
    assert weights.keys() == first[2].keys()
    for name, tensor in weights.items():
        distance = np.abs(first[2][name] - tensor)
        assert distance.mean() < TOLERANCE / 10, name
        # Adam moves a weight of hardly any gradient by as much as others, so rounding shows in a few.
        assert distance.max() < TOLERANCE * 10, name
    assert not second[2], "the first worker alone writes"


def test_all_workers_stop_where_one_is_asked_to(tmp_path: Path) -> None:
    first, second = in_workers(partial(trained, stop_after={1: 3}), tmp_path)
    assert not first[0].finished
    assert first[0].iterations == second[0].iterations == 2
    assert first[2], "a checkpoint is left"


def scores_that_are_not_finite(group: ProcessGroup, folder: Path) -> object:
    """Trains until the scores of the second worker's own decisions are NaN."""
    if group.rank == 1:
        actor_critic.check_scores = not_finite
    return trained(group, folder, demonstrations=0, dagger_rounds=0)


def not_finite(*_: object) -> None:
    raise FloatingPointError("the policy's scores are not finite")


def test_all_workers_diverge_where_one_does(tmp_path: Path) -> None:
    for error in in_workers(scores_that_are_not_finite, tmp_path):
        assert error.kind == "DivergedError", error
        assert "update 1: the policy's scores are not finite" in error.text


def full_disk(group: ProcessGroup, folder: Path) -> object:
    """Fails in the first worker, while the second waits for it."""
    if group.rank == 0:
        raise OSError(28, "No space left on device")
    return group.broadcast(b"")


def test_a_worker_that_waits_learns_why_another_failed(tmp_path: Path) -> None:
    first, second = in_workers(full_disk, tmp_path)
    assert first.kind == "OSError"
    assert second.kind == "WorkerLostError"
    assert second.text == "worker 0 failed: OSError: [Errno 28] No space left on device"


def test_the_worker_that_holds_the_store_leaves_after_the_one_that_failed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    store = dist.HashStore()
    group, seen = ProcessGroup(store), dist.PrefixStore("placewalk", store)
    seen.set("failure", '{"kind": "other", "text": "", "rank": 1}')

    def fail() -> None:
        with group.failing_together():
            raise OSError("No space left on device")

    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(fail)
        seen.wait(["read/0"], timedelta(seconds=60))
        assert not leaving.done()
        seen.set("farewell", "")
        with pytest.raises(OSError, match="No space"):
            leaving.result(60)


def exchanges(group: ProcessGroup, folder: Path) -> dict[str, Any]:
    """One of each exchange."""
    own = torch.full((group.rank + 1, 2), float(group.rank), requires_grad=True)
    joined = joined_rows(group, own)
    (joined * torch.arange(6.0).view(3, 2)).sum().backward()
    parts = [torch.tensor([1.0 + group.rank]), torch.full((2, 2), 10.0)]
    group.sum_(parts)
    flags = group.gather(torch.tensor([group.rank == 1, False]))
    check_same(group, [torch.ones(3)])
    with pytest.raises(WorkersDifferError, match="the weights of worker 1 differ from those of worker 0"):
        check_same(group, [torch.tensor([0.0 if group.rank == 0 else 1e-30])])
    said = group.broadcast(b"from 0" if group.rank == 0 else b"ignored")
    assert own.grad is not None
    found = {"joined": joined.tolist(), "gradient": own.grad.tolist(), "flags": flags.tolist(), "said": said}
    return found | {"sums": [part.tolist() for part in parts]}


def test_exchanges(tmp_path: Path) -> None:
    for rank, found in enumerate(in_workers(exchanges, tmp_path)):
        assert found["joined"] == [[0, 0], [1, 1], [1, 1]]
        assert found["gradient"] == ([[0, 1]] if rank == 0 else [[2, 3], [4, 5]])
        assert found["sums"] == [[3.0], [[20.0, 20.0], [20.0, 20.0]]]
        assert found["flags"] == [False, False, True, False]
        assert found["said"] == b"from 0"


def test_a_worker_stops_when_torchrun_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, told = iter([7, 7, 1]), list[tuple[int, ...]]()
    monkeypatch.setattr(distributed, "ONE_SIGNAL_S", 0.01)
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    monkeypatch.setattr("os.kill", lambda *words: told.append(words))
    distributed._stop_with(7)
    assert told == [(os.getpid(), SIGTERM)]
