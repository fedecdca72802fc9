"""Neighbourhoods: sets of placement units, drawn in several ways, and their features."""

from __future__ import annotations

import numpy as np

from agent.experiments.neighbourhoods.scan import FIRST, LAG_IN, LAG_OUT, N_FEATURES
from agent.placers.search.annealing_moves import device_of_unit, draw
from graphs.system.jit import kernel

KINDS = ("random", "ball", "critical", "module", "program", "layers", "link", "boundary")
RANDOM, BALL, CRITICAL, MODULE, PROGRAM, LAYERS, LINK, BOUNDARY = range(8)
"""Ways to draw: any units; the units nearest to one; a stretch of the critical units; units of one module; a
stretch of the program; of the layers; the units nearest to one that waits for a copy; a stretch of the units
with neighbours on other devices."""
N_INPUTS = 2 * N_FEATURES + len(KINDS) + 8
"""Features of a set: means and greatest values of those of its units, its kind, and eight of its own."""
LINK_DRAWS = 8
"""Units of which the one that waits longest for copies is the middle of a `link` set."""


@kernel
def window(sequence, middle, k, out):
    """Takes a stretch of a sequence.

    Args:
        sequence: units, int64 (n,).
        middle: position, int.
        k: units to take, int.
        out: units, int64 (>= k,); written.

    Returns:
        Number of units.
    """
    k = min(k, len(sequence))
    first = min(max(middle - k // 2, 0), len(sequence) - k)
    for i in range(k):
        out[i] = sequence[first + i]
    return k


@kernel
def ball(units, scan, unit, k, out):
    """Takes the units that are the fewest edges away from one.

    Args:
        units: `Units`.
        scan: `Scan`; its marks are written.
        unit: index, int.
        k: units to take, int.
        out: units, int64 (>= k,); written.

    Returns:
        Number of units.
    """
    stamp = scan.stamp[0]
    out[0] = unit
    scan.mark[unit] = stamp
    n, at = 1, 0
    while at < n and n < k:
        for j in range(units.near_ptr[out[at]], units.near_ptr[out[at] + 1]):
            near = units.near_item[j]
            if n < k and scan.mark[near] != stamp:
                scan.mark[near] = stamp
                out[n] = near
                n += 1
        at += 1
    return n


@kernel
def random_units(scan, k, out, rng):
    """Takes units at random, one after another from a random one where many are taken already.

    Args:
        scan: `Scan`; its marks are written.
        k: units to take, int.
        out: units, int64 (>= k,); written.
        rng: generator.

    Returns:
        Number of units.
    """
    n, n_units, stamp = 0, len(scan.mark), scan.stamp[0]
    while n < k:
        unit = draw(n_units, rng)
        while scan.mark[unit] == stamp and k > n_units // 2:
            unit = (unit + 1) % n_units
        if scan.mark[unit] != stamp:
            scan.mark[unit] = stamp
            out[n] = unit
            n += 1
    return n


@kernel
def draw_set(units, segments, scan, kind, k, out, rng):
    """Draws a neighbourhood; one that cannot be drawn in its way is a ball.

    Args:
        units: `Units`. segments: `Segments`.
        scan: `Scan`; its marks are written.
        kind: way to draw, int.
        k: units to take, int.
        out: units, int64 (>= k,); written.
        rng: generator.

    Returns:
        Number of units.
    """
    n_units = len(scan.mark)
    scan.stamp[0] += 1
    k, unit = min(k, n_units), draw(n_units, rng)
    if kind == RANDOM:
        return random_units(scan, k, out, rng)
    if kind == CRITICAL and scan.n[0] > 1:
        return window(scan.critical[: scan.n[0]], draw(scan.n[0], rng), k, out)
    if kind == MODULE and segments.module_ptr[unit] < segments.module_ptr[unit + 1]:
        first = segments.module_ptr[unit]
        module = segments.module_item[first + draw(segments.module_ptr[unit + 1] - first, rng)]
        first, end = segments.module_first[module], segments.module_end[module]
        return window(segments.sequences[2, first:end], segments.positions[2, unit] - first, k, out)
    if kind == PROGRAM:
        return window(segments.sequences[0], segments.positions[0, unit], k, out)
    if kind == LAYERS:
        return window(segments.sequences[1], segments.positions[1, unit], k, out)
    if kind == BOUNDARY and scan.n[1] > 1:
        return window(scan.boundary[: scan.n[1]], draw(scan.n[1], rng), k, out)
    if kind == LINK:
        for _ in range(LINK_DRAWS):
            other = draw(n_units, rng)
            if scan.feature[other, LAG_IN] + scan.feature[other, LAG_OUT] > (
                scan.feature[unit, LAG_IN] + scan.feature[unit, LAG_OUT]
            ):
                unit = other
    return ball(units, scan, unit, k, out)


@kernel
def pool(feature, chosen, x):
    """Fills in the means and the greatest values of the features of units.

    Args:
        feature: of all units, (n_units, N_FEATURES).
        chosen: units, int64 (k,).
        x: features of the set, (>= 2 * N_FEATURES,); written.
    """
    x[:] = 0.0
    x[N_FEATURES : 2 * N_FEATURES] = -np.inf
    for unit in chosen:
        for j in range(N_FEATURES):
            x[j] += feature[unit, j] / len(chosen)
            x[N_FEATURES + j] = max(x[N_FEATURES + j], feature[unit, j])


@kernel
def set_features(units, chain, scan, kind, chosen, progress, temperature, x):
    """Finds the features of a neighbourhood.

    Args:
        units: `Units`. chain: `AnnealingChain`.
        scan: `Scan`; its scratch is written.
        kind: way in which it was drawn, int.
        chosen: units, int64 (k,).
        progress: share of the budget that is spent.
        temperature: of the chain, in units of energy.
        x: features, (N_INPUTS,); written.
    """
    pool(scan.feature, chosen, x)
    scan.stamp[0] += 1
    scan.counts[:] = 0.0
    first, inner, n_near = 1.0, 0.0, 0.0
    for unit in chosen:
        scan.mark[unit] = scan.stamp[0]
    for unit in chosen:
        first = min(first, scan.feature[unit, FIRST])
        scan.counts[device_of_unit(units, chain, unit)] += 1.0 / len(chosen)
        for j in range(units.near_ptr[unit], units.near_ptr[unit + 1]):
            n_near += 1.0
            inner += scan.mark[units.near_item[j]] == scan.stamp[0]
    x[2 * N_FEATURES + kind] = 1.0
    own = x[2 * N_FEATURES + len(KINDS) :]
    own[0] = np.log(len(chosen))
    own[1] = np.log(len(scan.mark))
    own[2] = first
    own[3] = inner / max(n_near, 1.0)
    for share in scan.counts:
        own[4] = max(own[4], share)
    own[5] = progress
    own[6] = temperature * 1e3
    own[7] = len(chosen) / len(scan.mark)


@kernel(entry=True)
def draw_sets(units, segments, chain, scan, kinds, sizes, progress, temperature, out, n_out, x, rng):
    """Draws neighbourhoods with their features.

    Args:
        units: `Units`. segments: `Segments`. chain: `AnnealingChain`.
        scan: `Scan`; its scratch is written.
        kinds, sizes: of the sets, int64 (n,).
        progress, temperature: as in `set_features`.
        out: units of each, int64 (n, most); written.
        n_out: numbers of units, int64 (n,); written.
        x: features of each, (n, N_INPUTS); written.
        rng: generator.
    """
    for i in range(len(kinds)):
        n_out[i] = draw_set(units, segments, scan, kinds[i], sizes[i], out[i], rng)
        set_features(units, chain, scan, kinds[i], out[i, : n_out[i]], progress, temperature, x[i])
