"""The dynamic programme: the least max-load of what lies beyond an ideal, on so many devices of each kind.

f(I, u) = min over ideals J that contain I, and over the devices d of the stage J \\ I, of
max(load(J \\ I, d), f(J, u - d)). It begins with the last stages, so that the number of devices after a
stage, which decides how many microbatches are alive in it, is known.

Source: Tarnawski et al. 2020, section 5; over the beginnings of a chain it is the programme of PipeDream
(Narayanan et al. 2019, section 3.1); with replicas and recomputation that of Piper (Tarnawski, Narayanan and
Phanishayee 2021), without tensor parallelism. Departures: devices of several kinds, and the replicas of a
stage are of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from agent.pipelines.dynamic.max_load import StageCosts, StageSums
from envs.problem import kinds
from graphs.limits import ROUNDING
from graphs.system.array_types import BoolArray, IntArray

MOST_USES = 1024
"""Numbers of devices of each kind that are told apart; beyond, the devices are used in their order."""


class StageChoice(NamedTuple):
    """The devices of a stage, and its way to compute."""

    kind: int  # of its devices
    replicas: int
    recomputes: bool


class StageSplit(NamedTuple):
    """A split of the nodes into stages.

    Attributes:
        max_load_s: load of the busiest stage, seconds per microbatch.
        stage_of: stage of each node, int64 (n_nodes,).
        devices: of each stage; several are replicas of it.
        recomputed: whether each stage computes its activations again in the backward pass.
    """

    max_load_s: float
    stage_of: IntArray
    devices: list[tuple[int, ...]]
    recomputed: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices that stages are put on, and the numbers of each kind that they can use.

    Devices are of one kind if they have the same times of all nodes, memory, and mean links.

    Attributes:
        costs: of the nodes.
        devices: in their order.
        counts: numbers of devices that a plan may use.
        rounds: stages that each device has; with more than one, all devices are used, in their order.
    """

    costs: StageCosts
    devices: tuple[int, ...]
    counts: tuple[int, ...]
    rounds: int = 1

    @cached_property
    def kinds(self) -> tuple[IntArray, IntArray]:
        """First device of each kind, int64 (n_kinds,), and kind of each device in order."""
        costs, memory = self.costs, self.costs.pipelined.problem.cluster.memory_bytes
        seconds = costs.per_node[:, :-2].reshape(-1, costs.pipelined.problem.n_devices)
        chosen, kind_of = kinds(np.vstack([seconds, memory, costs.mean_link_s.T])[:, list(self.devices)])
        return np.array(self.devices)[chosen], kind_of

    @cached_property
    def uses(self) -> IntArray:
        """Numbers of devices of each kind, int64 (n_uses, n_kinds); the last is the whole fleet."""
        sequence, n_kinds = np.tile(self.kinds[1], self.rounds), len(self.kinds[0])
        counts = np.bincount(sequence, minlength=n_kinds)
        if self.rounds == 1 and np.prod(counts + 1.0) <= MOST_USES:
            return np.array(list(product(*(range(count + 1) for count in counts))), dtype=np.int64)
        ends = range(len(sequence), -1, -1)
        return np.array([np.bincount(sequence[end:], minlength=n_kinds) for end in ends], dtype=np.int64)

    def steps(self, choice: StageChoice) -> tuple[IntArray, IntArray]:
        """Finds the uses that leave the devices of a choice free, and those after it takes them."""
        if choice not in self._steps:
            self._steps[choice] = self._find_steps(choice)
        return self._steps[choice]

    @cached_property
    def _steps(self) -> dict[StageChoice, tuple[IntArray, IntArray]]:
        return {}

    def _find_steps(self, choice: StageChoice) -> tuple[IntArray, IntArray]:
        index = {tuple(use): at for at, use in enumerate(self.uses.tolist())}
        more = self.uses.copy()
        more[:, choice.kind] += choice.replicas
        after = np.array([index.get(tuple(use), -1) for use in more.tolist()])
        rest = np.flatnonzero(after >= 0)
        return rest, after[rest]


