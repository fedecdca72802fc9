"""What the policy sees, in plain Python.

It defines the observation. `tests/envs/placement/test_observation_reference.py` compares
`envs.placement.observation.observe` with it.

For the op at hand the policy sees whether its placement unit may go to each device (the mask), and 32
features of each device, named as in `observation/features.py`. `observe` puts them together; each
group of features is one function below. A few rules hold for all of them:

* Times are in mean op times and squashed by `in_op_times`, all but "step_time".
* "Over the least" and "over the earliest" mean: minus the least value among the candidate devices.
* What devices, links and copies do is taken from the last simulation, `ReferenceEpisode.timeline`. In
  `construct` it holds the visited ops and not the op at hand; in `improve` it holds all ops, the op at hand
  where it is now. That the environment simulates some orders incrementally makes no difference.
* An op is placed once its unit is decided. It may be placed before it is visited and so simulated: then its
  device is known, but none of its outputs has been sent, and its finish counts as 0.
* In `improve` the other ops of the unit at hand count as neighbours that stay where they are now, although
  they move along; only the simulation of a candidate moves them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.specification.consumers import Reader, reader_of_something_placed
from tests.specification.episode import Improve, ReferenceEpisode
from tests.specification.rollouts import Reached, Rollout, horizons
from tests.specification.timeline import link_of, simulate_part, transfer_s

Column = list[float]
"""One value per device."""


@dataclass
class Observation:
    """The op at hand, the devices it may go to (n_devices,), and every feature by its name."""

    op: int
    mask: list[bool]
    features: dict[str, Column]


@dataclass
class Candidate:
    """What a simulation with the op at hand on one device gives, in seconds from the start of the step.

    `ready_s` is when the op's inputs are there, 0 where it has none.
    """

    total_s: float
    start_s: float
    finish_s: float
    ready_s: float


def observe(episode: ReferenceEpisode) -> Observation:
    """Everything the policy sees before a decision."""
    candidates = [simulate_with_op_on(episode, device) for device in episode.devices]
    return Observation(
        op=episode.op,
        mask=[episode.is_feasible(device) for device in episode.devices],
        features={
            **simulated_features(episode, candidates),
            **timeline_features(episode, candidates),
            **neighbour_features(episode),
            **state_features(episode),
            **consumer_features(episode, candidates),
            **rollout_features(episode),
        },
    )


def squash(x: float) -> float:
    """sign(x) log(1 + |x|)."""
    return math.copysign(math.log1p(abs(x)), x)


def in_op_times(episode: ReferenceEpisode, seconds: Column) -> Column:
    """Seconds as the policy sees them: in mean op times, squashed."""
    return [squash(each / episode.mean_op_s) for each in seconds]


def over_least(column: Column) -> Column:
    """How far each value is above the least."""
    return [each - min(column) for each in column]


def simulate_with_op_on(episode: ReferenceEpisode, device: int) -> Candidate:
    """Simulate what the step so far becomes with the op at hand on a device.

    In `construct` the source ops of its unit come along, in `improve` its whole unit.
    """
    graph, op, device_of = episode.graph, episode.op, episode.with_op_on(device)
    timeline = simulate_part(episode.problem, device_of)
    ready_s = 0.0
    for tensor in graph.inputs.row(op):
        producer = int(graph.tensor_producer[tensor])
        if device_of[producer] == device:
            ready_s = max(ready_s, timeline.finish_s[producer])
        elif device_of[producer] >= 0:
            ready_s = max(ready_s, timeline.arrival_s[tensor, device])
    return Candidate(timeline.total_s, timeline.start_s[op], timeline.finish_s[op], ready_s)


def simulated_features(episode: ReferenceEpisode, candidates: list[Candidate]) -> dict[str, Column]:
    """What the op at hand does to the simulated step, and when it runs there.

    A step with it does not end before the update that its output goes to, nor is it shorter than a device is
    busy with the units placed on it, or would be with the longest unit to come where that is busy least:
    updates of parameters are simulated at the end of an episode only.
    """
    total_s = [candidate.total_s for candidate in candidates]
    if not isinstance(episode, Improve):
        busy_s, unit_s = [episode.busy_s(device) for device in episode.devices], episode.unit_s(episode.op)
        now = episode.device_of, episode.timeline, episode.waiting_s
        ends_s = [episode.updated_s(episode.op, at, candidates[at].finish_s, *now) for at in episode.devices]
        total_s = [max(total_s[at], *busy_s, busy_s[at] + unit_s[at], ends_s[at]) for at in episode.devices]
        if (longest := episode.longest_unplaced()) is not None:
            more_s = [busy + more for busy, more in zip(busy_s, episode.unit_s(longest), strict=True)]
            for at in episode.devices:
                with_it_s = [more_s[d] + (unit_s[d] if d == at else 0.0) for d in episode.devices]
                total_s[at] = max(total_s[at], min(with_it_s))
    start_s = [candidate.start_s for candidate in candidates]
    finish_s = [candidate.finish_s for candidate in candidates]
    ready_s = [candidate.ready_s for candidate in candidates]
    beyond_s = [total_s[device] - candidates[device].finish_s for device in episode.devices]
    growth_s = [each - episode.time_s for each in total_s]
    return {
        "step_time_over_least": in_op_times(episode, over_least(total_s)),
        "step_time_growth": in_op_times(episode, growth_s),
        "start_over_earliest": in_op_times(episode, over_least(start_s)),
        "finish_over_earliest": in_op_times(episode, over_least(finish_s)),
        "inputs_ready_over_earliest": in_op_times(episode, over_least(ready_s)),
        "step_time_beyond_finish": in_op_times(episode, beyond_s),
    }


def timeline_features(episode: ReferenceEpisode, candidates: list[Candidate]) -> dict[str, Column]:
    """What devices and links were doing in the last simulation, without the candidates.

    "Idle so far" is how long a device has been free when the simulated step ends, not the sum of its pauses;
    an op gap can make it negative. Of several outgoing links, the one that is busy longest counts; where
    transfers do not wait for each other, none is busy.
    """
    device_free_s = episode.timeline.device_free_s
    earliest_s = min(candidate.start_s for candidate in candidates)
    links_free_s = [links_free_at(episode, device) for device in episode.devices]
    busy_s = [max(free_s - earliest_s, 0.0) for free_s in links_free_s]
    idle_s = [episode.time_s - free_s for free_s in device_free_s]
    return {
        "device_free_over_earliest": in_op_times(episode, over_least(device_free_s)),
        "link_busy_beyond_start": in_op_times(episode, busy_s),
        "idle_time": in_op_times(episode, idle_s),
        "step_time": [min(episode.time_s / episode.scale_s, 1000.0)] * len(device_free_s),
    }


def links_free_at(episode: ReferenceEpisode, device: int) -> float:
    """When the last of a device's outgoing links is free."""
    links = {link_of(episode.cluster, device, target) for target in episode.devices if target != device}
    return max((episode.timeline.link_free_s.get(link, 0.0) for link in links), default=0.0)


