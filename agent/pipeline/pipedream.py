"""PipeDream's split of a chain: the dynamic programme of least max-load.

f(i, u) = min over j > i, and over the kinds d of devices, of max(load([i, j) on d), f(j, u - d)): the least
max-load of the nodes from i on, on u devices of each kind. It begins with the last stages, so that the number
of devices after a stage, which decides how many microbatches are alive in it, is known.

Source: Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", section 3.1,
with one level of links and without replicas of stages. Departure: devices of several kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from agent.pipeline.max_load import StageCosts, StageSums
from agent.pipeline.search import PipelineSearch
from agent.placers.base import placer
from envs.objective import OVER_BYTES, PIPELINE
from envs.pipeline.chain import Cuts
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import kinds
from graphs.limits import ROUNDING
from graphs.system.array_types import FloatArray, IntArray

MOST_NODES, FEW_NODES = 512, 64
"""Nodes that the pieces of a graph are merged into, at most, and those of a first split, whose max-load
bounds that of the second."""
MOST_USES = 1024
"""Numbers of devices of each kind that are told apart; beyond, the devices are used in their order."""
MEMORY_SHARES = (1.0, 0.9, 0.8, 0.65, np.inf)
"""Shares of the memory that plans take in turn, until one fits; memory is an estimate until simulated."""


class StageSplit(NamedTuple):
    """A split of the nodes into stages.

    Attributes:
        max_load_s: load of the busiest stage, seconds per microbatch.
        first: first node of each stage.
        devices: device of each stage.
    """

    max_load_s: float
    first: list[int]
    devices: list[int]


@placer("pipedream", places=[PIPELINE])
def pipedream(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Scores the split of the chain of least max-load, with ever less memory until one fits.

    It ends sooner where another split is likely to end too late.
    """
    counts = tuple(reversed(search.pipelined.usable))
    costs = stage_costs(search.pipelined.members[0])
    split_s = 0.0
    for share in MEMORY_SHARES:
        if search.best is not None and split_s > search.seconds_left:
            return
        began_s = search.elapsed_s
        split = best_split(costs, counts, share)
        split_s = search.elapsed_s - began_s
        if split is None or (share == np.inf and search.best is not None):
            continue
        first = np.searchsorted(costs.node_of, split.first)
        cuts = Cuts(tuple(first.tolist()), tuple(dict.fromkeys(split.devices)))
        if search.score_cuts(cuts)[OVER_BYTES] == 0 or not search.left:
            return


def stage_costs(pipelined: PipelinedProblem) -> StageCosts:
    """Makes the costs of at most `MOST_NODES` nodes."""
    chain = pipelined.chain
    seconds = chain.seconds[:2].sum(axis=0).mean(axis=1)
    return StageCosts(pipelined, windows(seconds, chain.cut_bytes.sum(axis=0), MOST_NODES))


def windows(seconds: FloatArray, cut_bytes: FloatArray, n_groups: int) -> IntArray:
    """Merges nodes that follow each other into at most so many groups, int64 (n_nodes,).

    The time of all nodes is cut into equal windows. Of the cuts in a window, the one that the fewest bytes
    pass stays.

    Args:
        seconds: time of each node, (n_nodes,).
        cut_bytes: bytes that pass the cut before each node, (n_nodes,).
    """
    if len(seconds) <= n_groups:
        return np.arange(len(seconds))
    before = np.cumsum(seconds)[:-1] / max(seconds.sum(), 1e-300)
    window = np.minimum((before * (n_groups - 1)).astype(np.int64), n_groups - 2)
    order = np.lexsort((cut_bytes[1:], window))
    _, first = np.unique(window[order], return_index=True)
    begins = np.zeros(len(seconds), dtype=np.int64)
    begins[order[first] + 1] = 1
    return begins.cumsum()


def best_split(costs: StageCosts, counts: tuple[int, ...], memory_share: float = 1.0) -> StageSplit | None:
    """Finds the split of least max-load; None where no split fits the memory.

    Args:
        counts: numbers of devices that a plan may use, ascending.
        memory_share: share of each device's memory that stages can take.
    """
    rounds = costs.pipelined.pipeline.stages_per_device
    whole = counts[-1] if rounds > 1 else costs.pipelined.problem.n_devices
    fleet = Fleet(costs, whole, counts[-1:] if rounds > 1 else counts, rounds)
    split, bound_s = None, np.inf
    for ends in _candidate_cuts(costs):
        split = least_max_load(fleet, ends, memory_share, bound_s) or split
        bound_s = split.max_load_s if split else np.inf
    return split


