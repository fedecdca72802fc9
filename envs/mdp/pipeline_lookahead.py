"""The lookahead of pipelines: the partial pipeline with the piece at hand on each candidate device.

Candidates are the device of the last stage, where the stage goes on, and the devices without a stage. Of
unused devices with equal times and equal links to the stages, one is simulated.

The kernels share these arguments:

    p: `ProblemArrays`. q: `PipelineArrays`. m: `PieceArrays`.
    episode: `PipelineEpisode`.
"""

from __future__ import annotations

import numpy as np

from envs.mdp.pipeline_features import (
    fill_loads,
    fill_mask,
    fill_times,
    fill_transfers,
    held_with,
    stage_there,
)
from envs.mdp.pipeline_state import (
    LAST_ACTION,
    MICROBATCHES,
    N_STAGES,
    PIECE,
    SPLITS,
    PipelineCandidates,
)
from envs.pipeline.arrays import FIRST, LATER, N_KINDS, Agenda, PlacedStages
from envs.pipeline.layout import no_second_runs, one_each
from envs.pipeline.programs import new_parts
from envs.pipeline.step import run_pipeline
from graphs.system.jit import kernel


@kernel(entry=True, allocates=True)
def observe_pipeline(p, q, m, episode, stays, grows, can_grow, masks, features, mask):
    """Fills in the observation of the piece at hand.

    Args:
        p, q, m: of the problem.
        episode: `PipelineEpisode`; `candidate_s` is written; the rest while candidates are simulated.
        stays, grows: `RankAgenda` of as many stages as there are, and of one more.
        can_grow: whether there is such a schedule of one stage more, bool.
        masks: whether only devices with free memory are offered, bool.
        features: float32 (max_devices, N_DEVICE_FEATURES); written; 0 for devices that are no candidates.
        mask: int8 (max_devices,); written; 1 = the device is offered.

    Returns:
        Whether any device is offered, bool.
    """
    n_devices, n_stages = len(p.memory), episode.state[N_STAGES]
    rows = np.zeros((9, n_devices))
    found = PipelineCandidates(
        rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7], rows[8]
    )
    for device in range(n_devices):
        episode.candidate_s[device] = -1.0
        stage = stage_there(episode, device)
        if stage < 0 or (stage == n_stages and not can_grow):
            continue
        twin = find_twin(p, m, episode, device)
        if twin >= 0:
            episode.candidate_s[device] = episode.candidate_s[twin]
            found.start_s[device], found.finish_s[device] = found.start_s[twin], found.finish_s[twin]
        else:
            simulate_candidate(p, q, m, episode, grows if stage == n_stages else stays, stage, device, found)
    fill_loads(m, episode, found)
    read_bytes = fill_transfers(p, m, episode, found)
    features[:] = 0.0
    fill_times(p, m, episode, found, read_bytes, features)
    return fill_mask(p, m, episode, masks, features, mask)


@kernel
def find_twin(p, m, episode, device):
    """Finds an earlier unused candidate on which the partial pipeline takes the same time; -1 if none does.

    Args:
        p, m: of the problem.
        episode: `PipelineEpisode`; `candidate_s` of earlier devices is read.
        device: index, int.
    """
    n_stages = episode.state[N_STAGES]
    for twin in range(device if stage_there(episode, device) == n_stages else 0):
        if m.alike[twin] != m.alike[device] or episode.candidate_s[twin] < 0.0:
            continue
        same = stage_there(episode, twin) == n_stages
        for stage in range(n_stages):
            used = episode.devices[stage]
            same &= (
                p.bandwidth[used, twin] == p.bandwidth[used, device]
                and p.bandwidth[twin, used] == p.bandwidth[device, used]
                and p.latency[used, twin] == p.latency[used, device]
                and p.latency[twin, used] == p.latency[device, used]
                and p.n_half[used, twin] == p.n_half[used, device]
                and p.n_half[twin, used] == p.n_half[device, used]
            )
        if same:
            return twin
    return -1


