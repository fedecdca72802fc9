"""Scores and gradients of decisions in several threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from agent.policy.policy import Policy

Job = Callable[[], tuple[Tensor, ...]]
"""Computes some outputs from weights that all jobs share."""


def scores_in_threads(
    policy: Policy, obs: Mapping[str, Tensor], threads: int, *, encodes: bool = True
) -> tuple[Tensor, Tensor]:
    """Computes `policy.scores_for_update(obs)` in several threads, gradients included.

    Args:
        obs: see `Policy.scores`. Its rows are divided among the threads graph by graph or, where there are
            fewer graphs than threads, in pieces of each graph's rows.
        threads: number of threads, at least 1.
        encodes: the encoder gets gradients, too; else it is `policy.scores_of_encoded(obs)`.

    Returns:
        Masked logits (n, n_devices) and state values (n,).
    """
    scores = policy.scores_for_update if encodes else policy.scores_of_encoded
    if threads == 1:
        return scores(obs)
    shard = _shard_of_rows(policy, obs["problem"].flatten(), threads)
    rows = [torch.nonzero(shard == number).squeeze(1) for number in range(int(shard.max()) + 1)]
    rows = [piece for piece in rows if len(piece)]
    if len(rows) == 1:
        return scores(obs)

    def job(mine: Tensor) -> Job:
        part = {name: column[mine] for name, column in obs.items()}
        return lambda: scores(part)

    parts = in_threads([job(mine) for mine in rows], list(policy.network.parameters()))
    back = torch.argsort(torch.cat(rows))
    logits, values = (torch.cat(column)[back] for column in zip(*parts, strict=True))
    return logits, values


def _shard_of_rows(policy: Policy, problem: Tensor, threads: int) -> Tensor:
    """Divides decisions into at most `threads` shards of similar cost.

    The shards depend on the graphs alone, so that the same unions of graphs come again.

    Args:
        problem: index of each decision's problem, int64 (n,).

    Returns:
        Shard of each decision, int64 (n,).
    """
    present, which = problem.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    cost = policy.embeddings.n_nodes(present) + len(problem) // len(present)
    n_pieces = -(-threads // len(present))
    shard_of = torch.empty(len(present) * n_pieces, dtype=torch.int64, device=problem.device)
    for number, members in enumerate(_shards(cost.repeat_interleave(n_pieces).tolist(), threads)):
        shard_of[members] = number
    piece = torch.arange(len(problem), device=problem.device) % n_pieces
    return shard_of[which * n_pieces + piece]


def _shards(costs: Sequence[int], count: int) -> list[list[int]]:
    """Indices in at most `count` shards of similar total cost: the largest first, each to the least shard."""
    shards: list[list[int]] = [[] for _ in range(min(count, len(costs)))]
    totals = [0] * len(shards)
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        least = totals.index(min(totals))
        shards[least].append(index)
        totals[least] += costs[index]
    return shards


def in_threads(jobs: Sequence[Job], weights: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Runs jobs side by side; gradients with respect to the weights flow back through all of them.

    torch runs a backward pass in one thread, and its operations on small matrices gain nothing from more.
    Here every job builds and differentiates a graph of its own. The gradients are added in the order of the
    jobs, so that a result does not depend on which thread was faster.

    Args:
        jobs: each returns as many tensors as the first, with gradient.
        weights: leaves that the jobs read and whose gradients are computed.

    Returns:
        The outputs of each job, in the order of `jobs`.
    """
    if len(jobs) == 1 or not torch.is_grad_enabled():
        return [job() for job in jobs]
    flat = _InThreads.apply(jobs, *weights)  # type: ignore[no-untyped-call]
    width = len(flat) // len(jobs)
    return [tuple(flat[first : first + width]) for first in range(0, len(flat), width)]


class _InThreads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, jobs: Sequence[Job], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights = weights
        ctx.outputs = list(_threads(len(jobs)).map(_with_gradient, jobs))
        return tuple(output.detach() for outputs in ctx.outputs for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of the weights; each job's graph is freed with it."""
        width = len(gradients) // len(ctx.outputs)
        upstream = [gradients[first : first + width] for first in range(0, len(gradients), width)]

        def differentiate(
            outputs: tuple[Tensor, ...], above: tuple[Tensor, ...]
        ) -> tuple[Tensor | None, ...]:
            gradients: tuple[Tensor | None, ...]
            gradients = torch.autograd.grad(outputs, ctx.weights, above, allow_unused=True)
            return gradients

        by_job = list(_threads(len(ctx.outputs)).map(differentiate, ctx.outputs, upstream))
        ctx.outputs = None
        return None, *(_sum(parts) for parts in zip(*by_job, strict=True))


def _with_gradient(job: Job) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        return job()


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.stack(there).sum(0) if there else None


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="update")
