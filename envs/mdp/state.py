"""Many problems and many episodes in flat arrays, so that one numba loop steps them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envs.mdp.observation import Episode, MdpArrays, Trial, construct, improve, observe, overflow
from envs.mdp.rollout_features import new_rollout_scratch
from envs.problem import Problem
from envs.problem_arrays import ProblemArrays
from envs.simulator.jit import kernel
from envs.simulator.kernels import Timeline
from graphs.op_graph import FloatArray, IntArray

N_OPS, N_TENSORS, N_READS, N_DEVICES, N_QUEUE, N_UNITS, N_COST = range(7)
"""Columns of `PackedProblems.first`: where a problem's ops, tensors, reads and so on begin."""

FITS, OVERFLOWS, INFEASIBLE = 0, 1, 2
"""How an episode ended: it fits, a device overflows, or an op had no device with room."""

OVERFLOW_PENALTY, INFEASIBLE_PENALTY = 1.0, 2.0
"""Taken off the last reward of an episode that does not fit, in single-device step times; an overflow costs
its share of the cluster's memory more."""


class PackedProblems(NamedTuple):
    """Problems one after the other; `first[i]` and `first[i + 1]` bound those of problem `i`."""

    problems: ProblemArrays
    walks: MdpArrays
    first: IntArray  # (n_problems + 1, 7)


class Episodes(NamedTuple):
    """Episodes side by side, each padded to the largest problem."""

    problem: IntArray  # (n,)
    n_visits: IntArray  # (n,)
    walk: IntArray  # (n, max_visits)
    device_of: IntArray  # (n, max_ops)
    shown: IntArray  # (n, max_ops)
    timeline: Timeline  # (n, ...) each
    busy: FloatArray  # (n, max_devices)
    load: FloatArray  # (n, max_devices)
    state: IntArray  # (n, 3)
    time_s: FloatArray  # (n, 1)


def new_trial(problems: Sequence[Problem]) -> Trial:
    """Room to try the candidates of any of the problems."""
    n = max(problem.n_devices for problem in problems)
    n_ops = max(problem.graph.n_ops for problem in problems)
    n_slots = max(problem.graph.n_tensors * problem.n_devices for problem in problems)
    n_reads = max(len(problem.arrays.input_item) for problem in problems)
    timeline = Timeline(
        np.zeros(n_ops), np.zeros(n_ops), np.zeros(n_slots), np.zeros(n_slots), np.zeros(n), np.zeros(n * n)
    )
    return Trial(
        total_s=np.zeros(n),
        start_s=np.zeros(n),
        finish_s=np.zeros(n),
        ready_s=np.zeros(n),
        inputs_there=np.zeros(n),
        outputs_there=np.zeros(n),
        transfer_s=np.zeros(n),
        send_s=np.zeros(n),
        others_there=np.zeros(n),
        gather_s=np.zeros(n),
        onward_s=np.zeros(n),
        moved_s=np.zeros(n),
        met_s=np.zeros(n),
        reached=np.zeros(n, dtype=np.bool_),
        link_free=np.zeros(n * n),
        timeline=timeline,
        ahead=new_rollout_scratch(n, n_reads),
    )


class Observation(NamedTuple):
    """What the policy sees, one row per episode."""

    problem: IntArray  # (n, 1)
    op: IntArray  # (n, 1)
    devices: FloatArray  # float32 (n, max_devices, N_DEVICE_FEATURES)
    mask: IntArray  # int8 (n, max_devices)


def mdp_arrays(problem: Problem) -> MdpArrays:
    """What a walk needs to know of a problem beyond its simulation."""
    graph = problem.graph
    seconds = problem.op_seconds[problem.op_seconds > 0]
    return MdpArrays(
        unit_of=graph.unit_of,
        unit_ptr=graph.units.ptr,
        unit_item=graph.units.items,
        footprint_bytes=problem.footprint_bytes,
        slowness=problem.single_device_s / problem.scale_s,
        scales=np.array([seconds.mean() if len(seconds) else 1.0, problem.scale_s]),
    )