@kernel
def show_piece(q, m, episode, stage, device):
    """Puts the ops of the piece at hand on a device, -1 = takes them away.

    Args:
        q, m: of the problem.
        episode: `PipelineEpisode`; `device_of`, `stage_of` and `devices` are written.
        stage, device: indices, int.
    """
    piece = episode.state[PIECE]
    episode.devices[stage] = device
    for k in range(m.op_ptr[piece], m.op_ptr[piece + 1]):
        op = m.op_item[k]
        episode.device_of[op] = device
        episode.stage_of[op] = stage if device >= 0 and (q.phase[op] == 0 or q.phase[op] == 1) else -1


@kernel(allocates=True)
def simulate_candidate(p, q, m, episode, ranks, stage, device, found):
    """Simulates the partial pipeline with the piece at hand on a device.

    Args:
        p, q, m: of the problem.
        episode: `PipelineEpisode`; `candidate_s` is written.
        ranks: `RankAgenda` of `stage + 1` stages.
        stage, device: indices, int.
        found: `PipelineCandidates`; `start_s` and `finish_s` are written.
    """
    before = episode.devices[stage]
    show_piece(q, m, episode, stage, device)
    devices = episode.devices[: stage + 1]
    agenda = agenda_of(ranks, devices, len(p.memory), m.rules[MICROBATCHES])
    none = np.zeros((3, stage + 1), np.int64)
    n_devices, n_ops, n_tensors = len(p.memory), len(q.phase), len(p.producer)
    n_most = len(p.input_item) + 2 * n_ops + 3 * n_tensors + (N_KINDS + 2) * n_devices
    episode.candidate_s[device] = run_pipeline(
        p,
        q,
        no_second_runs(),
        PlacedStages(episode.device_of, episode.stage_of, none[0], none[1:].T),
        one_each(devices, n_devices),
        np.full(stage + 1, m.rules[SPLITS] == 1),
        m.rules[MICROBATCHES],
        agenda,
        0.0,
        np.zeros(0),
        new_parts(n_most, n_ops, n_tensors),
        np.arange(n_devices),
    )
    found.start_s[device] = agenda.start_s[agenda.ptr[device]]
    found.finish_s[device] = agenda.end_s[agenda.ptr[device]]
    show_piece(q, m, episode, stage, np.int64(-1))
    episode.devices[stage] = before


@kernel(allocates=True)
def agenda_of(ranks, devices, n_devices, n_microbatches):
    """Makes the agenda of stages on some devices.

    Args:
        ranks: `RankAgenda` of these stages.
        devices: device of each stage, int64 (n_stages,).
        n_devices, n_microbatches: int.

    Returns:
        `Agenda`; the times are not set.
    """
    n = len(ranks.action) + n_devices
    ptr = np.zeros(n_devices + 1, np.int64)
    action, microbatch, column = np.empty(n, np.int64), np.empty(n, np.int64), np.full(n, LATER)
    n = 0
    for device in range(n_devices):
        for stage in range(len(devices)):
            if devices[stage] == device:
                for entry in range(ranks.ptr[stage], ranks.ptr[stage + 1]):
                    action[n], microbatch[n] = ranks.action[entry], ranks.microbatch[entry]
                    column[n] = LATER if microbatch[n] else FIRST
                    n += 1
        action[n], microbatch[n] = len(devices) * N_KINDS + device, n_microbatches
        n += 1
        ptr[device + 1] = n
    return Agenda(ptr, action, microbatch, column, np.zeros(n), np.zeros(n))


@kernel(entry=True)
def place_piece(p, q, m, episode, device):
    """Places the piece at hand on a candidate device and goes on to the next.

    Args:
        p, q, m: of the problem.
        episode: `PipelineEpisode`; written.
        device: index, int.
    """
    piece, state = episode.state[PIECE], episode.state
    stage = stage_there(episode, device)
    held = held_with(m, episode, stage)
    if stage == state[N_STAGES]:
        episode.first[stage] = piece
        state[N_STAGES] += 1
    show_piece(q, m, episode, stage, device)
    episode.load_s[stage] += m.seconds[piece, device]
    episode.resident[stage] += m.resident[piece]
    episode.held[stage] += held
    episode.time_s[0] = episode.candidate_s[device]
    state[LAST_ACTION] = device
    state[PIECE] += 1
