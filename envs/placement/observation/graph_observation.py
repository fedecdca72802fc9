"""A wrapper whose observation holds the graph around the op at hand, for policies without a graph encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.placement.env import Observations, PlacementEnv
from envs.placement.observation.features import COLUMN, FEATURE_BOUND
from envs.problem import Problem
from graphs.graph_columns import PHASES, Csr
from graphs.system.array_types import FloatArray, IntArray

OP_FEATURES = (
    "time",
    "footprint",
    "input_transfer_time",
    "output_transfer_time",
    "n_producers",
    "n_consumers",
    *(f"is_{phase}" for phase in PHASES),
    "visits_done",
)
"""The observation of the op at hand. Times are means over devices or links, in mean op times; the footprint
is in mean device memories; these and the counts are log(1 + x). The rest are flags and a share."""

NEIGHBOUR_FEATURES = ("is_there", "transfer_time", "time", "footprint", "is_source")
"""The observation of a placed neighbour, before a flag for each device it may be on. `is_there` is 0 in the
rows that fill up where there are fewer neighbours; `transfer_time` is of the bytes between it and the op."""


@dataclass(frozen=True, eq=False)
class GraphTables:
    """The tables of one problem from which observations are made.

    Attributes:
        op_features: `OP_FEATURES` but the last, float64 (n_ops, n_features).
        neighbour_features: `NEIGHBOUR_FEATURES` from the third on, float64 (n_ops, n_features).
        edges: (producer, consumer) pairs, int (n_edges, 2).
        transfer_time: squashed time of all bytes of an edge, (n_edges,).
        inputs, outputs: edges of each op, those of most bytes first.
    """

    op_features: FloatArray
    neighbour_features: FloatArray
    edges: IntArray
    transfer_time: FloatArray
    inputs: Csr
    outputs: Csr


def graph_tables(problem: Problem) -> GraphTables:
    """Computes what the observation needs to know of one problem."""
    graph, seconds = problem.graph, problem.op_seconds
    mean_op_s = float(seconds[seconds > 0].mean()) if (seconds > 0).any() else 1.0
    edges, edge_bytes = graph.edges, _edge_bytes(problem)
    others = ~np.eye(problem.n_devices, dtype=bool)
    seconds_per_byte = (1.0 / problem.cluster.bytes_per_s[others]).mean() if others.any() else 0.0
    transfer = edge_bytes * seconds_per_byte / mean_op_s
    time = np.log1p(seconds.mean(axis=1) / mean_op_s)
    footprint = np.log1p(problem.footprint_bytes[graph.unit_of] / problem.cluster.memory_bytes.mean())
    phase = np.eye(len(PHASES))[[PHASES.index(name) for name in graph.phases]]
    columns = [
        time,
        footprint,
        np.log1p(np.bincount(edges[:, 1], transfer, minlength=graph.n_ops)),
        np.log1p(np.bincount(edges[:, 0], transfer, minlength=graph.n_ops)),
        np.log1p(np.diff(graph.predecessors.ptr)),
        np.log1p(np.diff(graph.successors.ptr)),
    ]
    most_first = np.argsort(-edge_bytes, kind="stable")
    return GraphTables(
        op_features=np.hstack([np.stack(columns, axis=1), phase]),
        neighbour_features=np.stack([time, footprint, graph.is_source], axis=1),
        edges=edges,
        transfer_time=np.log1p(transfer),
        inputs=Csr.from_pairs(edges[most_first, 1], most_first, graph.n_ops),
        outputs=Csr.from_pairs(edges[most_first, 0], most_first, graph.n_ops),
    )


class GraphObservation(
    gym.ObservationWrapper[Observations, np.int64, Observations], gym.utils.RecordConstructorArgs
):
    """Observes the op at hand and its placed neighbours, besides the devices and the mask.

    The observation is a dictionary of fixed-size arrays, all of them free of the problem's scale:

        op: float32 (len(OP_FEATURES),).
        producers, consumers: the `n_neighbours` placed ones with most bytes between them and the op, most
            first; float32 (n_neighbours * (len(NEIGHBOUR_FEATURES) + max_devices),), row after row.
        devices, mask: as in `PlacementEnv`.

    Args:
        n_neighbours: number of producers, and of consumers, in the observation.

    Raises:
        TypeError: another environment.
        ValueError: fewer than one neighbour.
    """

    def __init__(self, env: gym.Env[Observations, np.int64], n_neighbours: int = 4) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, n_neighbours=n_neighbours)
        gym.ObservationWrapper.__init__(self, env)
        placement = env.unwrapped
        if not isinstance(placement, PlacementEnv):
            raise TypeError(f"GraphObservation observes a PlacementEnv, not a {type(placement).__name__}")
        if n_neighbours < 1:
            raise ValueError(f"n_neighbours is {n_neighbours}; use at least 1")
        self._placement, self._n_neighbours = placement, n_neighbours
        self._tables = [graph_tables(problem) for problem in placement.problems]
        space = cast("spaces.Dict", placement.observation_space)
        self._n_devices = int(cast("spaces.Discrete", placement.action_space).n)
        n_values = n_neighbours * (len(NEIGHBOUR_FEATURES) + self._n_devices)
        parts: dict[str, gym.Space[NDArray[np.generic]]] = {
            "op": spaces.Box(0, FEATURE_BOUND, (len(OP_FEATURES),), np.float32),
            "producers": spaces.Box(0, FEATURE_BOUND, (n_values,), np.float32),
            "consumers": spaces.Box(0, FEATURE_BOUND, (n_values,), np.float32),
            "devices": space["devices"],
            "mask": space["mask"],
        }
        self.observation_space = cast("gym.Space[Observations]", spaces.Dict(parts))

    def observation(self, observation: Observations) -> Observations:
        """Returns the observation described above for one of `PlacementEnv`."""
        tables, op = self._tables[int(observation["problem"][0])], int(observation["op"][0])
        device_of = self._placement.device_of
        visits_done = observation["devices"][COLUMN.visits_done]
        return {
            "op": np.append(tables.op_features[op], visits_done).astype(np.float32),
            "producers": self._neighbours(tables, tables.inputs.row(op), 0, device_of),
            "consumers": self._neighbours(tables, tables.outputs.row(op), 1, device_of),
            "devices": observation["devices"],
            "mask": observation["mask"],
        }

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns which devices have free memory for the op at hand, bool (max_devices,)."""
        return self._placement.action_masks()

    def _neighbours(
        self, tables: GraphTables, edges: IntArray, end: int, device_of: IntArray
    ) -> NDArray[np.float32]:
        """Returns flat rows of the first placed ops at one end (0 producer, 1 consumer) of some edges."""
        ops = tables.edges[edges, end]
        placed = np.flatnonzero(device_of[ops] >= 0)[: self._n_neighbours]
        edges, ops = edges[placed], ops[placed]
        is_on = np.eye(self._n_devices)[device_of[ops]]
        rows = np.zeros((self._n_neighbours, len(NEIGHBOUR_FEATURES) + self._n_devices), dtype=np.float32)
        rows[: len(ops)] = np.column_stack(
            [np.ones(len(ops)), tables.transfer_time[edges], tables.neighbour_features[ops], is_on]
        )
        return rows.ravel()


def _edge_bytes(problem: Problem) -> FloatArray:
    """Bytes of all tensors from a producer to a consumer, in the order of `OpGraph.edges`, (n_edges,)."""
    graph = problem.graph
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    keys = graph.tensor_producer[tensor] * graph.n_ops + graph.consumers.items
    _, edge = np.unique(keys, return_inverse=True)
    return np.bincount(edge, graph.tensor_bytes[tensor], minlength=len(graph.edges)).astype(np.float64)
