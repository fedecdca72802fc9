"""Costs on a nominal device and link, for what depends on a graph alone."""

from __future__ import annotations

import numpy as np

from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray

NOMINAL_FLOPS_PER_S = 1e13
NOMINAL_BYTES_PER_S = 1e12
NOMINAL_LINK_BYTES_PER_S = 1e10


def nominal_op_s(graph: OpGraph) -> FloatArray:
    """Seconds of each op on a nominal device, so that an order depends on the graph alone.

    The mean of the seconds measured on any device kind; where there are none, the roofline of a device of 10
    TFLOP/s and 1 TB/s. Parameters and inputs take none.

    Returns:
        Seconds, (n_ops,).
    """
    roofline = np.maximum(graph.flops / NOMINAL_FLOPS_PER_S, graph.bytes_moved / NOMINAL_BYTES_PER_S)
    total, count = np.zeros(graph.n_ops), np.zeros(graph.n_ops)
    for kind in sorted(graph.seconds):
        known = ~np.isnan(graph.seconds[kind])
        total[known] += graph.seconds[kind][known]
        count += known
    mean = total / np.maximum(count, 1)
    return np.where(graph.is_source, 0.0, np.where(count > 0, mean, roofline))
