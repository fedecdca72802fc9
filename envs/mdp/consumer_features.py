"""The outlook: what a candidate device means for the consumers of the op at hand.

Arguments as in `envs.mdp.observation`: walk arrays, problem arrays, an episode, an op and a trial to fill in.
"""

from __future__ import annotations

import numpy as np

from envs.simulator.jit import kernel
from envs.simulator.transfers import transfer_seconds

LONGEST_CHAIN = 8
"""Ops that the outlook follows until one reads something that is placed."""


@kernel
def outlook(w, p, episode, op, trial):
    """Fill in what the outputs cost: to be sent, and to meet what their unplaced consumers read otherwise.

    Each of those consumers is thought to go where it fares best. To look one op beyond the one at hand is an
    idea of Bittencourt, Sakellariou and Madeira 2010 (doi:10.1109/PDP.2010.56).
    """
    n_devices, unit = len(p.memory), w.unit_of[op]
    for device in range(n_devices):
        trial.send_s[device] = trial.others_there[device] = trial.gather_s[device] = 0.0
        trial.onward_s[device] = trial.finish_s[device]
    others = 0.0
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        trial.reached[:] = False
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            consumer = p.consumer_item[j]
            target = episode.device_of[consumer]
            if target >= 0:
                if not trial.reached[target]:
                    trial.reached[target] = True
                    for device in range(n_devices):
                        trial.send_s[device] += transfer_seconds(p, p.size[tensor], device, target)
            elif w.unit_of[consumer] != unit:
                others += look_at_consumer(w, p, episode, consumer, tensor, unit, trial)
    least = np.inf
    for device in range(n_devices):
        least = min(least, trial.gather_s[device])
    for device in range(n_devices):
        trial.gather_s[device] -= least
        if others > 0.0:
            trial.others_there[device] /= others


@kernel
def look_at_consumer(w, p, episode, consumer, tensor, unit, trial):
    """Add what one unplaced consumer of a tensor needs besides; returns the placed bytes of that.

    Where it reads nothing placed besides, the bytes are those that the first op down its chain reads.
    """
    n_devices, timeline = len(p.memory), episode.timeline
    along, others = gather(w, p, episode, consumer, tensor, unit, trial)
    for device in range(n_devices):
        finish = np.inf
        for target in range(n_devices):
            sent = transfer_seconds(p, along, device, target)
            free = trial.finish_s[device] if target == device else timeline.device_free[target]
            start = max(trial.finish_s[device] + sent, free, trial.met_s[target])
            finish = min(finish, start + p.op_seconds[consumer, target])
        trial.onward_s[device] = max(trial.onward_s[device], finish)
    for _ in range(LONGEST_CHAIN):
        if others > 0.0 or p.output_ptr[consumer] == p.output_ptr[consumer + 1]:
            break
        tensor = p.output_item[p.output_ptr[consumer]]
        if p.consumer_ptr[tensor] == p.consumer_ptr[tensor + 1]:
            break
        consumer = p.consumer_item[p.consumer_ptr[tensor]]
        if episode.device_of[consumer] >= 0:
            break
        along, others = gather(w, p, episode, consumer, tensor, unit, trial)
    if others > 0.0:
        for device in range(n_devices):
            least = np.inf
            for target in range(n_devices):
                least = min(least, trial.moved_s[target] + transfer_seconds(p, along, device, target))
            trial.gather_s[device] += least
    return others


@kernel
def gather(w, p, episode, consumer, tensor, unit, trial):
    """See what else a consumer of a tensor reads.

    Fills `moved_s`, transfers to bring what is placed to a device, and `met_s`, when it would be there.

    Returns:
        Bytes of the tensor and of what goes along with it, as the unit decides for it; bytes that are placed.
    """
    n_devices, timeline = len(p.memory), episode.timeline
    trial.moved_s[:] = 0.0
    trial.met_s[:] = 0.0
    others, along = 0.0, p.size[tensor]
    for k in range(p.input_ptr[consumer], p.input_ptr[consumer + 1]):
        other = p.input_item[k]
        producer = p.producer[other]
        source = episode.device_of[producer]
        if other == tensor:
            continue
        if source < 0:
            along += p.size[other] if w.unit_of[producer] == unit else 0.0
            continue
        others += p.size[other]
        trial.others_there[source] += p.size[other]
        for device in range(n_devices):
            arrival = timeline.arrival[other * n_devices + device]
            if arrival < 0.0:
                seconds = transfer_seconds(p, p.size[other], source, device)
                trial.moved_s[device] += seconds
                arrival = timeline.finish[producer] + seconds
            trial.met_s[device] = max(trial.met_s[device], arrival)
    return along, others