def pack_problems(problems: Sequence[Problem]) -> PackedProblems:
    """Lay the problems out one after the other."""
    arrays = [problem.arrays for problem in problems]
    walks = [mdp_arrays(problem) for problem in problems]
    sizes = [
        (
            len(a.is_source),
            len(a.producer),
            len(a.consumer_item),
            len(a.memory),
            a.link.size,
            len(w.footprint_bytes),
            a.op_seconds.size,
        )
        for a, w in zip(arrays, walks, strict=True)
    ]
    first = np.zeros((len(problems) + 1, 7), dtype=np.int64)
    first[1:] = np.cumsum(np.array(sizes, dtype=np.int64), axis=0)
    joined = (np.concatenate([np.ravel(part) for part in parts]) for parts in zip(*arrays, strict=True))
    joined_walks = (np.concatenate(parts) for parts in zip(*walks, strict=True))
    return PackedProblems(ProblemArrays(*joined), MdpArrays(*joined_walks), first)


def new_episodes(problems: Sequence[Problem], n: int, passes: int) -> Episodes:
    """Room for `n` episodes over any of the problems, walked `passes` times."""
    max_ops = max(problem.graph.n_ops for problem in problems)
    max_slots = max(problem.graph.n_tensors * problem.n_devices for problem in problems)
    max_devices = max(problem.n_devices for problem in problems)
    max_visits = passes * max(int(problem.graph.is_compute.sum()) for problem in problems)
    timeline = Timeline(
        start=np.zeros((n, max_ops)),
        finish=np.zeros((n, max_ops)),
        sent=np.zeros((n, max_slots)),
        arrival=np.zeros((n, max_slots)),
        device_free=np.zeros((n, max_devices)),
        link_free=np.zeros((n, max_devices**2)),
    )
    return Episodes(
        problem=np.zeros(n, dtype=np.int64),
        n_visits=np.zeros(n, dtype=np.int64),
        walk=np.zeros((n, max_visits), dtype=np.int64),
        device_of=np.zeros((n, max_ops), dtype=np.int64),
        shown=np.zeros((n, max_ops), dtype=np.int64),
        timeline=timeline,
        busy=np.zeros((n, max_devices)),
        load=np.zeros((n, max_devices)),
        state=np.zeros((n, 3), dtype=np.int64),
        time_s=np.zeros((n, 1)),
    )


@kernel
def problem_at(bank, i):
    """Views of one problem of a bank."""
    a, first, last = bank.problems, bank.first[i], bank.first[i + 1]
    o, oo = first[0], last[0]
    t, tt = first[1], last[1]
    r, rr = first[2], last[2]
    d, dd = first[3], last[3]
    q, qq = first[4], last[4]
    n_devices = dd - d
    square = (n_devices, n_devices)
    return ProblemArrays(
        a.op_seconds[first[6] : last[6]].reshape((oo - o, n_devices)),
        a.is_source[o:oo],
        a.input_ptr[o + i : oo + i + 1],
        a.input_item[r:rr],
        a.output_ptr[o + i : oo + i + 1],
        a.output_item[t:tt],
        a.consumer_ptr[t + i : tt + i + 1],
        a.consumer_item[r:rr],
        a.producer[t:tt],
        a.size[t:tt],
        a.owner[t:tt],
        a.resident[o:oo],
        a.bandwidth[q:qq].reshape(square),
        a.latency[q:qq].reshape(square),
        a.link[q:qq].reshape(square),
        a.memory[d:dd],
        a.gaps[2 * i : 2 * i + 2],
        a.rules[3 * i : 3 * i + 3],
    )