def neighbour_features(episode: ReferenceEpisode) -> dict[str, Column]:
    """Where the bytes are that the op reads, and where those are read that it makes.

    An input is on the device of its producer, and where a simulated op has received a copy of it. Any other
    device needs a transfer, even if one transfer serves all devices and was made already. An output counts
    once for each placed consumer.
    """
    graph, op = episode.graph, episode.op
    there, pending_s = [0.0 for _ in episode.devices], [0.0 for _ in episode.devices]
    for tensor in graph.inputs.row(op):
        source = episode.device_of[graph.tensor_producer[tensor]]
        for device in episode.devices:
            if source == device or (source >= 0 and (tensor, device) in episode.timeline.arrival_s):
                there[device] += graph.tensor_bytes[tensor]
            elif source >= 0:
                pending_s[device] += transfer_s(episode.cluster, graph.tensor_bytes[tensor], source, device)
    placed_bytes = sum(
        graph.tensor_bytes[tensor]
        for tensor in graph.inputs.row(op)
        if episode.device_of[graph.tensor_producer[tensor]] >= 0
    )
    read = [0.0 for _ in episode.devices]
    for tensor in graph.outputs.row(op):
        for consumer in graph.consumers.row(tensor):
            if episode.device_of[consumer] >= 0:
                read[episode.device_of[consumer]] += graph.tensor_bytes[tensor]
    return {
        "input_bytes_there": shares(there, placed_bytes),
        "output_bytes_there": shares(read, sum(read)),
        "input_transfer_time": in_op_times(episode, pending_s),
    }


def shares(column: Column, total: float) -> Column:
    """Each value over a total; zeros where there is nothing to share."""
    return [each / total if total > 0.0 else 0.0 for each in column]


