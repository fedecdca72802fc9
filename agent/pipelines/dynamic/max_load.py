"""The objective of pipeline planners: max-load, the seconds per microbatch of the busiest stage.

The load of a stage without replicas is the time that its device computes for one microbatch, forward and
backward, plus the time of the tensors that it sends and receives for it. A tensor counts once in the stage
that makes it if another stage reads it, and once in each other stage that reads it (Tarnawski et al. 2020,
"Efficient Algorithms for Device Placement of DNN Graph Operators", section 3; for training, the forward and
the backward pass of a stage are on one device). So activations and gradients count at both of their ends, and
a tensor that skips a stage does not count there. Updates and parameters that other stages read are left out,
as they come once a step.

- Replicas share the microbatches, so the load is divided by their number. They add up their gradients once a
  step; each of r replicas moves 4 (r - 1) / r bytes for each byte (Tarnawski, Narayanan and Phanishayee 2021,
  "Piper").
- A stage that recomputes runs its forward pass twice.
- With `overlaps`, devices compute while they send and receive, and the load is the greatest of three times:
  compute, what passes the front of the stage (activations in, gradients out), and what passes its back.
  Replicas add up their gradients after every round of microbatches, while they compute (Narayanan et al.
  2019, "PipeDream", section 3.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from envs.pipeline.chain import Chain
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
    """Sums over some stages, without replicas or recomputation."""

    forward_s: FloatArray  # (n, n_devices) per microbatch
    backward_s: FloatArray  # (n, n_devices) per microbatch
    held_bytes: FloatArray  # (n,) for the whole step
    gradient_bytes: FloatArray  # (n,) gradients of weights
    kept_bytes: FloatArray  # (n,) activations that a backward op of the stage reads, per microbatch
    input_bytes: FloatArray  # (n,) activations from other stages, per microbatch
    front: FloatArray  # (n, 2) bytes and tensors that pass the front of the stage, per microbatch
    back: FloatArray  # (n, 2) the same of its back


@dataclass(frozen=True, eq=False)
class StageCosts:
    """The costs of stages, which are sets of nodes; a node is one or more pieces that follow each other.

    Attributes:
        node_of: node of each piece, int64 (n_pieces,).
        overlaps: whether devices compute while they send and receive.
    """

    pipelined: PipelinedProblem
    node_of: IntArray
    overlaps: bool = False

    @property
    def chain(self) -> Chain:
        """The pieces of the graph."""
        return self.pipelined.chain

    @property
    def n_nodes(self) -> int:
        """The number of nodes."""
        return int(self.node_of[-1]) + 1

    @cached_property
    def per_node(self) -> FloatArray:
        """Forward, backward seconds on each device; bytes held, of gradients; (n_nodes, 2 n_devices + 2)."""
        graph, arrays = self.pipelined.problem.graph, self.pipelined.arrays
        made = np.where(arrays.is_gradient == 1, graph.tensor_bytes, 0.0)
        gradients = np.bincount(self.chain.piece_of[graph.tensor_producer], made, self.chain.n_pieces)
        columns = [*self.chain.seconds[:2], self.chain.resident_bytes[:, None], gradients[:, None]]
        first = np.flatnonzero(np.diff(self.node_of, prepend=-1))
        found: FloatArray = np.add.reduceat(np.hstack(columns), first, axis=0)
        return found

    @cached_property
    def traffic(self) -> Traffic:
        """Tensors that nodes make for others in each microbatch, or keep."""
        graph, phase = self.pipelined.problem.graph, phases_of(self.pipelined.problem.graph)
        node = self.node_of[self.chain.piece_of]
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
        found = np.zeros((self.n_nodes, len(nodes)), dtype=np.bool_)
        for row, each in enumerate(nodes):
            found[list(each), row] = True
        return found

    @cached_property
    def link_s(self) -> FloatArray:
        """Seconds of a byte and of a tensor of no bytes over each link, 0 to itself, (2, n_dev, n_dev)."""
        cluster = self.pipelined.problem.cluster
        byte_s = 1.0 / np.where(np.eye(cluster.n_devices, dtype=bool), np.inf, cluster.bytes_per_s)
        tensor_s = np.where(byte_s > 0, cluster.latency_s + cluster.n_half_matrix * byte_s, 0.0)
        return np.stack([byte_s, tensor_s])

    @cached_property
    def mean_link_s(self) -> FloatArray:
        """The same, as the mean of the links of each device, (n_devices, 2)."""
        both = np.sort(np.concatenate([self.link_s, self.link_s.swapaxes(1, 2)], axis=2), axis=2)
        found: FloatArray = both.sum(axis=2).T / max(2 * self.pipelined.problem.n_devices - 2, 1)
        return found

    def marks(self, member: BoolArray) -> IntArray:
        """Counts what sets of nodes have of each node and row; of nested sets, it can be subtracted.

        Args:
            member: nodes of each set, (n, n_nodes).

        Returns:
            Of each set: its nodes; its makers, readers and keepers of each row; int32, (n, n_nodes + 3 rows).
        """
        traffic, exact = self.traffic, member.astype(np.float32)
        counts = [exact @ each.astype(np.float32) for each in (traffic.reads, traffic.keeps)]
        return np.hstack([exact, exact[:, traffic.maker], *counts]).astype(np.int32)

    def sums(self, marks: IntArray) -> StageSums:
        """Sums up what some stages compute, hold, send and receive.

        Args:
            marks: of the stages, as `marks` has it, (n, n_nodes + 3 n_rows).
        """
        n, traffic, n_rows = self.pipelined.problem.n_devices, self.traffic, len(self.traffic.maker)
        own = marks[:, : self.n_nodes] @ self.per_node
        makes, reads, keeps = marks[:, self.n_nodes :].reshape(len(marks), 3, n_rows).swapaxes(0, 1)
        gets, sends = (makes == 0) & (reads > 0), (makes > 0) & (reads < traffic.reads.sum(axis=0))
        is_way = np.stack([traffic.is_activation, ~traffic.is_activation], axis=1)
        amounts = (is_way[:, :, None] * traffic.amount[:, None]).reshape(n_rows, 4)
        received, sent = gets @ amounts, sends @ amounts
        return StageSums(
            forward_s=own[:, :n],
            backward_s=own[:, n : 2 * n],
            held_bytes=own[:, -2],
            gradient_bytes=own[:, -1],
            kept_bytes=(keeps > 0) @ traffic.amount[:, 0],
            input_bytes=received[:, 0],
            front=received[:, :2] + sent[:, 2:],
            back=received[:, 2:] + sent[:, :2],
        )

    def loads_s(
        self,
        sums: StageSums,
        device: int,
        replicas: int,
        *,
        recomputes: bool,
        moved_s: FloatArray | None = None,
    ) -> FloatArray:
        """Computes the loads of stages on a device, seconds, (n,).

        Args:
            moved_s: seconds of what the stages send and receive, (n,); None: as over the device's mean link.
        """
        link_s: FloatArray = self.mean_link_s[device]
        front_s, back_s = (sums.front @ link_s, sums.back @ link_s) if moved_s is None else (moved_s, 0.0)
        compute_s = sums.forward_s[:, device] * (1 + recomputes) + sums.backward_s[:, device]
        sum_s = sums.gradient_bytes * link_s[0] * (replicas - 1)
        added_s = 4 * sum_s / self.pipelined.pipeline.microbatches
        loads_s: FloatArray = (compute_s + front_s + back_s + added_s) / replicas
        if self.overlaps:
            loads_s = np.maximum(np.maximum(compute_s, 2 * sum_s) / replicas, np.maximum(front_s, back_s))
        return loads_s

    def memory_bytes(self, sums: StageSums, alive: IntArray, *, recomputes: bool) -> FloatArray:
        """Estimates the memory of stages, (n, n_alive).

        A stage holds its resident bytes and, of every microbatch that is alive, the activations that its
        backward ops read. One that recomputes keeps the activations of one microbatch; of others that are
        alive, it keeps what it received.

        Args:
            alive: microbatches that are alive at once, (n_alive,).
        """
        each = sums.input_bytes if recomputes else sums.kept_bytes
        once = sums.held_bytes + (sums.kept_bytes if recomputes else 0.0)
        found: FloatArray = once[:, None] + each[:, None] * alive
        return found

    def alive(self, devices_from: IntArray, replicas: int) -> IntArray:
        """Counts the microbatches that are alive at once on a replica of a stage; S - s in stage s of S.

        Args:
            devices_from: devices of the stage and of all later ones.
        """
        count = self.pipelined.pipeline.microbatches
        at_once = count if self.pipelined.pipeline.name == GPIPE else np.minimum(devices_from, count)
        alive: IntArray = -(-np.broadcast_to(at_once, devices_from.shape) // replicas)
        return alive

    def plan_loads_s(
        self, stage_of: IntArray, devices: Sequence[tuple[int, ...]], recomputed: tuple[bool, ...]
    ) -> FloatArray:
        """Computes the loads of the stages of a plan over its links, without overlap, seconds, (n_stages,).

        A tensor takes the mean time of the links between the replicas of two stages; its maker is busy until
        the slowest copy ends.

        Args:
            stage_of: stage of each node, int64 (n_nodes,).
            devices: of each stage; several are replicas.
            recomputed: whether each stage recomputes.
        """
        n_stages, traffic = len(devices), self.traffic
        member = stage_of == np.arange(n_stages)[:, None]
        home = stage_of[traffic.maker]
        between = np.array([[self.link_s[:, a][:, :, b].mean(axis=(1, 2)) for b in devices] for a in devices])
        seconds = (between[home] * traffic.amount[:, None]).sum(axis=2)
        reads = (member @ traffic.reads).T & (np.arange(n_stages) != home[:, None])
        copies_s = np.where(reads, seconds, 0.0)
        moved_s = copies_s.sum(axis=0) + np.bincount(home, copies_s.max(axis=1), n_stages)
        sums = self.sums(self.marks(member))
        found = [
            self.loads_s(sums, group[0], len(group), recomputes=again, moved_s=moved_s)
            for group, again in zip(devices, recomputed, strict=True)
        ]
        return np.array(found)[np.arange(n_stages), np.arange(n_stages)]
