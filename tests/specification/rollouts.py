"""The truncated rollout in plain Python: where a candidate leads if a simple rule places the ops after it.

The rollout works on copies of what the episode holds. It goes on from the last simulation as if the ops came
after it, whatever the cluster's schedule: devices run them in the order of their visits, and an input that is
not on an op's device is sent when the op is placed, behind what its link already carries.

It defines what `envs.placement.observation.rollout_features` computes, as a part of `observation`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from tests.specification.episode import ReferenceEpisode
from tests.specification.timeline import copy_start_s, link_of, sends_once, transfer_s


def horizons(n_visits: int) -> dict[str, int]:
    """Decisions after which the step is looked at in an episode of some visits, that at hand included.

    A horizon ends where the next op is due that is not placed. The far one includes what is left then of the
    ops of decided units; to that of the path, ops that only updates wait for are left out.
    """
    far = 64 if n_visits <= 1_500 else 32
    return {"near": 8, "path": far // 2, "far": far}


@dataclass
class Reached:
    """Step time after some decisions, the mean finish of the ops visited in the rollout, and when the last
    device would have run the updates of all that is placed; seconds."""

    time_s: float
    mean_finish_s: float
    drained_s: float


class Rollout:
    """The op at hand on a device, and the next decisions by the rule.

    Ops whose unit is decided already run where it is; any other unit is decided at the first of its ops. The
    op at hand goes to its device even where that lacks the memory.
    """

    def __init__(self, episode: ReferenceEpisode, first_device: int, *, of_path: bool = False) -> None:
        self.episode, self.graph, self.cluster = episode, episode.graph, episode.cluster
        self.timeline = copy.deepcopy(episode.timeline)
        self.device_of = list(episode.device_of)
        self.load_bytes = [episode.load_bytes(device) for device in episode.devices]
        self.after_decision: list[Reached] = []
        self.waiting_s = dict(episode.waiting_s)
        time_s, finishes = episode.time_s, []
        last = horizons(len(episode.visits))["path" if of_path else "far"]
        for op in episode.visits[episode.position :]:
            if self.device_of[op] < 0:
                if len(self.after_decision) == last and of_path:
                    break
                if len(self.after_decision) == last or (of_path and op != episode.op and episode.waits(op)):
                    continue
                self.after_decision.append(Reached(time_s, 0.0, 0.0))
                self.place(op, first_device if op == episode.op else self.best_device(op))
            finishes.append(self.run(op))
            end_s = self.updated_s(op, self.device_of[op], finishes[-1])
            episode.queue(op, self.device_of, self.waiting_s)
            time_s = max(time_s, end_s, finishes[-1] + episode.tail_s(op))
            mean_s = sum(finishes) / len(finishes)
            self.after_decision[-1] = Reached(self.least_step_s(op, time_s), mean_s, self.drained_s())

    def after(self, horizon: int) -> Reached:
        """What is reached after some decisions, or at the end of the episode if that comes first."""
        return self.after_decision[min(horizon, len(self.after_decision)) - 1]

    def least_step_s(self, last: int, time_s: float) -> float:
        """The least that the step can be, as each op after the last one must start, run, and be followed.

        Of the ops that would make the step longer if they began when all devices are free, the 64 that have
        most after them count. In other orders than the program's none does.
        """
        episode, free_s = self.episode, max(self.timeline.device_free_s)
        end_s = {op: episode.tail_s(op) + min(episode.op_s[op]) for op in episode.visits if op > last}
        late = sorted((-end_s[op], op) for op in end_s if free_s + end_s[op] > time_s)[:64]
        in_order = episode.visits == sorted(episode.visits)
        return max([time_s, *(self.earliest_s(op) + end_s[op] for _, op in late if in_order)])

    def earliest_s(self, op: int) -> float:
        """When an op to come could start on some device, if each copy that it needs were issued next."""
        return min(
            max(
                [self.timeline.device_free_s[device]]
                + [self.there_s(tensor, source, device) for tensor, source in self.placed_inputs(op)]
            )
            for device in self.episode.devices
        )

    def drained_s(self) -> float:
        """When the last device would have run the updates placed on it, that no visit is for."""
        until_s = list(self.timeline.device_free_s)
        for op, device in enumerate(self.device_of):
            if device >= 0 and not self.graph.is_compute[op]:
                until_s[device] += self.episode.op_s[op][device]
        return max(until_s)

    def place(self, op: int, device: int) -> None:
        """Decide the unit of an op."""
        for member in self.episode.unit(op):
            self.device_of[member] = device
        self.load_bytes[device] += self.episode.bytes_of(op)

    def run(self, op: int) -> float:
        """Run an op after everything else on its device; returns its finish."""
        timeline, device = self.timeline, self.device_of[op]
        ready_s = max([self.receive(tensor, device) for tensor, _ in self.placed_inputs(op)], default=0.0)
        seconds = self.episode.op_s[op][device]
        start_s = self.start_s(op, device, ready_s)
        timeline.host_free_s += self.next_issue_s if seconds > 0.0 else 0.0
        timeline.finish_s[op] = self.slowed_finish_s(op, device, start_s)
        timeline.late_s[device] = 0.0
        gap_s = self.cluster.op_gap_s if seconds > 0.0 else 0.0
        timeline.device_free_s[device] = timeline.finish_s[op] + gap_s
        return timeline.finish_s[op]

    def receive(self, tensor: int, device: int) -> float:
        """When a tensor is on a device; sends it there if that was not done."""
        timeline, source = self.timeline, self.device_of[self.graph.tensor_producer[tensor]]
        if source == device:
            return self.made_s(tensor)
        if (tensor, device) not in timeline.arrival_s:
            if not (sends_once(self.cluster) and (tensor, device) in timeline.sent_s):
                self.send(tensor, source, device)
            latency_s = float(self.cluster.latency_s[source, device])
            timeline.arrival_s[tensor, device] = timeline.sent_s[tensor, device] + latency_s
        return timeline.arrival_s[tensor, device]

    def send(self, tensor: int, source: int, device: int) -> None:
        """Put a transfer on its link; one to all devices goes at the speed of the slowest link."""
        timeline, link = self.timeline, link_of(self.cluster, source, device)
        others = [target for target in self.episode.devices if target != source]
        targets = others if sends_once(self.cluster) else [device]
        rate = min(float(self.cluster.bytes_per_s[source, target]) for target in targets)
        n_half = max(float(self.cluster.n_half_matrix[source, target]) for target in targets)
        begin_s = copy_start_s(self.cluster, timeline, self.made_s(tensor), source, device)
        timeline.host_free_s += self.next_issue_s
        end_s = begin_s + (float(self.graph.tensor_bytes[tensor]) + n_half) / rate
        for end in (source, device):
            beside_s = min(end_s, timeline.device_free_s[end]) - max(begin_s, timeline.copies_end_s[end])
            timeline.late_s[end] += max(beside_s, 0.0) * self.lost_share(end)
            timeline.copies_end_s[end] = max(timeline.copies_end_s[end], end_s)
        if link is not None:
            timeline.link_free_s[link] = end_s + self.cluster.transfer_gap_s
        if self.cluster.copies == "eager":
            arrival_s = end_s + float(self.cluster.latency_s[source, device])
            timeline.device_free_s[source] = timeline.device_free_s[device] = arrival_s
        for target in targets:
            timeline.sent_s[tensor, target] = end_s

    def best_device(self, op: int) -> int:
        """The rule: of few devices, the one where what the op makes is of use first; the first of these if
        they tie.

        The few are the devices of the op's placed inputs, that of the update that its output goes to or
        else of what is read beside it, and the device where the op would finish first without inputs. Only
        devices with memory for the unit count. If none has it, memory is ignored and the few are the
        devices of the inputs alone; without placed inputs it is the first device of all.
        """
        devices, needed = self.episode.devices, self.episode.bytes_of(op)
        memory = [device.memory_bytes for device in self.cluster.devices]
        roomy = [device for device in devices if self.load_bytes[device] + needed <= memory[device]]
        few = {source for _, source in self.placed_inputs(op) if source in roomy or not roomy}
        if roomy:
            few.add(min(roomy, key=lambda device: self.free_and_run_s(op, device)))
            update, join = self.episode.update(op), self.episode.join(op)
            follower = update[0] if update else self.producer(join[1]) if join else op
            few |= {self.device_of[follower]} & {*roomy}
        return min(sorted(few), key=lambda device: self.use_s(op, device), default=0)

    def use_s(self, op: int, device: int) -> float:
        """When what an op makes on a device is of use, plus a quarter of the seconds of all copies for it,
        plus an eighth of those for which the device waits until it starts.

        That is when the update that it goes to ends. If there is none, it is a quarter of the finish and
        three quarters of the time at which it and what is read beside it are in one place: the smaller one
        moves.
        """
        finish_s, copies_s = self.finish_s(op, device), self.copies_s(op, device)
        waits_s = (self.begin_s(op, device) - self.timeline.device_free_s[device]) / 8
        join = self.episode.join(op)
        if update := self.episode.update(op):
            target = device if update[0] in self.episode.unit(op) else self.device_of[update[0]]
            copies_s += transfer_s(self.cluster, update[1], device, target) if target >= 0 else 0.0
            return self.updated_s(op, device, finish_s) + copies_s / 4 + waits_s
        if join is None or (where := self.device_of[self.producer(join[1])]) < 0:
            return finish_s + copies_s / 4 + waits_s
        own_s, other_s = finish_s, self.made_s(join[1])
        if where != device:
            own_bytes, other_bytes = (float(self.graph.tensor_bytes[tensor]) for tensor in join)
            if own_bytes <= other_bytes:
                moved_s = transfer_s(self.cluster, own_bytes, device, where)
                own_s += moved_s
            else:
                moved_s = transfer_s(self.cluster, other_bytes, where, device)
                other_s += moved_s
            copies_s += moved_s
        return finish_s / 4 + 3 / 4 * max(own_s, other_s) + copies_s / 4 + waits_s

    def updated_s(self, op: int, device: int, finish_s: float) -> float:
        """When the update that an op's output goes to would end, as far as the rollout knows."""
        now = self.device_of, self.timeline, self.waiting_s
        return self.episode.updated_s(op, device, finish_s, *now)

    def copies_s(self, op: int, device: int) -> float:
        """Seconds of the copies of inputs that are not on a device and were not sent there."""
        return sum(
            transfer_s(self.cluster, float(self.graph.tensor_bytes[tensor]), source, device)
            for tensor, source in self.placed_inputs(op)
            if source != device and (tensor, device) not in self.timeline.arrival_s
        )

    def producer(self, tensor: int) -> int:
        """The op that makes a tensor."""
        return int(self.graph.tensor_producer[tensor])

    def free_and_run_s(self, op: int, device: int) -> float:
        """Finish of an op on a device if its inputs were there."""
        return self.slowed_finish_s(op, device, self.start_s(op, device, 0.0))

    def finish_s(self, op: int, device: int) -> float:
        """Finish of an op on a device if each copy that it needs, and it itself, were issued next."""
        return self.slowed_finish_s(op, device, self.begin_s(op, device))

    def begin_s(self, op: int, device: int) -> float:
        """Start of an op on a device if each copy that it needs, and it itself, were issued next."""
        there_s = [self.there_s(tensor, source, device) for tensor, source in self.placed_inputs(op)]
        return self.start_s(op, device, max(there_s, default=0.0))

    def there_s(self, tensor: int, source: int, device: int) -> float:
        """When a tensor is on a device, if a copy that it needs were issued next."""
        if source == device:
            return self.made_s(tensor)
        if (tensor, device) in self.timeline.arrival_s:
            return self.timeline.arrival_s[tensor, device]
        begin_s = copy_start_s(self.cluster, self.timeline, self.made_s(tensor), source, device)
        size = float(self.graph.tensor_bytes[tensor])
        return begin_s + transfer_s(self.cluster, size, source, device)

    def start_s(self, op: int, device: int, ready_s: float) -> float:
        """Start of an op that is issued next; one that takes no time need not be issued."""
        takes_time = self.episode.op_s[op][device] > 0.0
        issued_s = self.timeline.host_free_s + self.cluster.issue_s if takes_time else 0.0
        return max(ready_s, issued_s, self.timeline.device_free_s[device] + self.timeline.late_s[device])

    def slowed_finish_s(self, op: int, device: int, start_s: float) -> float:
        """Finish of an op that is slowed until the copies from and to its device end."""
        seconds, slowdown = self.episode.op_s[op][device], self.cluster.devices[device].overlap_slowdown
        beside_s = max(self.timeline.copies_end_s[device] - start_s, 0.0)
        return start_s + min(slowdown * seconds, seconds + beside_s * self.lost_share(device))

    def lost_share(self, device: int) -> float:
        """Share of its time that a device loses while a copy runs."""
        return 1.0 - 1.0 / self.cluster.devices[device].overlap_slowdown

    @property
    def next_issue_s(self) -> float:
        """Seconds that the host thread needs for each further op or copy; none if all are issued at once."""
        return self.cluster.issue_s if self.cluster.issue_per == "op" else 0.0

    def placed_inputs(self, op: int) -> list[tuple[int, int]]:
        """Tensors that an op reads from placed ops, and the devices of those."""
        inputs = [int(tensor) for tensor in self.graph.inputs.row(op)]
        sources = [self.device_of[self.graph.tensor_producer[tensor]] for tensor in inputs]
        return [(tensor, source) for tensor, source in zip(inputs, sources, strict=True) if source >= 0]

    def made_s(self, tensor: int) -> float:
        """Finish of a tensor's producer, 0 where it is placed but did not run yet."""
        return self.timeline.finish_s.get(int(self.graph.tensor_producer[tensor]), 0.0)
