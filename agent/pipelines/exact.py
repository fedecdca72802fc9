"""Proves a plan optimal: it simulates all plans, but for those that a lower bound rules out.

A stage computes all its microbatches between the earliest start of any of its ops and the latest end that
leaves time for what depends on them. So the step is at least

    least head of its ops + microbatches x seconds of one + least tail of its ops,

with heads and tails of `agent.bounds.lower_bound`. The pieces that no stage has yet are bounded by their
seconds on the fastest device, spread over the devices that are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

import numpy as np

from agent.bounds.lower_bound import heads_and_tails
from agent.pipelines.annealing import refine
from agent.pipelines.search import Cuts, PipelineSearch, pipeline_placer
from agent.placers.base import Budget
from agent.placers.scores import TOTAL_S
from envs.problem import kinds
from graphs.limits import ROUNDING
from graphs.system.array_types import FloatArray

SECONDS = 10.0
"""Time limit where the budget has none."""
START_SHARE = 0.2
"""Share of the budget in which `refine` finds a plan to begin with."""
MOST_ORDERS = 50_000
"""Orders of all devices, at most; with more, nothing is proven."""


@pipeline_placer("exact")
def exact(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Finds the best plan of stages that are contiguous in program order, without replicas, and proves it.

    If the budget ends before, or the devices have more than `MOST_ORDERS` orders, the best plan so far stays,
    without a proof.
    """
    seconds = SECONDS if search.budget.seconds is None else search.budget.seconds
    whole = Budget(search.budget.evaluations, seconds)
    evaluations = None if whole.evaluations is None else max(1, int(START_SHARE * whole.evaluations))
    search.budget = Budget(evaluations, START_SHARE * seconds)
    refine(search, np.random.default_rng(0))
    search.budget = whole
    counts = [n for n in range(search.most_ranks, 0, -1) if search.can_use(n)]
    if math.perm(search.problem.n_devices, counts[0]) > MOST_ORDERS:
        return
    for ranks in (ranks for n_ranks in counts for ranks in _orders(search, n_ranks)):
        for cuts in _Enumeration(search, ranks).all():
            search.score_cuts(cuts)
    search.is_proven = search.is_feasible and search.left > 0


def _orders(search: PipelineSearch, n_ranks: int) -> Iterator[tuple[int, ...]]:
    """Yields the orders of so many devices; of those with the same times, memory and links, only one."""
    cluster, seen, apart = search.problem.cluster, set(), ~np.eye(n_ranks, dtype=bool)
    _, kind_of = kinds(np.vstack([search.problem.op_seconds, cluster.memory_bytes]))
    matrices = np.stack([cluster.bytes_per_s, cluster.latency_s, cluster.n_half_matrix])
    for order in permutations(range(search.problem.n_devices), n_ranks):
        devices = list(order)
        links = matrices[:, devices][:, :, devices][:, apart]
        if (key := (kind_of[devices].tobytes(), links.tobytes())) not in seen:
            seen.add(key)
            yield order


class _Enumeration:
    """All cuts for an order of devices that may be better than the best plan so far."""

    def __init__(self, search: PipelineSearch, ranks: tuple[int, ...]) -> None:
        self.search, self.ranks = search, ranks
        chain, count = search.chain, search.pipeline.microbatches
        self.devices = ranks * search.pipeline.stages_per_device
        seconds = count * chain.seconds[:2].sum(axis=0)
        self.work_s = _before(seconds)
        self.least_s = _before(seconds[:, list(ranks)].min(axis=1))
        of_piece = [np.full(chain.n_pieces, np.inf) for _ in range(2)]
        runs = np.isin(search.pipelined.arrays.phase, (0, 1))
        for found, least_s in zip(of_piece, heads_and_tails(search.problem), strict=True):
            np.minimum.at(found, chain.piece_of[runs], least_s[runs])
        self.head_s, self.tail_s = of_piece

    def all(self, first: tuple[int, ...] = (0,)) -> Iterator[Cuts]:
        """Yields the cuts that begin with the first pieces of some stages."""
        n_pieces, begin, device = self.search.chain.n_pieces, first[-1], self.devices[len(first) - 1]
        n_left = len(self.devices) - len(first)
        ends = [n_pieces] if not n_left else range(begin + 1, n_pieces - n_left + 1)
        head_s, tail_s = (np.minimum.accumulate(each[begin:]) for each in (self.head_s, self.tail_s))
        work_s, least_s = self.work_s[:, device] - self.work_s[begin, device], self.least_s[-1] - self.least_s
        for end in ends:
            if not self.search.left:
                return
            best_s = self._best_s()
            if work_s[end] >= best_s:
                return
            bound_s = work_s[end] + head_s[end - begin - 1] + tail_s[end - begin - 1]
            if n_left and least_s[end] >= best_s * min(n_left, len(self.ranks)):
                continue
            if bound_s < best_s:
                yield from self.all((*first, end)) if n_left else [Cuts(first, self.ranks)]

    def _best_s(self) -> float:
        """Bound from which on a plan is not better than the best one that fits the memory, seconds."""
        if not self.search.is_feasible:
            return np.inf
        return self.search.best_score[TOTAL_S] * (1 - ROUNDING)


def _before(seconds: FloatArray) -> FloatArray:
    """Sums of the first pieces, from none to all."""
    return np.concatenate([np.zeros((1, *seconds.shape[1:])), seconds.cumsum(axis=0)])
