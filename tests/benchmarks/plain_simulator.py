"""The simulator as one would write it in plain Python: lists, dictionaries and a heap of events.

It computes what `envs.simulator.kernels` does, for clusters that send one copy per destination and graphs
without source ops, in n log n. (The reference of the tests is quadratic, for the sake of clarity.)
"""

from __future__ import annotations

from heapq import heappop, heappush

from envs.problem import Problem
from envs.problem_arrays import N_CLOCKS

FINISH, ARRIVAL = 0, 1


class PlainSimulator:
    """Simulates one problem many times; all its arrays are lists, which plain Python reads fastest."""

    def __init__(self, problem: Problem) -> None:
        graph, cluster = problem.graph, problem.cluster
        assert cluster.transfer_per == "destination"
        assert not graph.is_source.any()
        self.n_devices, self.n_ops = problem.n_devices, graph.n_ops
        self.schedule = {"program": self._program, "fifo": self._fifo}[cluster.schedule]
        self.seconds = problem.op_seconds.tolist()
        self.inputs = [graph.inputs.row(op).tolist() for op in range(graph.n_ops)]
        self.outputs = [graph.outputs.row(op).tolist() for op in range(graph.n_ops)]
        self.consumers = [graph.consumers.row(tensor).tolist() for tensor in range(graph.n_tensors)]
        self.producer = graph.tensor_producer.tolist()
        self.bytes = graph.tensor_bytes.tolist()
        self.resident = graph.resident_bytes.tolist()
        self.bandwidth, self.latency = cluster.bytes_per_s.tolist(), cluster.latency_s.tolist()
        self.link = problem.arrays.link.tolist()
        self.n_clocks = int(problem.arrays.rules[N_CLOCKS])
        self.op_gap_s, self.transfer_gap_s = cluster.op_gap_s, cluster.transfer_gap_s

    def run(self, device_of: list[int], memory: bool) -> tuple[float, list[float]]:
        """Returns the step time in seconds and, with `memory`, peak bytes per device."""
        self.device_of = device_of
        self.start, self.finish = [0.0] * self.n_ops, [0.0] * self.n_ops
        self.sent: dict[tuple[int, int], float] = {}
        self.arrival: dict[tuple[int, int], float] = {}
        self.device_free, self.link_free = [0.0] * self.n_devices, [0.0] * self.n_clocks
        self.schedule()
        return max(self.finish), self._peaks() if memory else []

    def _send(self, tensor: int, source: int, target: int, ready_s: float) -> float:
        link = self.link[source][target]
        end = max(ready_s, self.link_free[link]) + self.bytes[tensor] / self.bandwidth[source][target]
        self.link_free[link] = end + self.transfer_gap_s
        self.sent[tensor, target] = end
        self.arrival[tensor, target] = end + self.latency[source][target]
        return self.arrival[tensor, target]

    def _execute(self, op: int, ready_s: float) -> float:
        device = self.device_of[op]
        seconds = self.seconds[op][device]
        start = max(ready_s, self.device_free[device])
        self.start[op], self.finish[op] = start, start + seconds
        self.device_free[device] = start + seconds + (self.op_gap_s if seconds > 0.0 else 0.0)
        return self.finish[op]

    def _program(self) -> None:
        for op, device in enumerate(self.device_of):
            ready = 0.0
            for tensor in self.inputs[op]:
                producer = self.producer[tensor]
                source = self.device_of[producer]
                if source == device:
                    at = self.finish[producer]
                elif (tensor, device) in self.arrival:
                    at = self.arrival[tensor, device]
                else:
                    at = self._send(tensor, source, device, self.finish[producer])
                ready = max(ready, at)
            self._execute(op, ready)

    def _fifo(self) -> None:
        missing = [len(tensors) for tensors in self.inputs]
        ready = [op for op in range(self.n_ops) if missing[op] == 0]
        events: list[tuple[float, int, int, int]] = []
        now = 0.0
        while ready or events:
            for op in sorted(ready):
                heappush(events, (self._execute(op, now), FINISH, op, self.device_of[op]))
            ready = []
            now = events[0][0]
            while events and events[0][0] == now:
                _, kind, what, device = heappop(events)
                for tensor in self.outputs[what] if kind == FINISH else (what,):
                    for reader in self.consumers[tensor]:
                        target = self.device_of[reader]
                        if target == device:
                            missing[reader] -= 1
                            if missing[reader] == 0:
                                ready.append(reader)
                        elif kind == FINISH and (tensor, target) not in self.sent:
                            heappush(
                                events, (self._send(tensor, device, target, now), ARRIVAL, tensor, target)
                            )

    def _peaks(self) -> list[float]:
        """Finds the greatest number of bytes held at once on each device."""
        events: list[tuple[float, float, int]] = []
        for tensor, producer in enumerate(self.producer):
            source, size = self.device_of[producer], self.bytes[tensor]
            until = {source: self.finish[producer]}
            for reader in self.consumers[tensor]:
                device = self.device_of[reader]
                until[device] = max(until.get(device, 0.0), self.finish[reader])
            until[source] = max(
                [until[source], *(self.sent[tensor, device] for device in until if device != source)]
            )
            for device, last in until.items():
                since = self.start[producer] if device == source else self.arrival[tensor, device]
                events += [(since, size, device), (last, -size, device)]
        held = [0.0] * self.n_devices
        for op, device in enumerate(self.device_of):
            held[device] += self.resident[op]
        peaks = held.copy()
        for _, change, device in sorted(events):
            held[device] += change
            peaks[device] = max(peaks[device], held[device])
        return peaks