def state_features(episode: ReferenceEpisode) -> dict[str, Column]:
    """What needs neither a simulation of the op nor its neighbours.

    Load is the seconds that the ops of the units on a device take, and the time of the op at hand is that of
    its unit; both with the updates of parameters. Headroom is the memory that would be left after the op's
    unit came, as a share of the device's; at least -1.
    """
    op, now, devices = episode.op, episode.device_of[episode.op], episode.devices
    busy_s = [episode.busy_s(device) for device in devices]
    mean_s = sum(busy_s) / len(busy_s)
    memory = [device.memory_bytes for device in episode.cluster.devices]
    incoming = [0.0 if device == now else episode.bytes_of(op) for device in devices]
    left = [memory[device] - episode.load_bytes(device) - incoming[device] for device in devices]
    slowness = [alone_s / episode.scale_s for alone_s in episode.single_device_s]
    free_s = episode.timeline.device_free_s
    drained_s = [free_s[device] + episode.updates_s(device) for device in devices]
    return {
        "drained_over_earliest": in_op_times(episode, over_least(drained_s)),
        "load_over_mean": [each / mean_s - 1.0 if mean_s > 0.0 else 0.0 for each in busy_s],
        "free_memory": [max(left[device] / memory[device], -1.0) for device in devices],
        "op_time_over_least": in_op_times(episode, over_least(episode.unit_s(op))),
        "op_time": in_op_times(episode, episode.unit_s(op)),
        "is_current_device": [float(device == now) for device in devices],
        "is_last_device": [float(device == episode.last_device) for device in devices],
        "slowness": [squash(each - 1.0) for each in slowness],
        "visits_done": [episode.position / len(episode.visits) for _ in devices],
    }


def consumer_features(episode: ReferenceEpisode, candidates: list[Candidate]) -> dict[str, Column]:
    """What a candidate means for the consumers of the op at hand, each of them where it fares best.

    Each output is sent once to each device with placed consumers. Each unplaced consumer of another unit is
    looked at as a `Reader`, once for each output that it reads: where would it finish first, and which
    transfers bring the output and its placed inputs together? If it has no placed inputs, the second question
    goes to the first op down its chain that has some. To look one op beyond the one at hand is an idea of
    Bittencourt, Sakellariou and Madeira 2010 (doi:10.1109/PDP.2010.56).
    """
    graph, op, devices = episode.graph, episode.op, episode.devices
    send_s, meet_s = [0.0 for _ in devices], [0.0 for _ in devices]
    last_s = [candidate.finish_s for candidate in candidates]
    others = [0.0 for _ in devices]
    for tensor in map(int, graph.outputs.row(op)):
        consumers = [int(consumer) for consumer in graph.consumers.row(tensor)]
        targets = {episode.device_of[consumer] for consumer in consumers} - {-1}
        for device in devices:
            for target in sorted(targets):
                send_s[device] += transfer_s(episode.cluster, graph.tensor_bytes[tensor], device, target)
        for consumer in consumers:
            if episode.device_of[consumer] >= 0 or graph.unit_of[consumer] == graph.unit_of[op]:
                continue
            first = Reader(episode, consumer, tensor)
            meeting = reader_of_something_placed(episode, first)
            for device, candidate in enumerate(candidates):
                finish_s = first.finish_at_best(candidate.finish_s, device)
                last_s[device] = max(last_s[device], finish_s)
                if meeting is not None:
                    meet_s[device] += meeting.transfers_at_best(device)
                    others[device] += meeting.bytes_on[device]
    return {
        "output_transfer_time": in_op_times(episode, send_s),
        "consumer_input_bytes_there": shares(others, sum(others)),
        "consumer_transfer_time_over_least": in_op_times(episode, over_least(meet_s)),
        "consumer_finish_over_earliest": in_op_times(episode, over_least(last_s)),
    }


def rollout_features(episode: ReferenceEpisode) -> dict[str, Column]:
    """What the next ops make of each candidate, if a simple rule places them; zeros while improving."""
    features: dict[str, Column] = {}
    nothing = [Reached(time_s=0.0, mean_finish_s=0.0, drained_s=0.0) for _ in episode.devices]
    improving = isinstance(episode, Improve)
    for horizon, n_decisions in horizons(len(episode.visits)).items():
        of_path, devices = horizon == "path", () if improving else episode.devices
        rollouts = [Rollout(episode, device, of_path=of_path) for device in devices]
        reached = [rollout.after(n_decisions) for rollout in rollouts] or nothing
        time_s = over_least([each.time_s for each in reached])
        finish_s = over_least([each.mean_finish_s for each in reached])
        features[f"rollout_step_time_{horizon}_over_least"] = in_op_times(episode, time_s)
        features[f"rollout_mean_finish_{horizon}_over_least"] = in_op_times(episode, finish_s)
        drained_s = over_least([each.drained_s for each in reached])
        features[f"rollout_drained_{horizon}_over_least"] = in_op_times(episode, drained_s)
    return features
