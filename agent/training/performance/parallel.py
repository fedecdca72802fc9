"""One differentiable computation in parts, each in a thread of its own, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

Job = Callable[[], tuple[Tensor, ...]]
"""Computes some outputs from weights that all jobs share."""


def in_threads(jobs: Sequence[Job], weights: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Run jobs side by side; gradients with respect to the weights flow back through all of them.

    torch runs a backward pass in one thread, and its operations on small matrices gain nothing from more.
    Here every job builds and differentiates a graph of its own. The gradients are added in the order of the
    jobs, so that a result does not depend on which thread was faster.

    Args:
        jobs: each returns as many tensors as the first, with gradient.
        weights: leaves that the jobs read and gradients are wanted for.
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
        return None, *(_added(parts) for parts in zip(*by_job, strict=True))


def _with_gradient(job: Job) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        return job()


def _added(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.stack(there).sum(0) if there else None


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="update")
