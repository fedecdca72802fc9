"""The state of episodes, in flat arrays that the kernels read and write.

The kernels of this package share three arguments:

    m: `MdpArrays`; placement units, footprints and scales of the problem.
    p: `ProblemArrays`; graph and cluster as the simulator reads them.
    episode: `Episode`; state of the episode; its arrays are views into `Episodes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from envs.simulator.arrays import Timeline, n_clocks
from envs.simulator.kernels import run_many
from envs.simulator.transfers import transfer_seconds
from graphs.system.array_types import BoolArray, FloatArray, IntArray
from graphs.system.jit import kernel

if TYPE_CHECKING:
    from envs.placement.masks import Mask
    from envs.problem import Problem
    from graphs.op_graph import OpGraph

POSITION, LAST_DEVICE, IS_INCREMENTAL, N_WAITING, N_DECISIONS = range(5)
"""Columns of `Episode.state`: index of the visit at hand, device of the last decision (-1 before the first),
whether the timeline grows by one op at a time (1) or is simulated again (0), while constructing the number
of ops that are decided and not visited yet, and the number of decisions taken."""

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
    update: IntArray  # (n_ops,) update of a parameter that reads most of what an op makes, -1 = none
    update_bytes: FloatArray  # (n_ops,) what it reads of that
    joined: IntArray  # (n_ops,) tensor of an op that is read beside another one, -1 = none
    beside: IntArray  # (n_ops,) the other one, such as the sum that a gradient is added to
    allowed: BoolArray  # (n_units, n_devices) devices that the mask allows a unit, whatever the memory
    footprint_bytes: FloatArray  # (n_units,) resident bytes and saved activations of a unit
    slowness: FloatArray  # (n_devices,) single-device step time over the least
    scales: FloatArray  # (2,) seconds, columns MEAN_OP_S and REWARD_S


class Episode(NamedTuple):
    """State of one episode."""

    visits: IntArray  # (n_visits,) ops in the order they are visited
    device_of: IntArray  # (n_ops,) decided devices, -1 = not yet
    simulated: IntArray  # (n_ops,) the part of `device_of` that a full simulation sees, else -1
    timeline: Timeline  # of what has been visited
    busy: FloatArray  # (n_devices,) seconds of op time of the units on a device
    load: FloatArray  # (n_devices,) bytes, footprints of the units on a device
    state: IntArray  # (5,) columns POSITION ... N_DECISIONS
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
    state: IntArray  # (n, 5)
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
    update, update_bytes = largest_updates(graph)
    joined, beside = largest_joins(graph)
    return MdpArrays(
        unit_of=graph.unit_of,
        unit_ptr=graph.units.ptr,
        unit_item=graph.units.items,
        is_compute=graph.is_compute.astype(np.int64),
        update=update,
        update_bytes=update_bytes,
        joined=joined,
        beside=beside,
        allowed=mask.table(problem),
        footprint_bytes=problem.footprint_bytes,
        slowness=problem.single_device_s / problem.scale_s,
        scales=scales,
    )


def largest_updates(graph: OpGraph) -> tuple[IntArray, FloatArray]:
    """Finds the update, an op that no episode visits, that reads the largest tensor of each op.

    Returns:
        Of each op, the index of that update (the first of equal ones), int (n_ops,), -1 if there is none, and
        the bytes of the tensor, (n_ops,).
    """
    update, read_bytes = np.full(graph.n_ops, -1), np.zeros(graph.n_ops)
    for follower in np.flatnonzero(~graph.is_source & ~graph.is_compute).tolist():
        tensors = graph.inputs.row(follower)
        for op, size in zip(graph.tensor_producer[tensors], graph.tensor_bytes[tensors], strict=True):
            if graph.is_compute[op] and size > read_bytes[op]:
                update[op], read_bytes[op] = follower, size
    return update, read_bytes


def largest_joins(graph: OpGraph) -> tuple[IntArray, IntArray]:
    """Finds the output of each op that is read beside a tensor of another op, and that tensor.

    It is the pair of which most bytes move if both are apart, when the smaller one does. Of what a reader
    reads besides, its largest tensor counts, the first of equal ones.

    Returns:
        Tensor of each op, int (n_ops,), -1 if there is none, and the tensor beside it, int (n_ops,).
    """
    joined, beside = np.full(graph.n_ops, -1), np.full(graph.n_ops, -1)
    readers, inputs = np.flatnonzero(graph.is_compute), graph.inputs
    made_by_compute = graph.is_compute[graph.tensor_producer]
    tensors = readers, inputs.ptr, inputs.items, graph.tensor_producer, graph.tensor_bytes, made_by_compute
    _find_joins(*tensors, joined, beside, np.zeros(graph.n_ops))
    return joined, beside


@kernel(entry=True)
def _find_joins(readers, input_ptr, input_item, producer, size, is_counted, joined, beside, moved_bytes):
    """Does what `largest_joins` does.

    Args:
        readers: ops that episodes visit. input_ptr, input_item: as in `ProblemArrays`.
        producer, size, is_counted: of tensors, the last whether episodes visit the producer; (n_tensors,).
        joined, beside: filled with -1; written. moved_bytes: zeros; written; (n_ops,) each.
    """
    for reader in readers:
        first, last = input_ptr[reader], input_ptr[reader + 1]
        for k in range(first, last):
            tensor, other = input_item[k], -1
            op = producer[tensor]
            for other_k in range(first, last if is_counted[tensor] else first):
                each = input_item[other_k]
                if producer[each] != op and (other < 0 or size[each] > size[other]):
                    other = each
            if other >= 0 and min(size[tensor], size[other]) > moved_bytes[op]:
                joined[op], beside[op], moved_bytes[op] = tensor, other, min(size[tensor], size[other])


@kernel
def updated_s(m, p, device_of, op, device, finish):
    """Returns when the update that reads an output of an op would end, were its link and device free.

    Args:
        m: `MdpArrays`. p: `ProblemArrays`.
        device_of: device of each op, int64 (n_ops,); -1 = unplaced.
        op, device: indices, int.
        finish: finish of the op on the device, seconds.

    Returns:
        Seconds; `finish` if there is no such update, or it is not placed yet.
    """
    update = m.update[op]
    if update < 0:
        return finish
    target = device if m.unit_of[update] == m.unit_of[op] else device_of[update]
    if target < 0:
        return finish
    if target != device:
        finish += transfer_seconds(p, m.update_bytes[op], device, target)
    return finish + p.op_seconds[update, target]


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
        state=np.zeros((n, 5), dtype=np.int64),
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
    episodes.best_s[e] = np.inf
    episodes.device_of[e] = episodes.simulated[e] = -1
    columns = [POSITION, LAST_DEVICE, IS_INCREMENTAL, N_WAITING, N_DECISIONS]
    episodes.state[e, columns] = 0, -1, is_incremental, 0, 0


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
    """Returns views of one episode, cut to its problem's size.

    Args:
        episodes: `Episodes`; episodes side by side.
        p: `ProblemArrays`; the episode's problem.
        e: index of the episode, int.

    Returns:
        An `Episode` whose arrays are views.
    """
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
        state=episodes.state[e],
        time_s=episodes.time_s[e],
        best_s=episodes.best_s[e],
        best_device_of=episodes.best_device_of[e, :n_ops],
    )


@kernel
def simulate_op(m, p, episode, op, device, moves_unit):
    """Shows a full simulation an op on a device, and the source ops of its unit or the whole unit with it.

    Args:
        m: `MdpArrays`. p: `ProblemArrays`.
        episode: `Episode`; `simulated` is written.
        op: index of the op, int.
        device: index of the device, int; -1 hides them again.
        moves_unit: whether the whole unit goes there, bool.
    """
    unit = m.unit_of[op]
    episode.simulated[op] = device
    for k in range(m.unit_ptr[unit], m.unit_ptr[unit + 1]):
        if moves_unit or p.is_source[m.unit_item[k]]:
            episode.simulated[m.unit_item[k]] = device
