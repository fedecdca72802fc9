"""The encoder `sage` and the first layer of the actor's head, compiled, up to the rounding of float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from agent.policy.compiled.layers import Floats, add_product, by_input, silu
from agent.policy.node_features import GraphArrays
from agent.policy.shape import NetworkShape
from envs.simulator.arrays import copy
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel

EPSILON = np.float32(1e-5)
"""Added to the variance by torch's `LayerNorm`."""


class EncoderArrays(NamedTuple):
    """Weights, float32; each matrix has a row for each input."""

    input_weight: Floats  # (n_node_features, hidden)
    input_bias: Floats  # (hidden,)
    norm: Floats  # (n_rounds + 1, 2, hidden) factor and summand of each normalisation, the last one too
    own_weight: Floats  # (n_rounds, hidden, hidden)
    own_bias: Floats  # (n_rounds, hidden)
    producer_weight: Floats  # (n_rounds, hidden, hidden)
    consumer_weight: Floats  # (n_rounds, hidden, hidden)
    op_weight: Floats  # (hidden, hidden) of the head
    graph_weight: Floats  # (hidden + n_graph_features, hidden) first layer of `of_graph`
    graph_bias: Floats  # (hidden,)
    summary_weight: Floats  # (hidden, hidden) second layer of `of_graph`
    summary_bias: Floats  # (hidden,)


class Neighbours(NamedTuple):
    """The producers and consumers of each node: `item[ptr[i] : ptr[i + 1]]` of both, int64."""

    producer_ptr: IntArray  # (n_nodes + 1,)
    producer_item: IntArray  # (n_edges,)
    consumer_ptr: IntArray  # (n_nodes + 1,)
    consumer_item: IntArray  # (n_edges,)


def encoder_arrays(shape: NetworkShape, weights: Mapping[str, Floats]) -> EncoderArrays:
    """Lays out the weights of a network, by their names in `PlacementNetwork`, for the actor alone."""
    hidden = shape.hidden
    rounds = [f"encoder.rounds.{at}" for at in range(shape.rounds)]
    norms = [*(f"{name}.norm" for name in rounds), "encoder.norm"]

    def stack(name: str) -> Floats:
        return np.stack([by_input(weights[f"{each}.{name}"]) for each in rounds])

    return EncoderArrays(
        input_weight=by_input(weights["encoder.input_proj.weight"]),
        input_bias=weights["encoder.input_proj.bias"],
        norm=np.stack([np.stack([weights[f"{name}.weight"], weights[f"{name}.bias"]]) for name in norms]),
        own_weight=stack("own.weight"),
        own_bias=np.stack([weights[f"{name}.own.bias"] for name in rounds]),
        producer_weight=stack("from_producers.weight"),
        consumer_weight=stack("from_consumers.weight"),
        op_weight=by_input(weights["of_op.weight"][:hidden]),
        graph_weight=by_input(weights["of_graph.0.weight"]),
        graph_bias=weights["of_graph.0.bias"],
        summary_weight=by_input(weights["of_graph.2.weight"][:hidden]),
        summary_bias=weights["of_graph.2.bias"][:hidden],
    )


def contexts_of(graph: GraphArrays, arrays: EncoderArrays) -> Floats:
    """Computes the part of the actor's first layer that no placement changes, float32 (n_nodes, hidden)."""
    n_nodes, hidden = len(graph.nodes), len(arrays.input_bias)
    state, message, contexts = (np.zeros((n_nodes, hidden), dtype=np.float32) for _ in range(3))
    rows = np.zeros((3, max(hidden, len(arrays.graph_weight))), dtype=np.float32)
    encode(
        graph.nodes, graph.graph, neighbours_of(graph.edges, n_nodes), arrays, state, message, rows, contexts
    )
    return contexts


