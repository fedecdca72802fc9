"""The observation of a piece at hand from the simulated candidates: columns, and which have free memory.

The kernels share the arguments of `envs.mdp.pipeline_lookahead`.
"""

from __future__ import annotations

import numpy as np

from envs.mdp.features import FEATURE_BOUND
from envs.mdp.observation import (
    DEVICE_FREE_OVER_EARLIEST,
    FINISH_OVER_EARLIEST,
    FREE_MEMORY,
    IDLE_TIME,
    INPUT_BYTES_THERE,
    INPUT_TRANSFER_TIME,
    INPUTS_READY_OVER_EARLIEST,
    IS_LAST_DEVICE,
    LINK_BUSY_BEYOND_START,
    LOAD_OVER_MEAN,
    OP_TIME,
    OP_TIME_OVER_LEAST,
    OUTPUT_BYTES_THERE,
    OUTPUT_TRANSFER_TIME,
    ROLLOUT_STEP_TIME,
    SLOWNESS,
    START_OVER_EARLIEST,
    STEP_TIME,
    STEP_TIME_BEYOND_FINISH,
    STEP_TIME_GROWTH,
    STEP_TIME_OVER_LEAST,
    VISITS_DONE,
    squash,
)
from envs.mdp.pipeline_state import ALL_ALIVE, LAST_ACTION, MICROBATCHES, N_STAGES, PIECE
from envs.mdp.state import MEAN_OP_S, REWARD_S
from envs.simulator.transfers import transfer_seconds
from graphs.system.jit import kernel

ROLLOUT_BOTTLENECK = ROLLOUT_STEP_TIME[0]
"""Column of the largest load if the pieces that are left are shared out by speed."""


@kernel
def stage_there(episode, device):
    """Returns the stage that a device would have: the last one or a new one; -1 for those of earlier stages.

    Args:
        episode: `PipelineEpisode`.
        device: index, int.
    """
    n_stages = episode.state[N_STAGES]
    for stage in range(n_stages):
        if episode.devices[stage] == device:
            return stage if stage == n_stages - 1 else -1
    return n_stages


@kernel
def held_with(m, episode, stage):
    """Returns the bytes of a microbatch that a stage keeps more with the piece at hand.

    Args:
        m: of the problem.
        episode: `PipelineEpisode`.
        stage: the last one or a new one, int.
    """
    piece, total = episode.state[PIECE], 0.0
    first = episode.first[stage] if stage < episode.state[N_STAGES] else piece
    for k in range(m.held_ptr[piece], m.held_ptr[piece + 1]):
        if m.held_from[k] >= first:
            total += m.held_bytes[k]
    return total


@kernel
def least_bytes(m, episode, stage, n_stages, held):
    """Returns the bytes that a stage holds at least when its first backward action begins.

    Args:
        m: of the problem.
        episode: `PipelineEpisode`.
        stage, n_stages: index of the stage, and number of stages, int.
        held: bytes that it keeps of a microbatch.
    """
    alive = m.rules[MICROBATCHES]
    if not m.rules[ALL_ALIVE]:
        alive = min(alive, n_stages - stage)
    return episode.resident[stage] + alive * held


@kernel
def fill_loads(m, episode, found):
    """Computes the loads with the piece at hand on each candidate device, and what comes of the rest.

    Args:
        m: of the problem.
        episode: `PipelineEpisode`.
        found: `PipelineCandidates`; `load_s`, `bottleneck_s` and `ahead_s` are written.
    """
    piece, n_stages = episode.state[PIECE], episode.state[N_STAGES]
    rest_s = m.seconds_from[piece + 1]
    for device in range(len(rest_s)):
        stage = stage_there(episode, device)
        if stage < 0:
            continue
        load_s = m.seconds[piece, device] + (episode.load_s[stage] if stage < n_stages else 0.0)
        largest_s = load_s
        for other in range(min(stage, n_stages)):
            largest_s = max(largest_s, episode.load_s[other])
        ahead_s = largest_s
        if rest_s[device] > 0.0:
            speed, done = 1.0 / rest_s[device], load_s / rest_s[device]
            for other in range(len(rest_s)):
                if other != device and stage_there(episode, other) == n_stages and rest_s[other] > 0.0:
                    speed += 1.0 / rest_s[other]
            ahead_s = max(ahead_s, (1.0 + done) / speed)
        found.load_s[device], found.bottleneck_s[device] = load_s, largest_s
        found.ahead_s[device] = ahead_s


