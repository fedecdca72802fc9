"""Recording of an episode that follows a placement, in one compiled loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.placement.episodes import EpisodeBatch
from envs.placement.observation.features import N_DEVICE_FEATURES
from envs.placement.transition import advance
from envs.simulator.arrays import copy
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel


class Recording(NamedTuple):
    """The decisions of an episode, one a row."""

    op: IntArray  # (n,) op at hand
    devices: NDArray[np.float32]  # (n, max_devices, N_DEVICE_FEATURES) observed features
    mask: NDArray[np.int8]  # (n, max_devices) 1 = offered
    reward: FloatArray  # (n,)


def record(batch: EpisodeBatch, device_of: IntArray) -> Recording | None:
    """Follows a placement in the first episode of a batch, which has begun.

    Args:
        device_of: device of each op, int64 (n_ops,).

    Returns:
        The decisions; None where a device of the placement is not offered.
    """
    n = len(batch.problems[int(batch.observation.problem[0, 0])].graph.units)
    rows = Recording(
        op=np.zeros(n, dtype=np.int64),
        devices=np.zeros((n, batch.max_devices, N_DEVICE_FEATURES), dtype=np.float32),
        mask=np.zeros((n, batch.max_devices), dtype=np.int8),
        reward=np.zeros(n),
    )
    batch.loop(follow, device_of[None], rows)
    if not batch.done[0]:
        return None
    n_taken = int(batch.result(0).decisions)
    return Recording(rows.op[:n_taken], rows.devices[:n_taken], rows.mask[:n_taken], rows.reward[:n_taken])


@kernel(entry=True)
def follow(packed, episodes, scratch, rules, first, devices_of, observation, result, rows):
    """Takes the decisions of a placement until one is not offered or the episode is done.

    Args:
        packed, episodes, scratch, rules, first, observation, result: as of `step_episodes`.
        devices_of: device of each op, int64 (1, n_ops).
        rows: `Recording`; written.
    """
    at = 0
    while not result.done[first]:
        op, mask = observation.op[first, 0], observation.mask[first]
        device = devices_of[0, op]
        if not mask[device]:
            return
        rows.op[at] = op
        copy(mask, rows.mask[at])
        for each in range(len(mask)):
            copy(observation.devices[first, each], rows.devices[at, each])
        advance(packed, episodes, scratch, rules, first, device, observation, result)
        rows.reward[at] = result.reward[first]
        at += 1
