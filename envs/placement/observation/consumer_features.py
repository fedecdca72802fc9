"""The consumer features: what a candidate device means for the consumers of the op at hand.

Each consumer that is not placed yet is assumed to go where it fares best. Looking one op beyond the one at
hand is an idea of Bittencourt, Sakellariou and Madeira 2010 (doi:10.1109/PDP.2010.56).

The kernels write those arrays of `CandidateScratch` that their docstrings name. `unit` is that of the op at
hand, and `tensor` what a consumer reads from it.
"""

from __future__ import annotations

import numpy as np

from envs.simulator.transfers import transfer_seconds
from graphs.system.jit import kernel

MAX_CHAIN_OPS = 8
"""Ops down a chain of consumers that are searched for one that reads something placed."""


@kernel
def fill_consumer_features(m, p, episode, op, scratch):
    """Evaluates what the outputs of an op cost its consumers if it runs on each candidate device.

    Args:
        scratch: `output_transfer_s`, `consumer_inputs_there`, `consumer_transfer_s` (over the least) and
            `consumer_finish_s` are written; `transfer_to_s`, `others_ready_s` and `is_sent_to` are scratch.
    """
    n_devices, unit = len(p.memory), m.unit_of[op]
    for device in range(n_devices):
        scratch.output_transfer_s[device] = scratch.consumer_inputs_there[device] = 0.0
        scratch.consumer_transfer_s[device] = 0.0
        scratch.consumer_finish_s[device] = scratch.finish_s[device]
    placed_bytes = 0.0
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        scratch.is_sent_to[:] = False
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            consumer = p.consumer_item[j]
            target = episode.device_of[consumer]
            if target >= 0:
                if not scratch.is_sent_to[target]:
                    scratch.is_sent_to[target] = True
                    for device in range(n_devices):
                        scratch.output_transfer_s[device] += transfer_seconds(
                            p, p.size[tensor], device, target
                        )
            elif m.unit_of[consumer] != unit:
                placed_bytes += add_unplaced_consumer(m, p, episode, consumer, tensor, unit, scratch)
    least_s = np.inf
    for device in range(n_devices):
        least_s = min(least_s, scratch.consumer_transfer_s[device])
    for device in range(n_devices):
        scratch.consumer_transfer_s[device] -= least_s
        if placed_bytes > 0.0:
            scratch.consumer_inputs_there[device] /= placed_bytes


@kernel
def add_unplaced_consumer(m, p, episode, consumer, tensor, unit, scratch):
    """Adds what one unplaced consumer of a tensor needs besides that tensor.

    Where all else that it reads is unplaced, the first op down its chain that reads something placed stands
    for it.

    Args:
        scratch: `consumer_finish_s`, `consumer_transfer_s` and `consumer_inputs_there` are written.

    Returns:
        Bytes of placed tensors that are read besides.
    """
    n_devices = len(p.memory)
    sent_bytes, placed_bytes = fill_other_inputs(m, p, episode, consumer, tensor, unit, scratch)
    update_consumer_finish(p, episode, consumer, sent_bytes, scratch)
    for _ in range(MAX_CHAIN_OPS):
        if placed_bytes > 0.0 or p.output_ptr[consumer] == p.output_ptr[consumer + 1]:
            break
        tensor = p.output_item[p.output_ptr[consumer]]
        if p.consumer_ptr[tensor] == p.consumer_ptr[tensor + 1]:
            break
        consumer = p.consumer_item[p.consumer_ptr[tensor]]
        if episode.device_of[consumer] >= 0:
            break
        sent_bytes, placed_bytes = fill_other_inputs(m, p, episode, consumer, tensor, unit, scratch)
    if placed_bytes > 0.0:
        for device in range(n_devices):
            least_s = np.inf
            for target in range(n_devices):
                sent_s = transfer_seconds(p, sent_bytes, device, target)
                least_s = min(least_s, scratch.transfer_to_s[target] + sent_s)
            scratch.consumer_transfer_s[device] += least_s
    return placed_bytes


@kernel
def update_consumer_finish(p, episode, consumer, sent_bytes, scratch):
    """Raises `consumer_finish_s` of each candidate to the earliest finish of one consumer on any device.

    Args:
        sent_bytes: bytes that the consumer reads from the candidate device, float.
    """
    n_devices, timeline = len(p.memory), episode.timeline
    for device in range(n_devices):
        finish = np.inf
        for target in range(n_devices):
            sent_s = transfer_seconds(p, sent_bytes, device, target)
            free = scratch.finish_s[device] if target == device else timeline.free[target]
            start = max(scratch.finish_s[device] + sent_s, free, scratch.others_ready_s[target])
            finish = min(finish, start + p.op_seconds[consumer, target])
        scratch.consumer_finish_s[device] = max(scratch.consumer_finish_s[device], finish)


@kernel
def fill_other_inputs(m, p, episode, consumer, tensor, unit, scratch):
    """Finds what a consumer reads besides a tensor, and when that can be on each device.

    What the unit makes besides the tensor goes along with it.

    Args:
        scratch: `transfer_to_s`, seconds of transfers that bring the placed inputs to each device,
            `others_ready_s`, when they would be there, and `consumer_inputs_there`, to which their bytes are
            added; written.

    Returns:
        Bytes of the tensor and of what goes along with it; bytes of the other inputs that are placed.
    """
    n_devices, timeline = len(p.memory), episode.timeline
    scratch.transfer_to_s[:] = 0.0
    scratch.others_ready_s[:] = 0.0
    placed_bytes, sent_bytes = 0.0, p.size[tensor]
    for k in range(p.input_ptr[consumer], p.input_ptr[consumer + 1]):
        other = p.input_item[k]
        producer = p.producer[other]
        source = episode.device_of[producer]
        if other == tensor:
            continue
        if source < 0:
            sent_bytes += p.size[other] if m.unit_of[producer] == unit else 0.0
            continue
        placed_bytes += p.size[other]
        scratch.consumer_inputs_there[source] += p.size[other]
        for device in range(n_devices):
            arrival = timeline.arrival[other * n_devices + device]
            if arrival < 0.0:
                seconds = transfer_seconds(p, p.size[other], source, device)
                scratch.transfer_to_s[device] += seconds
                arrival = timeline.finish[producer] + seconds
            scratch.others_ready_s[device] = max(scratch.others_ready_s[device], arrival)
    return sent_bytes, placed_bytes