def neighbours_of(edges: IntArray, n_nodes: int) -> Neighbours:
    """Sorts edges, producer and consumer by producer, int64 (2, n_edges), by node."""
    producer, consumer = edges
    by_consumer = np.argsort(consumer, kind="stable")

    def pointers(ends: IntArray) -> IntArray:
        return np.concatenate([[0], np.bincount(ends, minlength=n_nodes).cumsum()]).astype(np.int64)

    return Neighbours(
        pointers(consumer),
        np.ascontiguousarray(producer[by_consumer]),
        pointers(producer),
        np.ascontiguousarray(consumer),
    )


@kernel(entry=True)
def encode(nodes, graph, neighbours, w, state, message, rows, contexts):
    """Encodes one graph.

    Args:
        nodes: float32 (n_nodes, n_node_features).
        graph: float32 (n_graph_features,).
        neighbours: `Neighbours`.
        w: `EncoderArrays`.
        state, message: float32 (n_nodes, hidden); written (scratch).
        rows: float32 (3, at least hidden and hidden + n_graph_features); written (scratch).
        contexts: float32 (n_nodes, hidden); written.
    """
    hidden, n_nodes = len(w.input_bias), len(nodes)
    aggregate, mean, summary = rows[0, :hidden], rows[1, :hidden], rows[2, : len(w.graph_weight)]
    for i in range(n_nodes):
        copy(w.input_bias, state[i])
        add_product(nodes[i], w.input_weight, state[i])
    for at in range(len(w.own_weight)):
        for i in range(n_nodes):
            normalise(state[i], w.norm[at], message[i])
        for i in range(n_nodes):
            copy(w.own_bias[at], aggregate)
            add_product(message[i], w.own_weight[at], aggregate)
            if average(neighbours.producer_ptr, neighbours.producer_item, i, message, mean):
                add_product(mean, w.producer_weight[at], aggregate)
            if average(neighbours.consumer_ptr, neighbours.consumer_item, i, message, mean):
                add_product(mean, w.consumer_weight[at], aggregate)
            silu(aggregate)
            for k in range(hidden):
                state[i, k] += aggregate[k]
    for k in range(hidden):
        summary[k] = 0.0
    for i in range(n_nodes):
        normalise(state[i], w.norm[len(w.own_weight)], message[i])
        for k in range(hidden):
            summary[k] += message[i, k]
    for k in range(hidden):
        summary[k] /= np.float32(n_nodes)
    copy(graph, summary[hidden:])
    copy(w.graph_bias, aggregate)
    add_product(summary, w.graph_weight, aggregate)
    silu(aggregate)
    copy(w.summary_bias, mean)
    add_product(aggregate, w.summary_weight, mean)
    for i in range(n_nodes):
        copy(mean, contexts[i])
        add_product(message[i], w.op_weight, contexts[i])


@kernel
def normalise(values, weight, normalised):
    """Normalises a vector to mean 0 and variance 1, then scales and shifts it.

    Args:
        values: float32 (hidden,).
        weight: float32 (2, hidden), factors and summands.
        normalised: float32 (hidden,); written.
    """
    n, total, square = np.float32(len(values)), np.float32(0.0), np.float32(0.0)
    for k in range(len(values)):
        total += values[k]
    for k in range(len(values)):
        square += (values[k] - total / n) ** 2
    scale = np.float32(1.0) / np.sqrt(square / n + EPSILON)
    for k in range(len(values)):
        normalised[k] = (values[k] - total / n) * scale * weight[0, k] + weight[1, k]


@kernel
def average(ptr, item, i, message, mean):
    """Averages the messages of a node's neighbours.

    Args:
        ptr: int64 (n_nodes + 1,).
        item: neighbours of node i from ptr[i] to ptr[i + 1], int64 (n_edges,).
        i: index of the node, int.
        message: float32 (n_nodes, hidden).
        mean: float32 (hidden,); written if there are neighbours.

    Returns:
        Number of neighbours.
    """
    n = ptr[i + 1] - ptr[i]
    if n:
        copy(message[item[ptr[i]]], mean)
        for at in range(ptr[i] + 1, ptr[i + 1]):
            for k in range(len(mean)):
                mean[k] += message[item[at], k]
        for k in range(len(mean)):
            mean[k] /= np.float32(n)
    return n
