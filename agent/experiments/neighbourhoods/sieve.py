"""A filter of proposals: only those that a network scores best are simulated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agent.experiments.neighbourhoods.networks import score
from agent.experiments.neighbourhoods.scan import FIRST, N_FEATURES
from agent.experiments.neighbourhoods.sets import pool
from agent.placers.search.annealing_moves import device_of_unit
from graphs.system.array_types import FloatArray
from graphs.system.jit import kernel

N_INPUTS = 2 * N_FEATURES + 12
"""Features of a proposal: means and greatest values of those of its units, and twelve of its own."""
MOST_SEEN = 32
"""Units of a long segment from which its features are estimated."""
RATE = 0.05
"""Step by which the threshold of scores follows the share that is wanted."""


class Sieve(NamedTuple):
    """A filter of proposals, and a log of them."""

    share: FloatArray  # (1,) of the proposals that are simulated; 1 for all
    threshold: FloatArray  # (1,) least score, adapted to the share
    x: FloatArray  # (N_INPUTS,) scratch
    log_x: FloatArray  # (n_log, N_INPUTS) features of simulated proposals
    log_gain: FloatArray  # (n_log,) energy that each gained


def new_sieve(share: float = 1.0, n_log: int = 0) -> Sieve:
    """Creates a filter that lets a share of the proposals pass, and logs some."""
    log = np.zeros((n_log, N_INPUTS)), np.full(n_log, -1.0)
    return Sieve(np.array([share]), np.zeros(1), np.zeros(N_INPUTS), *log)


@kernel
def move_features(units, chain, scan, n_moved, temperature, step, x):
    """Finds the features of a proposal.

    Args:
        units: `Units`.
        chain: `AnnealingChain` with the proposal in `device_of`, `moved` and `back`.
        scan: `Scan`; its marks are written.
        n_moved: number of units moved, int.
        temperature: in units of energy.
        step: step time of the current placement, seconds.
        x: features, (N_INPUTS,); written.
    """
    target, source = device_of_unit(units, chain, chain.moved[0]), chain.back[0]
    scan.stamp[0] += 1
    for i in range(n_moved):
        scan.mark[chain.moved[i]] = scan.stamp[0]
    stride = max(n_moved // MOST_SEEN, 1)
    seen = chain.moved[:n_moved:stride]
    pool(scan.feature, seen, x)
    first, at_target, at_source, n_near, seconds = 1.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(seen)):
        first = min(first, scan.feature[seen[i], FIRST])
        seconds += units.seconds[seen[i], target] * stride
        for k in range(units.near_ptr[seen[i]], units.near_ptr[seen[i] + 1]):
            near = units.near_item[k]
            if scan.mark[near] != scan.stamp[0]:
                device = device_of_unit(units, chain, near)
                n_near += 1.0
                at_target += device == target
                at_source += device != target and device == chain.back[i * stride]
    load = chain.work_s.sum() / len(chain.work_s)
    own = x[2 * N_FEATURES :]
    own[0] = np.log(n_moved)
    own[1] = first
    own[2] = at_target / max(n_near, 1.0)
    own[3] = at_source / max(n_near, 1.0)
    own[4] = own[2] - own[3]
    own[5] = np.log1p(at_target)
    own[6] = np.log1p(at_source)
    own[7] = chain.work_s[target] / load - 1.0
    own[8] = chain.work_s[source] / load - 1.0
    own[9] = np.log1p(1e3 * seconds / step)
    own[10] = temperature * 1e3
    own[11] = 1.0 if n_near == 0.0 else 0.0


@kernel
def passes(units, chain, scan, net, sieve, n_moved, temperature, step):
    """Says whether to simulate a proposal, and adapts the threshold.

    Args:
        units: `Units`. chain: `AnnealingChain`.
        scan: `Scan`; its marks are written.
        net: `Net`; its scratch is written.
        sieve: `Sieve`; `x` and `threshold` are written.
        n_moved, temperature, step: as in `move_features`.

    Returns:
        Whether it is among the best.
    """
    is_kept = sieve.share[0] >= 1.0
    if not is_kept or len(sieve.log_gain):
        move_features(units, chain, scan, n_moved, temperature, step, sieve.x)
    if not is_kept:
        is_kept = score(net, sieve.x) >= sieve.threshold[0]
        sieve.threshold[0] += RATE * (1.0 - sieve.share[0] if is_kept else -sieve.share[0])
    return is_kept
