"""Links in the model of `exact`: transfers over one link follow one another, in whichever order is best."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from agent.placers.relaxation import Relaxation

MAX_TRANSFERS = 2_000
"""Possible transfers that are modelled at most: beyond, links are free."""


def share_links(relaxed: Relaxation, tick_s: float, horizon: int) -> None:
    """Adds an optional interval for every tensor, sender and receiver; those of a link do not overlap.

    Transfers begin when the tensor is there, and consumers on the receiver wait for them. The simulator sends
    in the order in which tensors are ready, so it takes no less. A tensor that is sent once for all receivers
    is left out, as are links without contention.

    Args:
        horizon: ticks of the longest step that is looked at.
    """
    problem, graph = relaxed.problem, relaxed.problem.graph
    if problem.cluster.sharing == "none" or problem.cluster.transfer_per == "tensor":
        return
    tensors = [tensor for tensor in range(graph.n_tensors) if _readers(relaxed, tensor)]
    pairs = [(a, b) for a in range(problem.n_devices) for b in range(problem.n_devices) if a != b]
    if len(tensors) * len(pairs) > MAX_TRANSFERS:
        return
    on_link = defaultdict(list)
    for tensor in tensors:
        for pair, (interval, busy) in _transfers(relaxed, tensor, pairs, tick_s, horizon).items():
            on_link[int(problem.arrays.link[pair])].append((interval, busy))
    for link, transfers in on_link.items():
        if link >= 0:
            relaxed.model.add_no_overlap([interval for interval, _ in transfers])
            relaxed.model.add(relaxed.makespan >= sum(busy for _, busy in transfers))


def _transfers(
    relaxed: Relaxation, tensor: int, pairs: list[tuple[int, int]], tick_s: float, horizon: int
) -> dict[tuple[int, int], tuple[Any, Any]]:
    """An optional interval, and the ticks that it takes, by sender and receiver."""
    model, graph, arrays = relaxed.model, relaxed.problem.graph, relaxed.problem.arrays
    producer = int(graph.tensor_producer[tensor])
    unit, readers = int(graph.unit_of[producer]), _readers(relaxed, tensor)
    busy_s = (graph.tensor_bytes[tensor] + arrays.n_half) / arrays.bandwidth
    busy = np.floor(busy_s / tick_s).astype(np.int64)
    arrives = np.floor((busy_s + arrays.latency) / tick_s).astype(np.int64)
    begin = {b: model.new_int_var(0, horizon, f"send_{tensor}_{b}") for b in range(relaxed.problem.n_devices)}
    if producer in relaxed.start:
        for each in begin.values():
            model.add(each >= relaxed.start[producer] + relaxed.length[producer])
    found = {}
    for a, b in pairs:
        is_sent = model.new_bool_var(f"sent_{tensor}_{a}_{b}")
        for reader in readers:
            both = [relaxed.on[unit][a], relaxed.on[int(graph.unit_of[reader])][b]]
            model.add_bool_or(both[0].negated(), both[1].negated(), is_sent)
            model.add(relaxed.start[reader] >= begin[b] + int(arrives[a, b])).only_enforce_if(both)
        interval = model.new_optional_fixed_size_interval_var(begin[b], int(busy[a, b]), is_sent, "")
        found[a, b] = interval, int(busy[a, b]) * is_sent
    return found


def _readers(relaxed: Relaxation, tensor: int) -> list[int]:
    """Computing consumers in other units than the producer's."""
    graph = relaxed.problem.graph
    unit = graph.unit_of[graph.tensor_producer[tensor]]
    return [
        int(reader)
        for reader in graph.consumers.row(tensor)
        if graph.is_compute[reader] and graph.unit_of[reader] != unit
    ]
