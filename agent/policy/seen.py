"""The graphs that a policy was shown in training, and the comparison of a graph with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphs.identity import graph_hash, topology_hash
from graphs.op_graph import OpGraph

SEEN, SEEN_TOPOLOGY, NOT_SEEN = "yes", "topology", "no"
"""A policy was shown a graph, or one of its structure with other costs, or neither."""
KEYS = frozenset({"name", "family", "sha256", "topology"})
"""Of an entry of the list."""

Entry = Mapping[str, str]


def describe_seen(graphs: Iterable[OpGraph]) -> tuple[Entry, ...]:
    """Makes the entries of some graphs: name, family, and hashes of structure and costs, and of structure."""
    return tuple(
        {
            "name": graph.name,
            "family": graph.family,
            "sha256": graph_hash(graph),
            "topology": topology_hash(graph),
        }
        for graph in graphs
    )


def how_seen(graph: OpGraph, entries: Iterable[Entry]) -> str:
    """Says what of a graph the entries hold, whatever its names: `SEEN`, `SEEN_TOPOLOGY` or `NOT_SEEN`."""
    shown = [(entry["sha256"], entry["topology"]) for entry in entries]
    digest, topology = graph_hash(graph), topology_hash(graph)
    if any(digest == each for each, _ in shown):
        return SEEN
    return SEEN_TOPOLOGY if any(topology == each for _, each in shown) else NOT_SEEN
