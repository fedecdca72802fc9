"""An episode in plain Python: what is placed, what is simulated, and what a decision changes and earns.

It defines both decision processes: after every decision, all numbers are computed anew from what is placed,
by the plain simulator. `observation` defines what is seen.
`tests/envs/placement/test_observation_reference.py` compares `envs.placement.transition` with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.problem import Problem
from graphs.op_graph import OpGraph
from tests.specification.simulator import simulate_plainly
from tests.specification.timeline import Link, Timeline, copy_start_s, link_of, simulate_part, transfer_s

OVERFLOW_PENALTY, INFEASIBLE_PENALTY = 1.0, 2.0


@dataclass
class Result:
    """How an episode ended; `step_time_s` is NaN where it was infeasible, -1 in `device_of` is not placed."""

    step_time_s: float
    fits: bool
    infeasible: bool
    device_of: list[int]


class ReferenceEpisode:
    """What both decision processes share; `Construct` and `Improve` say what they visit and simulate.

    Attributes:
        visits: ops in the order in which they are visited.
        position: visits that are done.
        device_of: device of each op, (n_ops,); -1 = not placed.
        simulated: the part of `device_of` that `timeline` simulates; -1 = absent.
        waiting_s: seconds of the copies of gradients that links carry when the updates run, after all else.
        last_device: where the last decision went, -1 before the first.
        footprint: bytes that each placement unit keeps for long, (n_units,).
        op_s: seconds of each op on each device, (n_ops, n_devices).
        single_device_s: step time of each device alone, (n_devices,).
        mean_op_s: mean of the times in `op_s` that are above 0, the unit of the features' times.
        scale_s: least of `single_device_s`, the unit of rewards.
        masks: whether only devices with free memory are offered.
        memory_penalty: factor of what running out of memory costs.
    """

    masks = True
    memory_penalty = 1.0

    def __init__(self, problem: Problem, visits: list[int], device_of: list[int]) -> None:
        self.problem, self.graph, self.cluster = problem, problem.graph, problem.cluster
        self.devices = range(problem.cluster.n_devices)
        self.visits, self.position, self.last_device = visits, 0, -1
        self.device_of, self.simulated = list(device_of), list(device_of)
        self.waiting_s: dict[Link, float] = {}
        self.done = self.infeasible = False
        self.footprint = footprints(self.graph)
        self.op_s: list[list[float]] = problem.op_seconds.tolist()
        above_0 = [seconds for row in self.op_s for seconds in row if seconds > 0]
        self.mean_op_s = float(np.mean(above_0)) if above_0 else 1.0
        self.single_device_s = [self.alone_s(device) for device in self.devices]
        self.scale_s = min(self.single_device_s) or 1.0
        self.simulate()

    @property
    def op(self) -> int:
        """The op at hand."""
        return self.visits[self.position]

    @property
    def time_s(self) -> float:
        """Step time of what is simulated."""
        return self.timeline.total_s

    def unit(self, op: int) -> list[int]:
        """Ops of an op's placement unit, itself included."""
        return [int(member) for member in self.graph.units.row(self.graph.unit_of[op])]

    def bytes_of(self, op: int) -> float:
        """Footprint of an op's placement unit."""
        return self.footprint[int(self.graph.unit_of[op])]

    def alone_s(self, device: int) -> float:
        """Step time with all ops on one device: they run one after the other with a gap between them.

        None starts before the host thread has issued it.
        """
        seconds = [row[device] for row in self.op_s if row[device] > 0]
        finish_s = 0.0
        for n_issued, each in enumerate(seconds, start=1):
            free_s = finish_s + self.cluster.op_gap_s if n_issued > 1 else 0.0
            n_turns = n_issued if self.cluster.issue_per == "op" else 1
            finish_s = max(free_s, n_turns * self.cluster.issue_s) + each
        return finish_s

    def load_bytes(self, device: int) -> float:
        """Footprint of all units placed on a device."""
        first_members = (int(row[0]) for row in map(self.graph.units.row, range(len(self.graph.units))))
        return sum(self.bytes_of(op) for op in first_members if self.device_of[op] == device)

    def busy_s(self, device: int) -> float:
        """Seconds of the ops on a device, which need not be simulated yet."""
        return sum(self.op_s[op][device] for op, where in enumerate(self.device_of) if where == device)

    def updates_s(self, device: int) -> float:
        """Seconds of the updates on a device that no visit is for; none while improving."""
        ops = [op for op, where in enumerate(self.device_of) if where == device]
        return sum(self.op_s[op][device] for op in ops if not self.graph.is_compute[op])

    def longest_unplaced(self) -> int | None:
        """An op of the longest unit that is not placed, by least times; the one at hand is left out."""
        units = [list(map(int, self.graph.units.row(unit))) for unit in range(len(self.graph.units))]
        waiting = [unit for unit in units if self.device_of[unit[0]] < 0 and self.op not in unit]
        return max(waiting, key=lambda unit: sum(min(self.op_s[op]) for op in unit))[0] if waiting else None

    def unit_s(self, op: int) -> list[float]:
        """Seconds that the ops of an op's unit take on each device, updates of its parameters included."""
        return [sum(self.op_s[member][device] for member in self.unit(op)) for device in self.devices]

    def gradient(self, op: int) -> tuple[int, float] | None:
        """The update of a parameter that reads the largest tensor that an op makes, and its bytes."""
        reads = [
            (-float(self.graph.tensor_bytes[tensor]), int(reader))
            for tensor in self.graph.outputs.row(op)
            for reader in self.graph.consumers.row(tensor)
            if not self.graph.is_compute[reader] and self.graph.tensor_bytes[tensor] > 0
        ]
        return (min(reads)[1], -min(reads)[0]) if reads and self.graph.is_compute[op] else None

    def update(self, op: int) -> tuple[int, float] | None:
        """The update that reads what an op makes, or a sum of as many bytes that it alone is added to."""
        if (own := self.gradient(op)) or not self.graph.is_compute[op]:
            return own
        outputs = [int(tensor) for tensor in self.graph.outputs.row(op)]
        readers = [int(reader) for tensor in outputs for reader in self.graph.consumers.row(tensor)]
        if len(outputs) != 1 or len(readers) != 1:
            return None
        goal = self.update(readers[0])
        return goal if goal and goal[1] == self.graph.tensor_bytes[outputs[0]] else None

    def waits(self, op: int) -> bool:
        """Whether an op is placed alone, and only an update, or such a sum for one, reads what it makes."""
        readers = [int(r) for t in self.graph.outputs.row(op) for r in self.graph.consumers.row(t)]
        if sum(map(self.graph.is_compute.__getitem__, self.unit(op))) != 1 or not self.update(op):
            return False
        if self.gradient(op):
            return not any(map(self.graph.is_compute.__getitem__, readers))
        return self.waits(readers[0])

    def tail_s(self, op: int) -> float:
        """The longest path of ops from an op to the end of the step, each at its least time."""
        readers = {int(r) for t in self.graph.outputs.row(op) for r in self.graph.consumers.row(t)}
        return max([self.tail_s(reader) + min(self.op_s[reader]) for reader in readers], default=0.0)

    def queue(self, op: int, device_of: list[int], waiting_s: dict[Link, float]) -> None:
        """Add the copy of an op's gradient to its update, if placed, to what its link has to carry."""
        if gradient := self.gradient(op):
            source, target = device_of[op], device_of[gradient[0]]
            if target >= 0 and (link := link_of(self.cluster, source, target)) is not None:
                copy_s = transfer_s(self.cluster, gradient[1], source, target)
                waiting_s[link] = waiting_s.get(link, 0.0) + copy_s

    def join(self, op: int) -> tuple[int, int] | None:
        """Output of an op and the tensor beside it in a reader, of which most bytes move if they are apart.

        The smaller one moves. Beside an output, a reader has its largest input from another op.
        """
        pairs = []
        for reader in filter(self.graph.is_compute.__getitem__, range(self.graph.n_ops)):
            read = [int(tensor) for tensor in self.graph.inputs.row(reader)]
            others = [tensor for tensor in read if self.graph.tensor_producer[tensor] != op]
            own = [tensor for tensor in read if tensor not in others and self.graph.is_compute[op]]
            size = self.graph.tensor_bytes.__getitem__
            if others:
                largest = max(others, key=size)
                pairs += [(min(size(tensor), size(largest)), tensor, largest) for tensor in own]
        pairs = [pair for pair in pairs if pair[0] > 0]
        return max(pairs, key=lambda pair: pair[0])[1:] if pairs else None

    def updated_s(
        self,
        op: int,
        device: int,
        finish_s: float,
        device_of: list[int],
        at: Timeline,
        waiting_s: dict[Link, float],
    ) -> float:
        """When the update that an op's output goes to would end, if its device were free.

        No visit is for an update. It is where the parameter is; where that is not placed, nothing is added.
        The output is sent when its link has carried all that was sent and all gradients that wait for it.
        """
        update, size_bytes = self.update(op) or (op, 0.0)
        target = device if update in self.unit(op) else device_of[update]
        if update == op or target < 0:
            return finish_s
        if target != device:
            if (link := link_of(self.cluster, device, target)) is not None:
                finish_s = max(finish_s, at.link_free_s.get(link, 0.0) + waiting_s.get(link, 0.0))
            finish_s = copy_start_s(self.cluster, at, finish_s, device, target)
            finish_s += transfer_s(self.cluster, size_bytes, device, target)
        return finish_s + self.op_s[update][target]

    def is_feasible(self, device: int) -> bool:
        """Whether the unit at hand may go to a device: it is there already, or its footprint fits."""
        stays = self.device_of[self.op] == device
        memory = self.cluster.devices[device].memory_bytes
        return stays or not self.masks or self.load_bytes(device) + self.bytes_of(self.op) <= memory

    def step(self, device: int) -> float:
        """Place the unit at hand on a device and go on to the next decision; returns the reward.

        The reward is minus what the decision adds to the simulated step time, over `scale_s`. A finished step
        that exceeds the memory of a device is penalized, and so is an op that no device has memory for.
        """
        before_s = self.time_s
        for member in self.unit(self.op):
            self.device_of[member] = device
        self.last_device = device
        self.advance()
        self.simulate()
        self.done = self.position == len(self.visits)
        reward = -(self.time_s - before_s) / self.scale_s
        if self.done:
            share = self.overflow(self.simulated)
            return reward - self.memory_penalty * (OVERFLOW_PENALTY + share if share > 0.0 else 0.0)
        if not any(map(self.is_feasible, self.devices)):
            self.done = self.infeasible = True
            return reward - self.memory_penalty * INFEASIBLE_PENALTY
        return reward

    def simulate(self) -> None:
        """Bring `timeline` up to date with `simulated`."""
        self.timeline = simulate_part(self.problem, self.simulated)

    def overflow(self, device_of: list[int]) -> float:
        """Share of the cluster's memory that a placement needs beyond what its devices have."""
        peaks = simulate_plainly(self.graph, self.cluster, device_of).peak_bytes
        memory = [device.memory_bytes for device in self.cluster.devices]
        return sum(max(peak - limit, 0.0) for peak, limit in zip(peaks, memory, strict=True)) / sum(memory)

    def advance(self) -> None:
        """Move `position` and `simulated` on after a decision."""
        raise NotImplementedError

    def with_op_on(self, device: int) -> list[int]:
        """What would be simulated with the op at hand on a device."""
        raise NotImplementedError

    def result(self) -> Result:
        """How the episode ended."""
        return Result(
            step_time_s=float("nan") if self.infeasible else self.time_s,
            fits=not self.infeasible and self.overflow(self.simulated) == 0.0,
            infeasible=self.infeasible,
            device_of=self.device_of,
        )


