"""The objective of PipeDream: max-load, the seconds per microbatch of the busiest stage.

Devices compute while they send and receive, so the load of a stage is the greatest of three times for one
microbatch: compute, forward and backward; what passes the front of the stage (activations in, gradients out);
and what passes its back. A tensor counts once in the stage that makes it if another stage reads it, and once
in each other stage that reads it. Updates and parameters that other stages read are left out, as they come
once a step.

Source: Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", section 3.1.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from envs.pipeline.pipeline import GPIPE
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import phases_of
from graphs.system.array_types import BoolArray, FloatArray, IntArray


class Traffic(NamedTuple):
    """Tensors that nodes make for others, or keep: a row for all with the same maker and readers."""

    maker: IntArray  # (n_rows,)
    is_activation: BoolArray  # (n_rows,) a forward op makes it, else a backward op
    reads: BoolArray  # (n_nodes, n_rows) another node than the maker reads it
    keeps: BoolArray  # (n_nodes, n_rows) a backward op of the node reads the activation
    amount: FloatArray  # (n_rows, 2) bytes and tensors


class StageSums(NamedTuple):
    """Sums over some stages."""

    compute_s: FloatArray  # (n, n_devices) per microbatch
    held_bytes: FloatArray  # (n,) for the whole step
    kept_bytes: FloatArray  # (n,) activations that a backward op of the stage reads, per microbatch
    front: FloatArray  # (n, 2) bytes and tensors that pass the front of the stage, per microbatch
    back: FloatArray  # (n, 2) the same of its back


@dataclass(frozen=True, eq=False)
class StageCosts:
    """The costs of stages, which are runs of nodes; a node is one or more pieces that follow each other.

    Attributes:
        node_of: node of each piece, int64 (n_pieces,).
    """

    pipelined: PipelinedProblem
    node_of: IntArray

    @property
    def n_nodes(self) -> int:
        """The number of nodes."""
        return int(self.node_of[-1]) + 1

    @cached_property
    def per_node(self) -> FloatArray:
        """Forward and backward seconds on each device, and bytes held; (n_nodes, 2 n_devices + 1)."""
        chain = self.pipelined.chain
        first = np.flatnonzero(np.diff(self.node_of, prepend=-1))
        columns = [*chain.seconds[:2], chain.resident_bytes[:, None]]
        return np.add.reduceat(np.hstack(columns), first, axis=0)

    @cached_property
    def traffic(self) -> Traffic:
        """Tensors that nodes make for others in each microbatch, or keep."""
        graph, phase = self.pipelined.problem.graph, phases_of(self.pipelined.problem.graph)
        node = self.node_of[self.pipelined.chain.piece_of]
        rows: dict[tuple[int, bool, tuple[int, ...], tuple[int, ...]], FloatArray]
        rows = defaultdict(lambda: np.zeros(2))
        for tensor in np.flatnonzero(phase[graph.tensor_producer] >= 0).tolist():
            maker, readers = int(graph.tensor_producer[tensor]), graph.consumers.row(tensor)
            home, forward = int(node[maker]), bool(phase[maker] == 0)
            reads = sorted({*node[readers[phase[readers] != 2]].tolist()} - {home})
            keeps = sorted({*node[readers[phase[readers] == 1]].tolist()}) if forward else []
            rows[home, forward, tuple(reads), tuple(keeps)] += graph.tensor_bytes[tensor], 1
        return Traffic(
            maker=np.array([key[0] for key in rows], dtype=np.int64),
            is_activation=np.array([key[1] for key in rows], dtype=np.bool_),
            reads=self._marked([key[2] for key in rows]),
            keeps=self._marked([key[3] for key in rows]),
            amount=np.array(list(rows.values())).reshape(len(rows), 2),
        )

    def _marked(self, nodes: list[tuple[int, ...]]) -> BoolArray:
        marked = np.zeros((self.n_nodes, len(nodes)), dtype=np.bool_)
        for row, members in enumerate(nodes):
            marked[list(members), row] = True
        return marked

    @cached_property
    def mean_link_s(self) -> FloatArray:
        """Seconds of a byte and of a tensor of no bytes over the mean link of a device, (n_devices, 2)."""
        cluster = self.pipelined.problem.cluster
        byte_s = 1.0 / np.where(np.eye(cluster.n_devices, dtype=bool), np.inf, cluster.bytes_per_s)
        tensor_s = np.where(byte_s > 0, cluster.latency_s + cluster.n_half_matrix * byte_s, 0.0)
        link_s = np.stack([byte_s, tensor_s])
        both_ways = np.sort(np.concatenate([link_s, link_s.swapaxes(1, 2)], axis=2), axis=2)
        return both_ways.sum(axis=2).T / max(2 * cluster.n_devices - 2, 1)

    def marks(self, member: BoolArray) -> IntArray:
        """Counts what sets of nodes have of each node and row; of nested sets, it can be subtracted.

        Args:
            member: nodes of each set, (n, n_nodes).

        Returns:
            Of each set: its nodes; its makers, readers and keepers of each row; int32, (n, n_nodes + 3 rows).
        """
        traffic, exact = self.traffic, member.astype(np.float32)
        counts = [exact @ rows.astype(np.float32) for rows in (traffic.reads, traffic.keeps)]
        return np.hstack([exact, exact[:, traffic.maker], *counts]).astype(np.int32)

    def sums(self, marks: IntArray) -> StageSums:
        """Sums up what some stages compute, hold, send and receive.

        Args:
            marks: marks of the stages, see `marks`, (n, n_nodes + 3 n_rows).
        """
        n, traffic, n_rows = self.pipelined.problem.n_devices, self.traffic, len(self.traffic.maker)
        of_stage = marks[:, : self.n_nodes] @ self.per_node
        makes, reads, keeps = marks[:, self.n_nodes :].reshape(len(marks), 3, n_rows).swapaxes(0, 1)
        gets, sends = (makes == 0) & (reads > 0), (makes > 0) & (reads < traffic.reads.sum(axis=0))
        is_way = np.stack([traffic.is_activation, ~traffic.is_activation], axis=1)
        amounts = (is_way[:, :, None] * traffic.amount[:, None]).reshape(n_rows, 4)
        received, sent = gets @ amounts, sends @ amounts
        return StageSums(
            compute_s=of_stage[:, :n] + of_stage[:, n : 2 * n],
            held_bytes=of_stage[:, -1],
            kept_bytes=(keeps > 0) @ traffic.amount[:, 0],
            front=received[:, :2] + sent[:, 2:],
            back=received[:, 2:] + sent[:, :2],
        )

    def loads_s(self, sums: StageSums, device: int) -> FloatArray:
        """Computes the loads of stages on a device, seconds, (n,)."""
        link_s = self.mean_link_s[device]
        moved_s = np.maximum(sums.front @ link_s, sums.back @ link_s)
        return np.asarray(np.maximum(sums.compute_s[:, device], moved_s))

    def memory_bytes(self, sums: StageSums, n_devices_from: IntArray) -> FloatArray:
        """Estimates the memory of stages, (n, n_counts).

        A stage holds its resident bytes and, of every microbatch that is alive, the activations that its
        backward ops read. Stage s of S has S - s microbatches alive, or all of them with GPipe.

        Args:
            n_devices_from: devices of the stage and of all later ones, (n_counts,).
        """
        count = self.pipelined.pipeline.microbatches
        alive = count if self.pipelined.pipeline.name == GPIPE else np.minimum(n_devices_from, count)
        alive = np.broadcast_to(alive, n_devices_from.shape)
        return sums.held_bytes[:, None] + sums.kept_bytes[:, None] * alive