@kernel
def mdp_arrays_at(bank, i):
    """Views of what a walk needs to know of one problem of a bank."""
    w, first, last = bank.walks, bank.first[i], bank.first[i + 1]
    return MdpArrays(
        w.unit_of[first[0] : last[0]],
        w.unit_ptr[first[5] + i : last[5] + i + 1],
        w.unit_item[first[0] : last[0]],
        w.footprint_bytes[first[5] : last[5]],
        w.slowness[first[3] : last[3]],
        w.scales[2 * i : 2 * i + 2],
    )


@kernel
def episode_at(episodes, p, e):
    """Views of one episode, cut to its problem's size."""
    n_ops, n_devices = len(p.is_source), len(p.memory)
    n_slots = len(p.producer) * n_devices
    s = episodes.timeline
    return Episode(
        episodes.walk[e, : episodes.n_visits[e]],
        episodes.device_of[e, :n_ops],
        episodes.shown[e, :n_ops],
        Timeline(
            s.start[e, :n_ops],
            s.finish[e, :n_ops],
            s.sent[e, :n_slots],
            s.arrival[e, :n_slots],
            s.device_free[e, :n_devices],
            s.link_free[e, : n_devices * n_devices],
        ),
        episodes.busy[e, :n_devices],
        episodes.load[e, :n_devices],
        episodes.state[e],
        episodes.time_s[e],
    )


@kernel
def trial_at(trial, p):
    """Views of the room to try candidates, cut to one problem's size."""
    n_ops, n = len(p.is_source), len(p.memory)
    n_slots = len(p.producer) * n
    s = trial.timeline
    return Trial(
        trial.total_s,
        trial.start_s,
        trial.finish_s,
        trial.ready_s,
        trial.inputs_there,
        trial.outputs_there,
        trial.transfer_s,
        trial.send_s,
        trial.others_there,
        trial.gather_s,
        trial.onward_s,
        trial.moved_s,
        trial.met_s,
        trial.reached,
        trial.link_free,
        Timeline(
            s.start[:n_ops],
            s.finish[:n_ops],
            s.sent[:n_slots],
            s.arrival[:n_slots],
            s.device_free[:n],
            s.link_free[: n * n],
        ),
        trial.ahead,
    )


@kernel(entry=True)
def step_episodes(bank, episodes, trial, improving, first, actions, obs, reward, over, outcome, peak):
    """Take one decision in each of some episodes, from `first` on; those over keep their last observation.

    One entry for a batch's first observation too, as each entry is compiled with all that it calls.

    Args:
        actions: device per episode, (n,); -1 only observes.

    Fills `reward` (n,), `over` (n,), `outcome` (n,) where over, and `peak` (n, max_devices) bytes.
    """
    for e in range(first, first + len(actions)):
        i, action = episodes.problem[e], actions[e - first]
        p, w = problem_at(bank, i), mdp_arrays_at(bank, i)
        episode = episode_at(episodes, p, e)
        before = episode.time_s[0]
        outcome[e] = FITS
        if action < 0:
            over[e] = False
        elif improving:
            over[e] = improve(w, p, episode, action)
        else:
            over[e] = construct(w, p, episode, action)
        reward[e] = -(episode.time_s[0] - before) / w.scales[1]
        if not over[e] and not observe_episode(w, p, episode, trial, improving, obs, i, e):
            over[e] = True
            outcome[e] = INFEASIBLE
            reward[e] -= INFEASIBLE_PENALTY
        elif over[e]:
            beyond = overflow(p, episode, peak[e, : len(p.memory)])
            if beyond > 0.0:
                outcome[e] = OVERFLOWS
                reward[e] -= OVERFLOW_PENALTY + beyond


@kernel(inline=True)
def observe_episode(w, p, episode, trial, improving, obs, i, e):
    """Fill in row `e` of the observation; returns whether a device has room for the op at hand."""
    obs.problem[e, 0] = i
    obs.op[e, 0] = episode.walk[episode.state[0]]
    return observe(w, p, episode, trial_at(trial, p), improving, obs.devices[e], obs.mask[e])
