"""The state of episodes, in flat arrays that the kernels read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from envs.simulator.arrays import Timeline, n_clocks
from envs.simulator.kernels import run_many
from envs.simulator.transfers import copy_start_s, transfer_seconds
from graphs.system.array_types import BoolArray, FloatArray, IntArray
from graphs.system.jit import kernel

if TYPE_CHECKING:
    from envs.placement.masks import Mask
    from envs.problem import Problem

# Columns of `Episode.state`:
POSITION = 0  # index of the visit at hand
LAST_DEVICE = 1  # device of the last decision, -1 before the first
IS_INCREMENTAL = 2  # 1 = the timeline grows by one op at a time, 0 = all is simulated again
N_WAITING = 3  # ops that are decided and not visited yet, while constructing
N_DECISIONS = 4  # decisions taken
LONGEST = 5  # first units of `MdpArrays.by_seconds` that are seen to be placed, while constructing
TO_COME = 6  # first ops of `MdpArrays.by_end_s` that are seen to be visited; all if not in program order

MEAN_OP_S, REWARD_S = range(2)
"""Columns of `MdpArrays.scales`: mean time of an op on a device, zeros left out, and seconds per unit of
reward."""


class MdpRules(NamedTuple):
    """The rules of a decision process: decisions and rewards; the same in all episodes of a batch."""

    improving: bool  # complete placements are improved
    masks: bool  # only devices with free memory are offered
    rolls_out: bool  # the observation has features of truncated rollouts
    memory_penalty: float  # factor of what running out of memory takes off the reward


class MdpArrays(NamedTuple):
    """The arrays of a problem that an episode needs beyond its simulation."""

    unit_of: IntArray  # (n_ops,) placement unit of an op
    unit_ptr: IntArray  # (n_units + 1,) ops of a unit: unit_item[unit_ptr[i] : unit_ptr[i + 1]]
    unit_item: IntArray  # (n_ops,)
    is_compute: IntArray  # (n_ops,) 1 = an op that episodes visit
    update: IntArray  # (n_ops,) update of a parameter that what an op makes goes to, -1 = none
    update_bytes: FloatArray  # (n_ops,) what it reads
    is_gradient: IntArray  # (n_ops,) 1 = the update reads it from the op, not from a sum that the op adds to
    waits: IntArray  # (n_ops,) 1 = placed alone, and only an update, or a sum that waits, reads what it makes
    tail_s: FloatArray  # (n_ops,) longest path from an op to the end of the step, each op at its least time
    end_s: FloatArray  # (n_ops,) the same from the start of a compute op; -inf for others
    by_end_s: IntArray  # (n_ops,) ops, those first from whose start the step takes longest
    joined: IntArray  # (n_ops,) tensor of an op that is read beside another one, -1 = none
    beside: IntArray  # (n_ops,) the other one, such as the sum that a gradient is added to
    allowed: BoolArray  # (n_units, n_devices) devices that the mask allows a unit, whatever the memory
    footprint_bytes: FloatArray  # (n_units,) resident bytes and saved activations of a unit
    slowness: FloatArray  # (n_devices,) single-device step time over the least
    by_seconds: IntArray  # (n_units,) units, the longest first
    scales: FloatArray  # (2,) seconds, columns MEAN_OP_S and REWARD_S


class Episode(NamedTuple):
    """State of one episode."""

    visits: IntArray  # (n_visits,) ops in the order they are visited
    device_of: IntArray  # (n_ops,) decided devices, -1 = not yet
    simulated: IntArray  # (n_ops,) the part of `device_of` that a full simulation sees, else -1
    timeline: Timeline  # of what has been visited
    busy: FloatArray  # (n_devices,) seconds of op time of the units on a device
    load: FloatArray  # (n_devices,) bytes, footprints of the units on a device
    updates_s: FloatArray  # (n_devices,) seconds of the updates of the units on a device
    state: IntArray  # (7,) columns POSITION ... TO_COME
    waiting_s: FloatArray  # (n_clocks,) seconds of copies of gradients that links carry after all else
    time_s: FloatArray  # (1,) step time of what is simulated
    best_s: FloatArray  # (1,) while improving, the least step time of a placement within the memory
    best_device_of: IntArray  # (n_ops,) while improving, that placement


class Episodes(NamedTuple):
    """The arrays of all episodes, padded to the largest problem; `Episode` describes the fields."""

    problem: IntArray  # (n,) index of the problem
    n_visits: IntArray  # (n,)
    visits: IntArray  # (n, max_visits)
    device_of: IntArray  # (n, max_ops)
    simulated: IntArray  # (n, max_ops)
    timeline: Timeline  # (n, ...) each
    busy: FloatArray  # (n, max_devices)
    load: FloatArray  # (n, max_devices)
    updates_s: FloatArray  # (n, max_devices)
    state: IntArray  # (n, 7)
    waiting_s: FloatArray  # (n, max_clocks)
    time_s: FloatArray  # (n, 1)
    best_s: FloatArray  # (n, 1)
    best_device_of: IntArray  # (n, max_ops)
    returned: FloatArray  # (n,) sum of rewards, single-device step times


def mdp_arrays(problem: Problem, mask: Mask) -> MdpArrays:
    """Lays out what an episode needs to know of a problem beyond its simulation.

    Raises:
        ValueError: the mask is none for the problem.
    """
    graph = problem.graph
    seconds = problem.op_seconds[problem.op_seconds > 0]
    scales = np.zeros(2)
    scales[MEAN_OP_S] = seconds.mean() if len(seconds) else 1.0
    scales[REWARD_S] = problem.scale_s
    is_compute, is_gradient = graph.is_compute.astype(np.int64), np.zeros(graph.n_ops, dtype=np.int64)
    waits = (np.bincount(graph.unit_of, is_compute) == 1)[graph.unit_of] * is_compute
    update, joined, beside = np.full((3, graph.n_ops), -1)
    update_bytes, tail_s, moved_bytes = np.zeros((3, graph.n_ops))
    least_s = problem.op_seconds.min(axis=1)
    _follow_readers(problem.arrays, is_compute, least_s, update, update_bytes, is_gradient, waits, tail_s)
    end_s = np.where(is_compute, tail_s + least_s, -np.inf)
    _find_joins(problem.arrays, is_compute, joined, beside, moved_bytes)
    return MdpArrays(
        unit_of=graph.unit_of,
        unit_ptr=graph.units.ptr,
        unit_item=graph.units.items,
        is_compute=is_compute,
        update=update,
        update_bytes=update_bytes,
        is_gradient=is_gradient,
        waits=waits,
        tail_s=tail_s,
        end_s=end_s,
        by_end_s=np.argsort(-end_s, kind="stable"),
        joined=joined,
        beside=beside,
        allowed=mask.table(problem),
        footprint_bytes=problem.footprint_bytes,
        slowness=problem.single_device_s / problem.scale_s,
        by_seconds=np.argsort(-np.bincount(graph.unit_of, least_s), kind="stable"),
        scales=scales,
    )


@kernel(entry=True)
def _follow_readers(p, is_compute, least_s, update, update_bytes, is_gradient, waits, tail_s):
    """Finds the update that each op's output goes to, and the least time from each op to the end of the step.

    The update is an op that no episode visits. Of those that read a tensor of the op, it is the one that
    reads the largest tensor, or the first of equal ones. An op whose only output has one reader, which adds
    it to a gradient of the same size, shares the update of that reader.

    Args:
        is_compute: see `MdpArrays`.
        least_s: least time of each op on a device, seconds, (n_ops,).
        update, update_bytes, is_gradient, tail_s: see `MdpArrays`, -1 or zeros before; written.
        waits: see `MdpArrays`, 1 where a compute op is placed alone before; written.
    """
    for op in range(len(p.is_source) - 1, -1, -1):
        first, last = p.output_ptr[op], p.output_ptr[op + 1]
        n_readers, reader, is_alone = 0, op, waits[op]
        for k in range(first, last):
            tensor = p.output_item[k]
            for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
                reader, n_readers = p.consumer_item[j], n_readers + 1
                waits[op] &= is_compute[reader] == 0
                tail_s[op] = max(tail_s[op], tail_s[reader] + least_s[reader])
                is_larger = p.size[tensor] > update_bytes[op]
                is_first = p.size[tensor] == update_bytes[op] and reader < update[op]
                if is_compute[op] and not is_compute[reader] and (is_larger or is_first):
                    update[op], update_bytes[op], is_gradient[op] = reader, p.size[tensor], 1
        waits[op] &= is_gradient[op]
        adds = is_compute[op] and last - first == 1 and n_readers == 1 and not is_gradient[op]
        if adds and p.size[p.output_item[first]] == update_bytes[reader] > 0.0:
            update[op], update_bytes[op] = update[reader], update_bytes[reader]
            waits[op] = is_alone & waits[reader]


@kernel(entry=True)
def _find_joins(p, is_compute, joined, beside, moved_bytes):
    """Finds the output of each op that is read beside a tensor of another op, and that tensor.

    It is the pair of which most bytes move if both are apart, when the smaller one does. Of what a reader
    reads besides, its largest tensor counts, the first of equal ones.

    Args:
        is_compute: see `MdpArrays`.
        joined, beside: see `MdpArrays`, -1 before; written.
        moved_bytes: bytes of the smaller tensor, zeros before, (n_ops,); written.
    """
    for reader in range(len(is_compute)):
        first, last = p.input_ptr[reader], p.input_ptr[reader + 1]
        for k in range(first, last if is_compute[reader] else first):
            tensor, other = p.input_item[k], -1
            op = p.producer[tensor]
            for j in range(first, last if is_compute[op] else first):
                candidate = p.input_item[j]
                if p.producer[candidate] != op and (other < 0 or p.size[candidate] > p.size[other]):
                    other = candidate
            if other >= 0 and min(p.size[tensor], p.size[other]) > moved_bytes[op]:
                joined[op], beside[op] = tensor, other
                moved_bytes[op] = min(p.size[tensor], p.size[other])


@kernel
def updated_s(m, p, timeline, device_of, waiting_s, op, device, finish):
    """Returns when the update that an op's output goes to would end, were its device free, in seconds.

    Where it is on another device, the output is sent behind all that its link carries or has to carry. If
    there is no such update, or it is not placed yet, that is the finish of the op.

    Args:
        finish: finish of the op on the device, seconds.
    """
    target = update_device(m, device_of, op, device)
    if target < 0:
        return finish
    if target != device:
        link = p.link[device, target]
        if link >= 0:
            finish = max(finish, timeline.free[link] + waiting_s[link])
        finish = copy_start_s(p, timeline.free, device, target, finish)
        finish += transfer_seconds(p, m.update_bytes[op], device, target)
    return finish + p.op_seconds[m.update[op], target]


@kernel
def update_device(m, device_of, op, device):
    """Returns the device of the update that the output of an op goes to, -1 if none is placed."""
    update = m.update[op]
    if update < 0:
        return -1
    return device if m.unit_of[update] == m.unit_of[op] else device_of[update]


@kernel
def queue_gradient(m, p, device_of, waiting_s, op):
    """Adds the copy of a gradient that its update reads elsewhere to what its link carries after all else.

    Args:
        waiting_s: written.
    """
    source, target = device_of[op], update_device(m, device_of, op, device_of[op])
    if m.is_gradient[op] and target >= 0 and p.link[source, target] >= 0:
        waiting_s[p.link[source, target]] += transfer_seconds(p, m.update_bytes[op], source, target)


def new_episodes(problems: Sequence[Problem], n: int, passes: int) -> Episodes:
    """Allocates `n` episodes over any of the problems, which visit every op at most `passes` times."""
    max_ops = max(problem.graph.n_ops for problem in problems)
    max_slots = max(problem.graph.n_tensors * problem.n_devices for problem in problems)
    max_devices = max(problem.n_devices for problem in problems)
    max_visits = passes * max(int(problem.graph.is_compute.sum()) for problem in problems)
    timeline = Timeline(
        start=np.zeros((n, max_ops)),
        finish=np.zeros((n, max_ops)),
        sent=np.zeros((n, max_slots)),
        arrival=np.zeros((n, max_slots)),
        free=np.zeros((n, n_clocks(max_devices))),
    )
    return Episodes(
        problem=np.zeros(n, dtype=np.int64),
        n_visits=np.zeros(n, dtype=np.int64),
        visits=np.zeros((n, max_visits), dtype=np.int64),
        device_of=np.zeros((n, max_ops), dtype=np.int64),
        simulated=np.zeros((n, max_ops), dtype=np.int64),
        timeline=timeline,
        busy=np.zeros((n, max_devices)),
        load=np.zeros((n, max_devices)),
        updates_s=np.zeros((n, max_devices)),
        state=np.zeros((n, 7), dtype=np.int64),
        waiting_s=np.zeros((n, n_clocks(max_devices))),
        time_s=np.zeros((n, 1)),
        best_s=np.zeros((n, 1)),
        best_device_of=np.zeros((n, max_ops), dtype=np.int64),
        returned=np.zeros(n),
    )


def begin_empty(episodes: Episodes, e: int, problem: int, visits: IntArray, *, is_incremental: bool) -> None:
    """Begins episode `e` over a problem (its index) with nothing placed.

    Args:
        visits: ops in the order they are visited, int (n_visits,).
        is_incremental: simulate by adding one op at a time.
    """
    episodes.problem[e], episodes.n_visits[e] = problem, len(visits)
    episodes.visits[e, : len(visits)] = visits
    episodes.timeline.finish[e] = 0.0
    episodes.timeline.sent[e] = episodes.timeline.arrival[e] = -1.0
    episodes.timeline.free[e] = 0.0
    episodes.busy[e] = episodes.load[e] = episodes.time_s[e] = episodes.returned[e] = 0.0
    episodes.waiting_s[e] = episodes.updates_s[e] = 0.0
    episodes.best_s[e] = np.inf
    episodes.device_of[e] = episodes.simulated[e] = -1
    episodes.state[e] = 0
    episodes.state[e, [LAST_DEVICE, IS_INCREMENTAL]] = -1, is_incremental
    if (np.diff(visits) < 0).any():
        episodes.state[e, TO_COME] = episodes.device_of.shape[1]


def place_all(episodes: Episodes, e: int, problem: Problem, device_of: IntArray) -> None:
    """Places every op of the empty episode `e` on a device, int (n_ops,), and simulates the placement."""
    graph, n_ops, n_devices = problem.graph, problem.graph.n_ops, problem.n_devices
    episodes.device_of[e, :n_ops] = episodes.simulated[e, :n_ops] = device_of
    seconds = problem.op_seconds[np.arange(n_ops), device_of]
    episodes.busy[e, :n_devices] = np.bincount(device_of, seconds, minlength=n_devices)
    unit_device = device_of[graph.units.items[graph.units.ptr[:-1]]]
    episodes.load[e, :n_devices] = np.bincount(unit_device, problem.footprint_bytes, minlength=n_devices)
    sizes = (n_ops, n_ops, *[graph.n_tensors * n_devices] * 2, n_clocks(n_devices))
    timeline = Timeline(*(rows[e, :size] for rows, size in zip(episodes.timeline, sizes, strict=True)))
    run_many(problem.arrays, device_of[None], timeline, False, episodes.time_s[e], np.zeros((1, 0)))


@kernel
def episode_at(episodes, p, e):
    """Returns views of one episode, cut to its problem's size."""
    n_ops, n_devices = len(p.is_source), len(p.memory)
    n_slots = len(p.producer) * n_devices
    rows = episodes.timeline
    return Episode(
        visits=episodes.visits[e, : episodes.n_visits[e]],
        device_of=episodes.device_of[e, :n_ops],
        simulated=episodes.simulated[e, :n_ops],
        timeline=Timeline(
            start=rows.start[e, :n_ops],
            finish=rows.finish[e, :n_ops],
            sent=rows.sent[e, :n_slots],
            arrival=rows.arrival[e, :n_slots],
            free=rows.free[e, : n_clocks(n_devices)],
        ),
        busy=episodes.busy[e, :n_devices],
        load=episodes.load[e, :n_devices],
        updates_s=episodes.updates_s[e, :n_devices],
        state=episodes.state[e],
        waiting_s=episodes.waiting_s[e, : n_clocks(n_devices)],
        time_s=episodes.time_s[e],
        best_s=episodes.best_s[e],
        best_device_of=episodes.best_device_of[e, :n_ops],
    )


@kernel
def simulate_op(m, p, episode, op, device, moves_unit):
    """Shows a full simulation an op on a device, and the source ops of its unit or the whole unit with it.

    Args:
        episode: `simulated` is written.
        device: index of the device, int; -1 hides them again.
        moves_unit: true if the whole unit goes there, bool.
    """
    unit = m.unit_of[op]
    episode.simulated[op] = device
    for k in range(m.unit_ptr[unit], m.unit_ptr[unit + 1]):
        if moves_unit or p.is_source[m.unit_item[k]]:
            episode.simulated[m.unit_item[k]] = device