@kernel(allocates=True)
def fill_transfers(p, m, episode, found):
    """Finds out where the bytes are that pass between the piece at hand and placed ops, and their transfers.

    Args:
        p, m: of the problem.
        episode: `PipelineEpisode`.
        found: `PipelineCandidates`; the last four arrays are written.

    Returns:
        Bytes that the piece reads of placed ops, each tensor once.
    """
    read_bytes, piece, n_devices = 0.0, episode.state[PIECE], len(p.memory)
    is_known, is_read = np.zeros(len(p.producer), np.uint8), np.zeros(n_devices, np.uint8)
    for k in range(m.op_ptr[piece], m.op_ptr[piece + 1]):
        op = m.op_item[k]
        for j in range(p.input_ptr[op], p.input_ptr[op + 1]):
            tensor = p.input_item[j]
            source = episode.device_of[p.producer[tensor]]
            if source < 0 or is_known[tensor]:
                continue
            is_known[tensor] = 1
            read_bytes += p.size[tensor]
            find_readers(p, episode, tensor, is_read)
            for device in range(n_devices):
                if device == source or is_read[device]:
                    found.input_bytes[device] += p.size[tensor]
                else:
                    found.input_s[device] += transfer_seconds(p, p.size[tensor], source, device)
        for j in range(p.output_ptr[op], p.output_ptr[op + 1]):
            tensor = p.output_item[j]
            find_readers(p, episode, tensor, is_read)
            for target in range(n_devices):
                if not is_read[target]:
                    continue
                found.output_bytes[target] += p.size[tensor]
                for device in range(n_devices):
                    found.output_s[device] += transfer_seconds(p, p.size[tensor], device, target)
    return read_bytes


@kernel
def find_readers(p, episode, tensor, is_read):
    """Marks the devices on which placed ops read a tensor.

    Args:
        p: of the problem.
        episode: `PipelineEpisode`.
        tensor: index, int.
        is_read: uint8 (n_devices,); written.
    """
    is_read[:] = 0
    for k in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        device = episode.device_of[p.consumer_item[k]]
        if device >= 0:
            is_read[device] = 1


