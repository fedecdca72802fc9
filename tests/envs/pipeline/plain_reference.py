"""The pipelined step in plain Python, op by op and microbatch by microbatch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from envs.costs.op_seconds import op_seconds
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.schedules import BACKWARD, FORWARD, RECOMPUTE, WEIGHT, Action, device_actions
from envs.pipeline.stages import Stages
from envs.problem import Problem
from graphs import build_graph

Instance = tuple[object, ...]
"""`("op", op, microbatch)`, `("again", op, microbatch)` for the second run of a recomputed op,
`("add", tensor, microbatch)`, or `("reduced", device, 0)` for the all-reduce of the stage of a device.
Parameters have microbatch 0, and updates the number of their replica."""


@dataclass
class PlainStep:
    """The times of all instances."""

    start_s: dict[Instance, float] = field(default_factory=dict)
    finish_s: dict[Instance, float] = field(default_factory=dict)
    device_of: dict[Instance, int] = field(default_factory=dict)
    reduced_s: dict[int, float] = field(default_factory=dict)
    """End of the all-reduce of each stage that has replicas, by its first device."""
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
        groups = stages.replicas or [(device,) for device in set(stages.devices.tolist())]
        self.replicas = {device: (device,) for device in range(problem.n_devices)}
        self.replicas |= {group[0]: tuple(group) for group in groups}
        self.waiting: dict[int, set[int]] = defaultdict(set)
        self.recomputed = self.find_recomputed()
        self.step = PlainStep()
        self.arrival: dict[tuple[Instance, int, int], float] = {}
        self.sent: dict[tuple[Instance, int, int, int], float] = {}
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
        counts = tuple(len(self.replicas[head]) for head in ranks)
        devices = [device for head in ranks for device in self.replicas[head]]
        of_device = [self.spelled(stage, word) for stage, word in enumerate(stages.actions)] or (
            device_actions(self.pipeline, len(ranks), stages.recomputed, counts)
        )
        for device, actions in zip(devices, of_device, strict=True):
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
        for head, group in self.replicas.items():
            sums = [t for t in range(graph.n_tensors) if self.is_gradient(t) and self.home(t) == head]
            for number, device in enumerate(group):
                if sums and len(group) > 1:
                    sequences[device].append(("reduced", head, 0))
                for op in range(graph.n_ops):
                    if self.phase[op] == "optimizer" and self.device[op] == head:
                        sequences[device].append(("op", op, number))
        return sequences

    def spelled(self, stage: int, word: str) -> list[Action]:
        """The actions of a stage that has an order of its own."""
        kinds = {"F": [FORWARD], "W": [WEIGHT]}
        backward = [RECOMPUTE, BACKWARD] if stage in self.stages.recomputed else [BACKWARD]
        return [
            Action(kind, stage, word[:at].count(letter))
            for at, letter in enumerate(word)
            for kind in kinds.get(letter, backward)
        ]

    def splits(self, op: int) -> bool:
        words = self.stages.actions
        return "W" in words[self.stages.stage_of[op]] if words else self.pipeline.splits_backward

    def home(self, tensor: int) -> int:
        """First device of the stage that makes a tensor."""
        return self.device[int(self.graph.tensor_producer[tensor])]

    def kind(self, op: int, waited: set[int]) -> int:
        if self.phase[op] == "forward":
            return FORWARD
        return BACKWARD if not self.splits(op) or op in waited else WEIGHT

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

    def instance(self, tensor: int, reader: Instance, device: int) -> tuple[Instance, int]:
        """The instance that makes what a reader on a device reads of a tensor, and the device of it."""
        maker, op = int(self.graph.tensor_producer[tensor]), int(str(reader[1]))
        microbatch = int(str(reader[2]))
        group = self.replicas[self.home(tensor)]
        n = len(group)
        if self.graph.op_types[maker] == "parameter":
            return ("op", maker, 0), device if device in group else group[0]
        last = self.count - 1
        if device in group:
            last -= (last - group.index(device)) % n
        if self.phase[maker] == "optimizer":
            return ("op", maker, last % n), group[last % n]
        if self.phase[op] == "optimizer":
            if self.is_gradient(tensor) and device not in group and n > 1:
                return ("reduced", group[0], 0), group[last % n]
            is_sum = self.is_gradient(tensor) and last >= n
            return ("add", tensor, last) if is_sum else ("op", maker, last), group[last % n]
        in_stage = self.stages.stage_of[op] == self.stages.stage_of[maker]
        if maker in self.recomputed and in_stage and (reader[0] == "again" or self.phase[op] == "backward"):
            return ("again", maker, microbatch), device
        return ("op", maker, microbatch), group[microbatch % n]

    def run(self) -> PlainStep | None:
        sequences = self.sequences()
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
                read = self.instance(tensor, reader, device)[0], tensor, device
                uses[read] = max(uses[read], finish)
        for tensor in range(self.graph.n_tensors):
            group = self.replicas[self.home(tensor)]
            maker_op = int(self.graph.tensor_producer[tensor])
            is_parameter = self.graph.op_types[maker_op] == "parameter"
            once = is_parameter or self.phase[maker_op] == "optimizer"
            for number in range(len(group) if once else self.count):
                self.hold(uses, tensor, ("op", maker_op, 0 if is_parameter else number), number)

    def hold(
        self, uses: dict[tuple[Instance, int, int], float], tensor: int, made: Instance, number: int
    ) -> None:
        """Adds what is held of an instance of a tensor, on the device of a replica and as copies."""
        group, size = self.replicas[self.home(tensor)], float(self.graph.tensor_bytes[tensor])
        home = group[number % len(group)]
        owner = int(self.graph.tensor_owner[tensor])
        owned_on = self.replicas[self.device[owner]] if owner >= 0 else ()
        whole = [made]
        since, until = self.step.start_s.get(made, 0.0), self.step.finish_s.get(made, 0.0)
        if self.is_gradient(tensor) and number < len(group):
            whole += [("add", tensor, m) for m in range(number + len(group), self.count, len(group))][-1:]
            if len(group) > 1:
                until = max(until, self.step.reduced_s[group[0]])
                whole.append(("reduced", group[0], 0))
        for each in whole:
            until = max(until, uses[each, tensor, home])
            for key in self.sent:
                if key[:2] == (each, tensor) and key[3] == home:
                    until = max(until, self.sent[key])
                    if key[2] not in owned_on:
                        arrival_s, use_s = self.arrival[each, tensor, key[2]], uses[each, tensor, key[2]]
                        self.step.held.append((key[2], arrival_s, use_s, size))
        if home not in owned_on:
            self.step.held.append((home, since, until, size))
        second: Instance = ("again", *made[1:])
        if second in self.step.start_s:
            until = max(self.step.finish_s[second], uses[second, tensor, home])
            self.step.held.append((home, self.step.start_s[second], until, size))

    def made_s(self, maker: Instance) -> float | None:
        if maker[0] == "reduced":
            return self.step.reduced_s.get(int(str(maker[1])))
        if maker[0] == "op" and self.phase[int(str(maker[1]))] == "source":
            return 0.0
        return self.step.finish_s.get(maker)

    def all_reduce(self, device: int, head: int) -> bool:
        """Ends when all replicas have come here, and the gradients went twice round the ring."""
        cluster, group = self.problem.cluster, self.replicas[head]
        self.waiting[head].add(device)
        if len(self.waiting[head]) < len(group):
            return False
        if head not in self.step.reduced_s:
            tensors = [t for t in range(self.graph.n_tensors) if self.is_gradient(t) and self.home(t) == head]
            size = sum(float(self.graph.tensor_bytes[tensor]) for tensor in tensors) / len(group)
            rounds = []
            for one, other in zip(group, group[1:] + group[:1], strict=True):
                sent = size + float(cluster.n_half_matrix[one, other])
                rounds.append(
                    sent / float(cluster.bytes_per_s[one, other]) + float(cluster.latency_s[one, other])
                )
            round_s = max(rounds) + cluster.transfer_gap_s
            start = max(self.free[member] for member in group)
            self.step.reduced_s[head] = start + 2 * (len(group) - 1) * round_s
        self.free[device] = max(self.free[device], self.step.reduced_s[head])
        return True

    def try_run(self, device: int, instance: Instance) -> bool:
        if instance[0] == "reduced":
            return self.all_reduce(device, int(str(instance[1])))
        cluster = self.problem.cluster
        ready = 0.0
        if instance[0] != "add":
            for tensor in self.graph.inputs.row(int(str(instance[1]))).tolist():
                maker, home = self.instance(tensor, instance, device)
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
        return True

    def copy(self, maker: Instance, tensor: int, source: int, target: int, made: float) -> float:
        """When the copy of a tensor is there; it is sent once."""
        cluster, key = self.problem.cluster, (maker, tensor, target)
        if key not in self.arrival:
            start = max(made, self.host[target] + cluster.issue_s if cluster.issue_s else 0.0)
            if cluster.issue_per == "op":
                self.host[target] += cluster.issue_s
            if cluster.sharing == "pair":
                start = max(start, self.link_free[source, target])
            size = float(self.graph.tensor_bytes[tensor]) + float(cluster.n_half_matrix[source, target])
            end = start + size / float(cluster.bytes_per_s[source, target])
            self.link_free[source, target] = end + cluster.transfer_gap_s
            self.sent[*key, source] = end
            self.arrival[key] = end + float(cluster.latency_s[source, target])
        return self.arrival[key]

    def seconds(self, instance: Instance, device: int) -> float:
        if instance[0] != "add":
            return float(self.problem.op_seconds[int(str(instance[1])), device])
        size = float(self.graph.tensor_bytes[int(str(instance[1]))])
        add = {"name": "add", "type": "aten.add.Tensor", "bytes_moved": 3 * size}
        return float(op_seconds(build_graph("add", "add", [add], []), self.problem.cluster)[0, device])