class _Table:
    """The least max-load of what lies beyond each ideal on each use, and its first stage."""

    def __init__(self, fleet: Fleet, choices: list[StageChoice], n_ideals: int, share: float, bound_s: float):
        self.fleet, self.choices, self.bound_s = fleet, choices, bound_s * (1 + ROUNDING)
        memory = fleet.costs.pipelined.problem.cluster.memory_bytes[fleet.kinds[0]]
        self.memory_bytes = memory * share / fleet.rounds
        self.used = fleet.uses.sum(axis=1)
        self.load_s = np.full((n_ideals, len(self.used)), np.inf)
        self.load_s[-1, 0] = 0.0
        self.chosen = np.full((n_ideals, len(self.used), 2), -1)  # choice and end of the first stage

    def put(self, start: int, ends: IntArray, sums: StageSums) -> None:
        """Tries all choices for the stages from an ideal to others."""
        costs = self.fleet.costs
        for at, choice in enumerate(self.choices):
            rest, after = self.fleet.steps(choice)
            if not len(rest):
                continue
            device, (_, replicas, recomputes) = self.fleet.kinds[0][choice.kind], choice
            stage_s = costs.loads_s(sums, device, replicas, recomputes=recomputes)
            alive = costs.alive(self.used[rest] + replicas, replicas)
            needs = costs.memory_bytes(sums, alive, recomputes=recomputes)
            worst_s = np.maximum(stage_s[:, None], self.load_s[ends[:, None], rest])
            worst_s[(needs > self.memory_bytes[choice.kind]) | (worst_s > self.bound_s)] = np.inf
            best = worst_s.argmin(axis=0)
            found_s = worst_s[best, np.arange(len(rest))]
            better = found_s < self.load_s[start, after]
            self.load_s[start, after[better]] = found_s[better]
            self.chosen[start, after[better], 0] = at
            self.chosen[start, after[better], 1] = ends[best[better]]


def least_max_load(
    fleet: Fleet, choices: list[StageChoice], ideals: BoolArray, memory_share: float, bound_s: float = np.inf
) -> StageSplit | None:
    """Finds the split of least max-load whose stages end at given ideals; None where no split fits.

    Args:
        choices: for each stage.
        ideals: by size, the first empty, the last with all nodes, (n_ideals, n_nodes).
        memory_share: share of each device's memory that stages can take.
        bound_s: greatest max-load.
    """
    costs, table = fleet.costs, _Table(fleet, choices, len(ideals), memory_share, bound_s)
    marks, used = costs.marks(ideals), table.used
    seconds = (ideals @ costs.per_node)[:, :-2].reshape(len(ideals), 2, -1).sum(axis=1)[:, fleet.kinds[0]]
    most_s = table.bound_s * max(choice.replicas for choice in choices)
    for start in range(len(ideals) - 2, -1, -1):
        spare = used[-1] - used > (start > 0)  # a device for this stage, and one for those before it
        near = (seconds[start + 1 :] - seconds[start]).min(axis=1) <= most_s
        ends = start + 1 + np.flatnonzero(near & (table.load_s[start + 1 :, spare] < np.inf).any(axis=1))
        ends = ends[(ideals[ends] >= ideals[start]).all(axis=1)]
        if len(ends):
            table.put(start, ends, costs.sums(marks[ends] - marks[start]))
    whole_s = np.where(np.isin(used, np.array(fleet.counts) * fleet.rounds), table.load_s[0], np.inf)
    use = int(np.lexsort((used, whole_s))[0])
    return _read(table, ideals, use) if whole_s[use] < np.inf else None


def _read(table: _Table, ideals: BoolArray, use: int) -> StageSplit:
    """Reads the split on a use from the stages that were chosen."""
    fleet, choices, load_s = table.fleet, table.choices, float(table.load_s[0, use])
    of_kind: list[list[int]] = [[] for _ in table.memory_bytes]
    for device, kind in zip(fleet.devices * fleet.rounds, np.tile(fleet.kinds[1], fleet.rounds), strict=True):
        of_kind[kind].append(device)
    stage_of = np.zeros(ideals.shape[1], dtype=np.int64)
    devices: list[tuple[int, ...]] = []
    recomputed = []
    start = 0
    while start < len(ideals) - 1:
        at, end = table.chosen[start, use].tolist()
        kind, replicas, recomputes = choices[at]
        stage_of[ideals[end] & ~ideals[start]] = len(devices)
        devices.append(tuple(of_kind[kind][:replicas]))
        del of_kind[kind][:replicas]
        recomputed.append(recomputes)
        rest, after = fleet.steps(choices[at])
        start, use = end, int(rest[after == use][0])
    return StageSplit(load_s, stage_of, devices, tuple(recomputed))
