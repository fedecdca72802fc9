"""The pipelined step in plain Python, op by op and microbatch by microbatch.

It defines what `envs.pipeline.simulate` computes. `tests/envs/pipeline/test_pipelined_step.py` compares the
kernels with it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from envs.costs.op_seconds import op_seconds
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.schedules import BACKWARD, FORWARD, RECOMPUTE, WEIGHT, device_actions
from envs.pipeline.stages import Stages
from envs.problem import Problem
from graphs import build_graph

Instance = tuple[object, ...]
"""`("op", op, microbatch)`, `("again", op, microbatch)` for the second run of a recomputed op, or
`("add", tensor, microbatch)`. Parameters and updates have microbatch 0."""


@dataclass
class PlainStep:
    """The times of all instances."""

    start_s: dict[Instance, float] = field(default_factory=dict)
    finish_s: dict[Instance, float] = field(default_factory=dict)
    device_of: dict[Instance, int] = field(default_factory=dict)
    held: list[tuple[int, float, float, float]] = field(default_factory=list)
    """What devices hold for a while: device, since, until, bytes."""

    @property
    def total_s(self) -> float:
        return max(self.finish_s.values(), default=0.0)

    def peak_bytes(self, device: int, resident: float) -> float:
        """Bytes that a device holds at most; ends come before beginnings."""
        events = [(since, 1, size) for at, since, _, size in self.held if at == device]
        events += [(until, 0, -size) for at, _, until, size in self.held if at == device]
        peak = now = resident
        for _, _, change in sorted(events):
            now += change
            peak = max(peak, now)
        return peak


def plain_step(problem: Problem, pipeline: Pipeline, stages: Stages) -> PlainStep | None:
    """Simulates a step; None where devices wait for each other."""
    return _Plain(problem, pipeline, stages).run()


class _Plain:
    def __init__(self, problem: Problem, pipeline: Pipeline, stages: Stages) -> None:
        self.problem, self.pipeline, self.stages = problem, pipeline, stages
        graph = problem.graph
        self.graph = graph
        self.count = pipeline.microbatches
        self.readers = [graph.consumers.row(tensor).tolist() for tensor in range(graph.n_tensors)]
        self.phase = [
            "source" if source else phase
            for source, phase in zip(graph.is_source.tolist(), graph.phases, strict=True)
        ]
        self.device = stages.device_of.tolist()
        self.recomputed = self.find_recomputed()
        self.step = PlainStep()
        self.arrival: dict[tuple[Instance, int, int], float] = {}
        self.sent: dict[tuple[Instance, int, int], float] = {}
        self.link_free: dict[tuple[int, int], float] = defaultdict(float)
        self.host: dict[int, float] = defaultdict(float)
        self.free: dict[int, float] = defaultdict(float)

    def is_gradient(self, tensor: int) -> bool:
        maker = int(self.graph.tensor_producer[tensor])
        return self.phase[maker] == "backward" and any(
            self.phase[reader] == "optimizer" for reader in self.readers[tensor]
        )

    def sequences(self) -> dict[int, list[Instance]]:
        """All instances of each device in its order."""
        graph, stages = self.graph, self.stages
        waited = self.waited_for()
        sequences: dict[int, list[Instance]] = defaultdict(list)
        ranks = stages.ranks.tolist()
        of_device = device_actions(self.pipeline, len(ranks), stages.recomputed)
        for device, actions in zip(ranks, of_device, strict=True):
            done: set[int] = set()
            for action in actions:
                if action.kind == RECOMPUTE:
                    again = sorted(op for op in self.recomputed if stages.stage_of[op] == action.stage)
                    sequences[device] += [("again", op, action.microbatch) for op in again]
                    continue
                for op in range(graph.n_ops):
                    if stages.stage_of[op] != action.stage or self.kind(op, waited) != action.kind:
                        continue
                    sequences[device].append(("op", op, action.microbatch))
                    for tensor in graph.outputs.row(op).tolist():
                        if self.is_gradient(tensor) and tensor in done:
                            sequences[device].append(("add", tensor, action.microbatch))
                        done.add(tensor)
        for op in range(graph.n_ops):
            if self.phase[op] == "optimizer":
                sequences[self.device[op]].append(("op", op, 0))
        return sequences

    def home(self, tensor: int) -> int:
        """Device of the op that makes a tensor."""
        return self.device[int(self.graph.tensor_producer[tensor])]

    def kind(self, op: int, waited: set[int]) -> int:
        if self.phase[op] == "forward":
            return FORWARD
        return BACKWARD if not self.pipeline.splits_backward or op in waited else WEIGHT

    def waited_for(self) -> set[int]:
        """Backward ops that other stages wait for."""
        stage_of, found = self.stages.stage_of, set()
        backward = [op for op in range(self.graph.n_ops) if self.phase[op] == "backward"]
        for op in reversed(backward):
            for reader in self.graph.successors.row(op).tolist():
                if self.phase[reader] == "backward" and (reader in found or stage_of[reader] != stage_of[op]):
                    found.add(op)
        return found

    def find_recomputed(self) -> set[int]:
        """Forward ops of recomputed stages that backward ops of the same stage need, directly or not."""
        stage_of, found = self.stages.stage_of, set()
        for op in reversed(range(self.graph.n_ops)):
            if self.phase[op] == "forward" and stage_of[op] in self.stages.recomputed:
                for reader in self.graph.successors.row(op).tolist():
                    if stage_of[reader] == stage_of[op] and (
                        self.phase[reader] == "backward" or reader in found
                    ):
                        found.add(op)
        return found

    def instance(self, tensor: int, reader: Instance) -> Instance:
        """The instance that makes what a reader reads of a tensor."""
        maker, op = int(self.graph.tensor_producer[tensor]), int(str(reader[1]))
        if self.graph.op_types[maker] == "parameter" or self.phase[maker] == "optimizer":
            return ("op", maker, 0)
        if self.phase[op] == "optimizer":
            last = self.count - 1
            return ("add", tensor, last) if self.is_gradient(tensor) and last else ("op", maker, last)
        in_stage = self.stages.stage_of[op] == self.stages.stage_of[maker]
        if maker in self.recomputed and in_stage and (reader[0] == "again" or self.phase[op] == "backward"):
            return ("again", maker, reader[2])
        return ("op", maker, reader[2])

    def run(self) -> PlainStep | None:
        sequences = self.sequences()
        self.send_sources()
        position = dict.fromkeys(sequences, 0)
        moved = True
        while moved:
            moved = False
            for device, sequence in sequences.items():
                while position[device] < len(sequence) and self.try_run(device, sequence[position[device]]):
                    position[device] += 1
                    moved = True
        if any(position[device] < len(each) for device, each in sequences.items()):
            return None
        self.find_held()
        return self.step

    def send_sources(self) -> None:
        """Queues the copies of what exists at time 0, on an egress bus."""
        for number in range(self.count):
            for op in range(self.graph.n_ops):
                is_once = self.graph.op_types[op] == "parameter"
                if self.phase[op] == "source" and not (is_once and number):
                    self.send_outputs(("op", op, number))

    def send_outputs(self, made: Instance) -> None:
        """Queues the copies of what an instance makes behind all others of its device, on an egress bus."""
        if self.problem.cluster.sharing != "egress":
            return
        number = int(str(made[1]))
        for tensor in [number] if made[0] == "add" else self.graph.outputs.row(number).tolist():
            self.send_copies(made, tensor)

    def send_copies(self, made: Instance, tensor: int) -> None:
        made_s = self.made_s(made)
        assert made_s is not None
        instances = [(op, ("op", op, made[2])) for op in self.readers[tensor]]
        reads = {self.device[op] for op, reader in instances if self.instance(tensor, reader) == made}
        for target in sorted(reads - {self.home(tensor)}):
            self.copy(made, tensor, self.home(tensor), target, made_s)

    def find_held(self) -> None:
        """Holdings: from an op's start or a copy's arrival to the last use or the end of the last copy."""
        uses: dict[tuple[Instance, int, int], float] = defaultdict(float)
        for reader, finish in self.step.finish_s.items():
            device = self.step.device_of[reader]
            if reader[0] == "add":
                tensor, microbatch = int(str(reader[1])), int(str(reader[2]))
                maker: Instance = ("op", int(self.graph.tensor_producer[tensor]), microbatch)
                uses[maker, tensor, device] = max(uses[maker, tensor, device], finish)
                continue
            for tensor in self.graph.inputs.row(int(str(reader[1]))).tolist():
                read = self.instance(tensor, reader), tensor, device
                uses[read] = max(uses[read], finish)
        for tensor in range(self.graph.n_tensors):
            maker_op = int(self.graph.tensor_producer[tensor])
            once = self.graph.op_types[maker_op] == "parameter" or self.phase[maker_op] == "optimizer"
            for number in range(1 if once else self.count):
                self.hold(uses, tensor, ("op", maker_op, number))

    def hold(self, uses: dict[tuple[Instance, int, int], float], tensor: int, made: Instance) -> None:
        """Adds what is held of an instance of a tensor, on its device and as copies."""
        home, size = self.home(tensor), float(self.graph.tensor_bytes[tensor])
        owner = int(self.graph.tensor_owner[tensor])
        owned_on = self.device[owner] if owner >= 0 else -1
        whole = [made]
        since, until = self.step.start_s.get(made, 0.0), self.step.finish_s.get(made, 0.0)
        if self.is_gradient(tensor) and made[2] == 0 and self.count > 1:
            whole.append(("add", tensor, self.count - 1))
        for each in whole:
            until = max(until, uses[each, tensor, home])
            for key in self.sent:
                if key[:2] == (each, tensor):
                    until = max(until, self.sent[key])
                    if key[2] != owned_on:
                        arrival_s, use_s = self.arrival[each, tensor, key[2]], uses[each, tensor, key[2]]
                        self.step.held.append((key[2], arrival_s, use_s, size))
        if home != owned_on:
            self.step.held.append((home, since, until, size))
        second: Instance = ("again", *made[1:])
        if second in self.step.start_s:
            until = max(self.step.finish_s[second], uses[second, tensor, home])
            self.step.held.append((home, self.step.start_s[second], until, size))

    def made_s(self, maker: Instance) -> float | None:
        if maker[0] == "op" and self.phase[int(str(maker[1]))] == "source":
            return 0.0
        return self.step.finish_s.get(maker)

    def try_run(self, device: int, instance: Instance) -> bool:
        cluster = self.problem.cluster
        ready = 0.0
        if instance[0] != "add":
            for tensor in self.graph.inputs.row(int(str(instance[1]))).tolist():
                maker, home = self.instance(tensor, instance), self.home(tensor)
                made = self.made_s(maker)
                if made is None:
                    return False
                if home != device:
                    made = self.copy(maker, tensor, home, device, made)
                ready = max(ready, made)
        seconds = self.seconds(instance, device)
        start = max(ready, self.free[device])
        if seconds > 0:
            start = max(start, self.host[device] + cluster.issue_s)
            self.host[device] += cluster.issue_s if cluster.issue_per == "op" else 0.0
        self.step.start_s[instance] = start
        self.step.finish_s[instance] = start + seconds
        self.step.device_of[instance] = device
        self.free[device] = start + seconds + (cluster.op_gap_s if seconds > 0 else 0.0)
        self.send_outputs(instance)
        return True

    def copy(self, maker: Instance, tensor: int, source: int, target: int, made: float) -> float:
        """When the copy of a tensor is there; it is sent once, to one device or, `per_tensor`, to all."""
        cluster, key = self.problem.cluster, (maker, tensor, target)
        is_bus = cluster.sharing == "egress"
        to_all = is_bus and cluster.transfer_per == "tensor"
        if key not in self.arrival:
            sent_s = next((end for copy, end in self.sent.items() if copy[:2] == key[:2]), None)
            end = sent_s if to_all and sent_s is not None else None
            if end is None:
                issuer = source if is_bus else target
                start = max(made, self.host[issuer] + cluster.issue_s if cluster.issue_s else 0.0)
                if cluster.issue_per == "op":
                    self.host[issuer] += cluster.issue_s
                link = (source, -1 if is_bus else target)
                if cluster.sharing != "none":
                    start = max(start, self.link_free[link])
                others = [each for each in range(cluster.n_devices) if each != source] if to_all else [target]
                size = float(self.graph.tensor_bytes[tensor])
                size += float(cluster.n_half_matrix[source, others].max())
                end = start + size / float(cluster.bytes_per_s[source, others].min())
                self.link_free[link] = end + cluster.transfer_gap_s
            self.sent[key] = end
            self.arrival[key] = end + float(cluster.latency_s[source, target])
        return self.arrival[key]

    def seconds(self, instance: Instance, device: int) -> float:
        if instance[0] != "add":
            return float(self.problem.op_seconds[int(str(instance[1])), device])
        size = float(self.graph.tensor_bytes[int(str(instance[1]))])
        add = {"name": "add", "type": "aten.add.Tensor", "bytes_moved": 3 * size}
        return float(op_seconds(build_graph("add", "add", [add], []), self.problem.cluster)[0, device])
