"""The published Placeto simulator's rules in plain Python, with the order of equal times as a parameter.

Times are microseconds. Rules: Addanki et al. 2019, the simulator published with it. An op of non-zero cost
keeps its device 5.7 us longer, a transfer its sender's bus 25 us; one transfer of an output serves all other
devices. At one instant inputs arrive before buses start before devices start. What remains is a tie:

- `PUBLISHED`: inputs arrive in the order of (producer, consumer), what so becomes ready first runs first, and
  what waits for nothing is ready in the order of the file.
- `PROGRAM_ORDER`, as in `envs`: an instant passes in rounds, and what became ready in one of them runs in
  program order; an op of no time ends one round after it starts.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

BYTES_PER_US, OP_GAP_US, TRANSFER_GAP_US = 7600.0, 5.7, 25.0
ARRIVE, SEND, RUN = range(3)
PUBLISHED, PROGRAM_ORDER = "published", "program order"


@dataclass(frozen=True)
class PlacetoGraph:
    """Nodes in the order of the source; edges are pairs of indices."""

    node_ids: list[int]
    cost_us: list[int]
    output_bytes: list[int]
    edges: list[tuple[int, int]]

    @cached_property
    def readers(self) -> list[list[int]]:
        """Consumers of each node."""
        readers: list[list[int]] = [[] for _ in self.node_ids]
        for producer, reader in self.edges:
            readers[producer].append(reader)
        return readers

    @cached_property
    def n_inputs(self) -> list[int]:
        """Number of producers of each node."""
        counts = np.bincount([reader for _, reader in self.edges], minlength=len(self.node_ids))
        return [int(count) for count in counts]

    @cached_property
    def program_order(self) -> list[int]:
        """The topological order that takes the least node number first."""
        missing = self.n_inputs.copy()
        ready = [(self.node_ids[node], node) for node, count in enumerate(missing) if count == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            order.append(heapq.heappop(ready)[1])
            for reader in self.readers[order[-1]]:
                missing[reader] -= 1
                if missing[reader] == 0:
                    heapq.heappush(ready, (self.node_ids[reader], reader))
        return order


@dataclass
class PlacetoStep:
    """One simulated step; run it with `simulate`."""

    graph: PlacetoGraph
    device_of: list[int]
    n_devices: int
    ties: str
    start_us: list[float] = field(default_factory=list)
    run_time_us: float = 0.0

    def simulate(self) -> PlacetoStep:
        """Process all events."""
        graph, nodes = self.graph, range(len(self.graph.node_ids))
        self.rank = {node: at for at, node in enumerate(graph.program_order)}
        self.readers, self.missing = graph.readers, graph.n_inputs.copy()
        self.start_us = [0.0 for _ in nodes]
        self.events: list[tuple[float, int, int, tuple[int, ...]]] = []
        self.lined_up: list[list[tuple[float, int, int, int]]] = [[] for _ in range(self.n_devices)]
        self.sends: list[list[tuple[float, int, int, list[int]]]] = [[] for _ in range(self.n_devices)]
        self.active: set[tuple[int, int]] = set()
        self.n_ready = 0
        for node in [node for node in nodes if self.missing[node] == 0]:
            self.line_up(0.0, 0, node)
        handle = {ARRIVE: self.arrive, SEND: self.send, RUN: self.run}
        while self.events:
            at, turn, kind, what = heapq.heappop(self.events)
            self.run_time_us = max(self.run_time_us, at)
            handle[kind](at, turn, *what[-2:])
        return self

    def wake(self, kind: int, at: float, turn: int, device: int) -> None:
        if (kind, device) not in self.active:
            self.active.add((kind, device))
            heapq.heappush(self.events, (at, turn, kind, (0, device)))

    def line_up(self, at: float, turn: int, node: int) -> None:
        self.n_ready += 1
        place = self.n_ready if self.ties == PUBLISHED else self.rank[node]
        heapq.heappush(self.lined_up[self.device_of[node]], (at, turn, place, node))
        self.wake(RUN, at, turn, self.device_of[node])

    def arrive(self, at: float, turn: int, _: int, reader: int) -> None:
        self.missing[reader] -= 1
        if self.missing[reader] == 0:
            self.line_up(at, turn, reader)

    def announce(self, at: float, turn: int, node: int, readers: list[int]) -> None:
        ids = self.graph.node_ids
        for reader in readers:
            heapq.heappush(self.events, (at, turn, ARRIVE, (ids[node], ids[reader], node, reader)))

    def run(self, at: float, turn: int, _: int, device: int) -> None:
        if not self.lined_up[device]:
            self.active.discard((RUN, device))
            return
        node = heapq.heappop(self.lined_up[device])[-1]
        cost = self.graph.cost_us[node]
        end = at + cost
        self.start_us[node] = at
        turn = turn + 1 if cost == 0 and self.ties == PROGRAM_ORDER else 0
        heapq.heappush(self.events, (end + (OP_GAP_US if cost else 0.0), turn, RUN, (0, device)))
        self.announce(end, turn, node, [r for r in self.readers[node] if self.device_of[r] == device])
        remote = [reader for reader in self.readers[node] if self.device_of[reader] != device]
        if remote:
            self.sends[device].append((end, turn, node, remote))
            self.wake(SEND, end, turn, device)

    def send(self, at: float, turn: int, _: int, device: int) -> None:
        if not self.sends[device]:
            self.active.discard((SEND, device))
            return
        ready, ready_turn, node, readers = self.sends[device][0]
        if ready > at:
            heapq.heappush(self.events, (ready, ready_turn, SEND, (0, device)))
            return
        self.sends[device].pop(0)
        there = at + self.graph.output_bytes[node] / BYTES_PER_US
        self.announce(there, turn if there == at else 0, node, readers)
        heapq.heappush(self.events, (there + TRANSFER_GAP_US, 0, SEND, (0, device)))

    @property
    def last_op_end_us(self) -> float:
        """When the last op ends."""
        return max(start + cost for start, cost in zip(self.start_us, self.graph.cost_us, strict=True))


def peak_bytes(graph: PlacetoGraph, device_of: list[int], n_devices: int, start_us: list[float]) -> list[int]:
    """Peak bytes per device by Placeto's own rule, from when each node starts.

    An output is held by its producer only, from the producer's start until 1 us before the last consumer's
    end, in whole microseconds; at equal times what is taken comes before what is given back.
    """
    until = list(start_us)
    for producer, reader in graph.edges:
        until[producer] = max(until[producer], int(start_us[reader]) + graph.cost_us[reader] - 1)
    held, peak = [0] * n_devices, [0] * n_devices
    changes = [(start, 0, node) for node, start in enumerate(start_us)]
    changes += [(end, 1, node) for node, end in enumerate(until)]
    for _, given_back, node in sorted(changes):
        size, device = graph.output_bytes[node], device_of[node]
        held[device] += -size if given_back else size
        peak[device] = max(peak[device], held[device])
    return peak
