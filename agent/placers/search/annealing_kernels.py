"""The chain of annealing and local search, on top of the simulator's kernels.

In the kernels here `p` is a `ProblemArrays`, `units` a `Units`, `segments` a `Segments`, `chain` an
`AnnealingChain`, which they write, `scale_s` the step time of energy 1, seconds, and `track_memory` says that
a device can overflow, bool.
"""

from __future__ import annotations

import numpy as np

from agent.placers.search.annealing_moves import ENERGY, EXCESS, PRICE, first_moved, propose, put
from envs.objective import OVER_BYTES, TOTAL_S
from envs.simulator.arrays import copy
from envs.simulator.memory import peak_memory
from envs.simulator.resume import ROUNDING, candidate_timeline, commit, run_moved
from graphs.system.jit import kernel

OVERFLOW_COST = 10.0
"""Least energy of an overflow as large as all memory; a step on the fastest single device has energy 1."""
PRICED_AFTER, PRICE_FACTOR = 50, 1.5
"""Proposals after which the price of an overflow changes, and the factor by which it does."""


@kernel(inline=True)
def overflow_bytes(p, chain, total_s):
    """Sums the bytes by which the candidate simulation exceeds the memory of each device.

    Args:
        total_s: step time of the proposed placement, seconds.
    """
    peak_memory(p, chain.device_of, candidate_timeline(chain.pair), total_s, chain.peak)
    over = 0.0
    for device in range(len(chain.peak)):
        over += max(chain.peak[device] - p.memory[device], 0.0)
    return over


@kernel(inline=True)
def accept(p, chain, first, limit, scale_s, track_memory):
    """Accepts the proposed placement if its energy is within a limit.

    Memory only adds energy, so it is simulated only where the time alone is within the limit.

    Args:
        first: index of the first op moved, int.
        limit: greatest energy to accept.

    Returns:
        Whether it is accepted.
    """
    safe_s = limit * scale_s * (1.0 + ROUNDING)
    total_s = run_moved(p, chain.device_of, chain.pair, first, safe_s, chain.work_s)
    energy = total_s / scale_s
    if energy > limit:
        return False
    over = overflow_bytes(p, chain, total_s) if track_memory else 0.0
    excess = over / p.memory.sum()
    energy += chain.energy[PRICE] * excess
    if energy > limit:
        return False
    commit(chain.pair)
    chain.energy[ENERGY], chain.energy[EXCESS] = energy, excess
    best = chain.best_score
    if over < best[OVER_BYTES] or (over == best[OVER_BYTES] and total_s < best[TOTAL_S]):
        best[OVER_BYTES], best[TOTAL_S] = over, total_s
        copy(chain.device_of, chain.best)
    return True


@kernel
def change_price(chain):
    """Raises the price of an overflow if the current placement has one, else lowers it to the least.

    Where most ops are much faster on devices with little memory, no price is right for all graphs.

    Source: the penalties of Gendreau, Hertz and Laporte 1994 (doi:10.1287/mnsc.40.10.1276), section 3.
    """
    energy = chain.energy
    price = energy[PRICE] * (PRICE_FACTOR if energy[EXCESS] > 0.0 else 1.0 / PRICE_FACTOR)
    price = max(price, OVERFLOW_COST)
    energy[ENERGY] += (price - energy[PRICE]) * energy[EXCESS]
    energy[PRICE] = price


@kernel(entry=True)
def anneal(p, units, segments, chain, n, temperature, module_share, scale_s, track_memory, rng):
    """Makes proposals and accepts them by Metropolis' rule; at temperature 0, none that is worse.

    Args:
        n: number of proposals, int.
        temperature: temperature in units of energy.
        module_share: probability that a proposal moves a module.
        rng: generator.
    """
    run_moved(p, chain.device_of, chain.pair, np.int64(0), np.inf, chain.work_s)
    commit(chain.pair)
    for proposal in range(n):
        if track_memory and proposal % PRICED_AFTER == PRICED_AFTER - 1:
            change_price(chain)
        n_moved = propose(units, segments, chain, len(p.memory), module_share, rng)
        limit = chain.energy[ENERGY] - temperature * np.log(1.0 - rng.random())
        if n_moved == 0:
            continue
        if accept(p, chain, first_moved(units, chain, n_moved), limit, scale_s, track_memory):
            continue
        for i in range(n_moved - 1, -1, -1):
            put(units, chain, chain.moved[i], chain.back[i])