class Construct(ReferenceEpisode):
    """Places every unit once, at the first of its ops that is visited.

    An op is simulated from its visit on, and the source ops of its unit with it. Ops that are decided but not
    visited yet are absent, and so are the updates that no visit is for; the finished step has them all.
    """

    def __init__(self, problem: Problem, order: list[int]) -> None:
        super().__init__(problem, order, [-1] * problem.graph.n_ops)

    def advance(self) -> None:
        """Visit on to the next op without a device; after the last one, everything is simulated."""
        while self.position < len(self.visits) and self.device_of[self.op] >= 0:
            self.simulated = self.with_op_on(self.device_of[self.op])
            self.queue(self.op, self.device_of, self.waiting_s)
            self.position += 1
        if self.position == len(self.visits):
            self.simulated = list(self.device_of)

    def with_op_on(self, device: int) -> list[int]:
        """What is simulated, and the op at hand and its unit's source ops on the device."""
        simulated = list(self.simulated)
        for member in self.unit(self.op):
            if member == self.op or self.graph.is_source[member]:
                simulated[member] = device
        return simulated


class Improve(ReferenceEpisode):
    """Starts from a complete placement and may move each unit once a pass; all is simulated all the time.

    The result is the fastest placement seen that the footprints allow, the first one included.
    """

    def __init__(self, problem: Problem, order: list[int], passes: int, start: list[int]) -> None:
        first_visits: dict[int, int] = {}
        for op in order:
            first_visits.setdefault(int(problem.graph.unit_of[op]), op)
        super().__init__(problem, list(first_visits.values()) * passes, start)
        self.best: tuple[float, list[int]] | None = None
        self.keep_best()

    def step(self, device: int) -> float:
        """Move the unit at hand, or leave it where it is."""
        reward = super().step(device)
        self.keep_best()
        return reward

    def advance(self) -> None:
        """Go on to the next unit."""
        self.simulated = list(self.device_of)
        self.position += 1

    def with_op_on(self, device: int) -> list[int]:
        """The placement with the whole unit at hand on the device."""
        unit = self.unit(self.op)
        return [device if op in unit else where for op, where in enumerate(self.device_of)]

    def updates_s(self, device: int) -> float:
        """All updates are simulated: none waits."""
        return 0.0

    def keep_best(self) -> None:
        """Remember the placement if it is faster than the best one and no footprints exceed a device."""
        within = all(self.load_bytes(d) <= self.cluster.devices[d].memory_bytes for d in self.devices)
        if within and (self.best is None or self.time_s < self.best[0]):
            self.best = (self.time_s, list(self.device_of))

    def result(self) -> Result:
        """The best placement seen; the last one where the footprints allowed none."""
        if self.best is None:
            return super().result()
        time_s, device_of = self.best
        return Result(time_s, self.overflow(device_of) == 0.0, False, device_of)


def footprints(graph: OpGraph) -> list[float]:
    """Bytes that each placement unit keeps for long, (n_units,).

    These are the resident bytes of its ops, and the outputs that the backward pass reads again: tensors that
    a backward op reads, no backward op makes, and no resident bytes count already.
    """
    footprint = [0.0] * len(graph.units)
    for op in range(graph.n_ops):
        footprint[graph.unit_of[op]] += graph.resident_bytes[op]
    for tensor in range(graph.n_tensors):
        producer = int(graph.tensor_producer[tensor])
        read_again = any(graph.phases[reader] == "backward" for reader in graph.consumers.row(tensor))
        if read_again and graph.phases[producer] != "backward" and graph.tensor_owner[tensor] < 0:
            footprint[graph.unit_of[producer]] += graph.tensor_bytes[tensor]
    return footprint