@kernel
def fill_times(p, m, episode, found, read_bytes, features):
    """Fills the columns of the candidates, all but the memory.

    Args:
        p, m: of the problem.
        episode: `PipelineEpisode`.
        found: `PipelineCandidates`.
        read_bytes: bytes that the piece reads of placed ops.
        features: float32 (max_devices, N_DEVICE_FEATURES); written.
    """
    piece, count, scale = episode.state[PIECE], m.rules[MICROBATCHES], 1.0 / m.scales[MEAN_OP_S]
    least_s = start_s = finish_s = load_s = bottleneck_s = ahead_s = op_s = np.inf
    output_bytes = speed = 0.0
    for device in range(len(p.memory)):
        output_bytes += found.output_bytes[device]
        op_s = min(op_s, m.seconds[piece, device])
        if m.seconds_from[0, device] > 0.0:
            speed += 1.0 / m.seconds_from[0, device]
        if episode.candidate_s[device] >= 0.0:
            least_s = min(least_s, episode.candidate_s[device])
            start_s, finish_s = min(start_s, found.start_s[device]), min(finish_s, found.finish_s[device])
            load_s = min(load_s, found.load_s[device])
            bottleneck_s = min(bottleneck_s, found.bottleneck_s[device])
            ahead_s = min(ahead_s, found.ahead_s[device])
    for device in range(len(p.memory)):
        there_s, row = episode.candidate_s[device], features[device]
        if there_s < 0.0:
            continue
        row[STEP_TIME_OVER_LEAST] = squash((there_s - least_s) * scale)
        row[STEP_TIME_GROWTH] = squash((there_s - episode.time_s[0]) * scale)
        row[START_OVER_EARLIEST] = squash((found.start_s[device] - start_s) * scale)
        row[FINISH_OVER_EARLIEST] = squash((found.finish_s[device] - finish_s) * scale)
        row[DEVICE_FREE_OVER_EARLIEST] = squash((found.load_s[device] - load_s) * scale)
        row[INPUTS_READY_OVER_EARLIEST] = squash((found.bottleneck_s[device] - bottleneck_s) * scale)
        transfers_s = found.input_s[device] + found.output_s[device]
        row[LINK_BUSY_BEYOND_START] = squash(count * transfers_s * scale)
        row[INPUT_BYTES_THERE] = found.input_bytes[device] / read_bytes if read_bytes > 0.0 else 0.0
        row[OUTPUT_BYTES_THERE] = found.output_bytes[device] / output_bytes if output_bytes > 0.0 else 0.0
        row[LOAD_OVER_MEAN] = min(found.load_s[device] * speed - 1.0, FEATURE_BOUND) if speed > 0.0 else 0.0
        row[OP_TIME_OVER_LEAST] = squash((m.seconds[piece, device] - op_s) * scale)
        row[OP_TIME] = squash(m.seconds[piece, device] * scale)
        row[IS_LAST_DEVICE] = 1.0 if episode.state[LAST_ACTION] == device else 0.0
        row[INPUT_TRANSFER_TIME] = squash(found.input_s[device] * scale)
        row[OUTPUT_TRANSFER_TIME] = squash(found.output_s[device] * scale)
        row[IDLE_TIME] = squash((there_s - count * found.load_s[device]) * scale)
        row[STEP_TIME_BEYOND_FINISH] = squash((there_s - found.finish_s[device]) * scale)
        row[SLOWNESS] = squash(m.slowness[device] - 1.0)
        row[STEP_TIME] = min(episode.time_s[0] / m.scales[REWARD_S], FEATURE_BOUND)
        row[VISITS_DONE] = piece / len(m.seconds)
        row[ROLLOUT_BOTTLENECK] = squash(count * (found.ahead_s[device] - ahead_s) * scale)


@kernel
def fill_mask(p, m, episode, masks, features, mask):
    """Marks the candidates whose memory may suffice, and fills in the free memory.

    Args:
        p, m: of the problem.
        episode: `PipelineEpisode`.
        masks: whether the memory counts, bool.
        features: float32 (max_devices, N_DEVICE_FEATURES); written.
        mask: int8 (max_devices,); written.

    Returns:
        Whether there is such a device, bool.
    """
    piece, n_stages, any_offered = episode.state[PIECE], episode.state[N_STAGES], False
    room_to_grow = True
    for stage in range(n_stages):
        used = least_bytes(m, episode, stage, n_stages + 1, episode.held[stage])
        room_to_grow &= used <= p.memory[episode.devices[stage]]
    mask[:] = 0
    for device in range(len(p.memory)):
        if episode.candidate_s[device] < 0.0:
            continue
        stage = stage_there(episode, device)
        begun = stage < n_stages
        held = held_with(m, episode, stage) + (episode.held[stage] if begun else 0.0)
        used = least_bytes(m, episode, stage, stage + 1, held) + m.resident[piece]
        features[device, FREE_MEMORY] = max(1.0 - used / p.memory[device], -1.0)
        if not masks or (used <= p.memory[device] and (begun or room_to_grow)):
            mask[device] = 1
            any_offered = True
    return any_offered