def _candidate_cuts(costs: StageCosts) -> list[IntArray]:
    """Nodes that stages may begin or end at, ascending: few of them, then all."""
    every = np.arange(costs.n_nodes + 1)
    if costs.n_nodes <= FEW_NODES:
        return [every]
    chain, first = costs.pipelined.chain, np.flatnonzero(np.diff(costs.node_of, prepend=-1))
    seconds = np.add.reduceat(chain.seconds[:2].sum(axis=0).mean(axis=1), first)
    group = windows(seconds, chain.cut_bytes.sum(axis=0)[first], FEW_NODES)
    return [np.append(np.flatnonzero(np.diff(group, prepend=-1)), costs.n_nodes), every]


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices that stages are put on, and the numbers of each kind that they can use.

    Devices are of one kind if they have the same times of all nodes, memory, and mean links.

    Attributes:
        costs: costs of the nodes.
        n_devices: number of devices, the first of the cluster.
        counts: numbers of devices that a plan may use.
        rounds: stages that each device has; with more than one, all devices are used, in their order.
    """

    costs: StageCosts
    n_devices: int
    counts: tuple[int, ...]
    rounds: int = 1

    @cached_property
    def kinds(self) -> tuple[IntArray, IntArray]:
        """First device of each kind, int64 (n_kinds,), and kind of each device in order."""
        costs, problem = self.costs, self.costs.pipelined.problem
        seconds = costs.per_node[:, :-1].reshape(-1, problem.n_devices)
        rows = np.vstack([seconds, problem.cluster.memory_bytes, costs.mean_link_s.T])
        return kinds(rows[:, : self.n_devices])

    @cached_property
    def uses(self) -> IntArray:
        """Numbers of devices of each kind, int64 (n_uses, n_kinds); the last is the whole fleet."""
        sequence, n_kinds = np.tile(self.kinds[1], self.rounds), len(self.kinds[0])
        counts = np.bincount(sequence, minlength=n_kinds)
        if self.rounds == 1 and np.prod(counts + 1.0) <= MOST_USES:
            return np.array(list(product(*(range(count + 1) for count in counts))), dtype=np.int64)
        ends = range(len(sequence), -1, -1)
        return np.array([np.bincount(sequence[end:], minlength=n_kinds) for end in ends], dtype=np.int64)

    @cached_property
    def steps(self) -> list[tuple[IntArray, IntArray]]:
        """For each kind, the uses that leave a device of it free, and those after it is taken."""
        index = {tuple(use): row for row, use in enumerate(self.uses.tolist())}
        steps = []
        for one in np.eye(self.uses.shape[1], dtype=np.int64):
            after = np.array([index.get(tuple(use), -1) for use in (self.uses + one).tolist()])
            free = np.flatnonzero(after >= 0)
            steps.append((free, after[free]))
        return steps


class _Table:
    """The least max-load from each cut on, on each use, and its first stage."""

    def __init__(self, fleet: Fleet, n_cuts: int, share: float, bound_s: float):
        self.fleet, self.bound_s = fleet, bound_s * (1 + ROUNDING)
        memory = fleet.costs.pipelined.problem.cluster.memory_bytes[fleet.kinds[0]]
        self.memory_bytes = memory * share / fleet.rounds
        self.used = fleet.uses.sum(axis=1)
        self.load_s = np.full((n_cuts, len(self.used)), np.inf)
        self.load_s[-1, 0] = 0.0
        self.chosen = np.full((n_cuts, len(self.used), 2), -1)  # kind and end of the first stage

    def put(self, start: int, ends: IntArray, sums: StageSums) -> None:
        """Tries all kinds for the stages from a cut to others."""
        costs = self.fleet.costs
        for kind, (free, after) in enumerate(self.fleet.steps):
            stage_s = costs.loads_s(sums, self.fleet.kinds[0][kind])
            needs = costs.memory_bytes(sums, self.used[free] + 1)
            worst_s = np.maximum(stage_s[:, None], self.load_s[ends[:, None], free])
            worst_s[(needs > self.memory_bytes[kind]) | (worst_s > self.bound_s)] = np.inf
            best = worst_s.argmin(axis=0)
            best_s = worst_s[best, np.arange(len(free))]
            better = best_s < self.load_s[start, after]
            self.load_s[start, after[better]] = best_s[better]
            self.chosen[start, after[better], 0] = kind
            self.chosen[start, after[better], 1] = ends[best[better]]


def least_max_load(
    fleet: Fleet, cuts: IntArray, memory_share: float, bound_s: float = np.inf
) -> StageSplit | None:
    """Finds the split of least max-load whose stages begin at given cuts; None where no split fits.

    Args:
        cuts: nodes that stages may begin or end at, ascending from 0 to n_nodes, int64 (n_cuts,).
        memory_share: share of each device's memory that stages can take.
        bound_s: greatest max-load.
    """
    costs, table = fleet.costs, _Table(fleet, len(cuts), memory_share, bound_s)
    before = np.arange(costs.n_nodes) < cuts[:, None]
    marks, used = costs.marks(before), table.used
    seconds = (before @ costs.per_node)[:, :-1].reshape(len(cuts), 2, -1).sum(axis=1)[:, fleet.kinds[0]]
    for start in range(len(cuts) - 2, -1, -1):
        spare = used[-1] - used > (start > 0)  # a device for this stage, and one for those before it
        near = (seconds[start + 1 :] - seconds[start]).min(axis=1) <= table.bound_s
        ends = start + 1 + np.flatnonzero(near & (table.load_s[start + 1 :, spare] < np.inf).any(axis=1))
        if len(ends):
            table.put(start, ends, costs.sums(marks[ends] - marks[start]))
    whole_s = np.where(np.isin(used, np.array(fleet.counts) * fleet.rounds), table.load_s[0], np.inf)
    use = int(np.lexsort((used, whole_s))[0])
    return _read(table, cuts, use) if whole_s[use] < np.inf else None


def _read(table: _Table, cuts: IntArray, use: int) -> StageSplit:
    """Reads the split on a use from the stages that were chosen."""
    fleet, load_s = table.fleet, float(table.load_s[0, use])
    of_kind: list[list[int]] = [[] for _ in table.memory_bytes]
    for device, kind in enumerate(fleet.kinds[1].tolist() * fleet.rounds):
        of_kind[kind].append(device % fleet.n_devices)
    first: list[int] = []
    devices: list[int] = []
    start = 0
    while start < len(cuts) - 1:
        kind, end = table.chosen[start, use].tolist()
        first.append(int(cuts[start]))
        devices.append(of_kind[kind].pop(0))
        free, after = fleet.steps[kind]
        start, use = end, int(free[after == use][0])
    return StageSplit(load_s, first, devices)
