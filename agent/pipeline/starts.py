"""Plans that searches begin with: on one device, and of equal time on several orders of the devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from agent.pipeline.search import PipelineSearch
from agent.placers.base import placer
from envs.objective import PIPELINE
from envs.pipeline.cuts import Cuts
from envs.problem import kinds
from graphs.system.array_types import IntArray

MOST_ORDERS = 24
"""Orders of the devices that starts are made for, of each number of devices."""


@placer("single", places=[PIPELINE])
def single(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Puts all on the device that is fastest alone; devices of equal time and memory count once."""
    for cuts in search.pipelined.singles():
        if search.left:
            search.score_cuts(cuts)


def starts(search: PipelineSearch, rng: np.random.Generator) -> Iterator[Cuts]:
    """Yields plans of equal time, all devices first, then fewer; equal devices count once."""
    alike = _alike(search)
    for n_ranks in search.pipelined.usable:
        for ranks in _orders(search, alike, n_ranks, rng):
            yield search.pipelined.balanced(ranks)


def _alike(search: PipelineSearch) -> IntArray:
    """A number for each device, equal for devices with equal times and memory whose links are equal too."""
    cluster = search.problem.cluster
    links = (np.sort(each, axis=1).T for each in (cluster.bytes_per_s, cluster.latency_s))
    return kinds(np.vstack([search.problem.single_device_s, cluster.memory_bytes, *links]))[1]


def _orders(
    search: PipelineSearch, alike: IntArray, n_ranks: int, rng: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """Yields at most `MOST_ORDERS` orders of so many devices that are not alike."""
    n_devices, seen = search.problem.n_devices, set()
    fastest = sorted(range(n_devices), key=lambda device: search.problem.single_device_s[device])
    everything = math.perm(n_devices, n_ranks) <= 5_000
    found = permutations(fastest, n_ranks) if everything else _draws(fastest, n_ranks, rng)
    for order in found:
        key = tuple(alike[list(order)].tolist())
        if key not in seen:
            seen.add(key)
            yield tuple(order)
        if len(seen) >= MOST_ORDERS:
            return


def _draws(fastest: Sequence[int], n_ranks: int, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    yield tuple(sorted(fastest[:n_ranks]))
    yield tuple(fastest[:n_ranks])
    for _ in range(4 * MOST_ORDERS):
        yield tuple(rng.permutation(fastest)[:n_ranks].tolist())
