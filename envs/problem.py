"""A graph on a cluster, with all that a simulation needs laid out as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from envs.cluster.cluster import Cluster
from envs.costs.op_seconds import check_transfers, op_seconds
from envs.problem_arrays import FIFO, PROGRAM, ProblemArrays
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import InputError


class InfeasibleError(InputError):
    """A graph without a feasible placement on a cluster; the message says what is too large."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to place on a cluster.

    Every time and every sum of times or bytes is finite.

    Attributes:
        seconds: seconds of every op on every device, (n_ops, n_devices); None = those of the cost model. With
            them no time is checked: such a problem is made from one that was.

    Raises:
        CostError: on construction, if an op or a transfer would take a time beyond physics.
    """

    graph: OpGraph
    cluster: Cluster
    seconds: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.seconds is None:
            check_transfers(self.graph, self.cluster)
            _ = self.op_seconds

    @property
    def n_devices(self) -> int:
        """The number of devices of the cluster."""
        return self.cluster.n_devices

    @cached_property
    def op_seconds(self) -> FloatArray:
        """The seconds of every op on every device, (n_ops, n_devices)."""
        return op_seconds(self.graph, self.cluster) if self.seconds is None else self.seconds

    @cached_property
    def single_device_s(self) -> FloatArray:
        """The step time with all ops on one device of unlimited memory, seconds, (n_devices,)."""
        takes_time = self.op_seconds > 0
        gaps = np.maximum(takes_time.sum(axis=0) - 1, 0)
        total: FloatArray = self.op_seconds.sum(axis=0) + gaps * self.cluster.op_gap_s
        if not self.cluster.issue_s:
            return total
        if self.cluster.issue_per == "step":
            return np.where(takes_time.any(axis=0), total + self.cluster.issue_s, total)
        # The device works without a pause from some op on, which starts as soon as the host has issued it.
        issued_s = takes_time.cumsum(axis=0) * self.cluster.issue_s
        busy_s = np.where(takes_time, self.op_seconds + self.cluster.op_gap_s, 0.0)
        from_op_on = busy_s[::-1].cumsum(axis=0)[::-1] - self.cluster.op_gap_s
        return np.where(takes_time, issued_s + from_op_on, 0.0).max(axis=0)

    @cached_property
    def scale_s(self) -> float:
        """The step time on the fastest single device, the unit of rewards; 1 s where no op takes time."""
        return float(self.single_device_s.min()) or 1.0

    @cached_property
    def arrays(self) -> ProblemArrays:
        """The problem as flat arrays, as the kernels read it."""
        graph, cluster = self.graph, self.cluster
        link, bandwidth = _links(cluster), np.array(cluster.bytes_per_s, dtype=np.float64)
        n_half = np.array(cluster.n_half_matrix)
        # The diagonal is for a transfer to all: of the slowest link of the sender, and of its largest size.
        np.fill_diagonal(bandwidth, np.inf)
        np.fill_diagonal(bandwidth, bandwidth.min(axis=1))
        np.fill_diagonal(n_half, 0.0)
        np.fill_diagonal(n_half, n_half.max(axis=1))
        slowdown = np.array([device.overlap_slowdown for device in cluster.devices], dtype=np.float64)
        slows, next_issue_s = (
            bool((slowdown > 1).any()),
            cluster.issue_s if cluster.issue_per == "op" else 0.0,
        )
        n_clocks = max(int(link.max()), cluster.n_devices) + 1
        is_detailed = cluster.issue_s > 0 or cluster.copies == "eager" or slows or bool(n_half.any())
        compiled_in = np.zeros(0, dtype=np.int64)
        return ProblemArrays(
            op_seconds=self.op_seconds,
            is_source=graph.is_source.astype(np.int64),
            input_ptr=graph.inputs.ptr,
            input_item=graph.inputs.items,
            output_ptr=graph.outputs.ptr,
            output_item=graph.outputs.items,
            consumer_ptr=graph.consumers.ptr,
            consumer_item=graph.consumers.items,
            producer=graph.tensor_producer,
            size=graph.tensor_bytes,
            owner=graph.tensor_owner,
            resident=graph.resident_bytes,
            bandwidth=bandwidth,
            latency=np.ascontiguousarray(cluster.latency_s, dtype=np.float64),
            n_half=n_half,
            link=link,
            memory=cluster.memory_bytes,
            slowdown=slowdown,
            gaps=np.array([cluster.op_gap_s, cluster.transfer_gap_s, cluster.issue_s, next_issue_s]),
            rules=np.array(
                [
                    FIFO if cluster.schedule == "fifo" else PROGRAM,
                    # Only an egress bus can serve all devices by one transfer, others have one destination.
                    cluster.transfer_per == "tensor" and cluster.sharing == "egress",
                    cluster.copies == "eager",
                    n_clocks + 2 * cluster.n_devices if slows else n_clocks,
                    n_clocks if slows else 0,
                ],
                dtype=np.int64,
            ),
            detailed=compiled_in if is_detailed else None,
            slows=compiled_in if slows else None,
        )

    @cached_property
    def mean_transfer_s(self) -> FloatArray:
        """The seconds of each tensor's transfer, on average over all pairs of devices, (n_tensors,)."""
        pairs = ~np.eye(self.n_devices, dtype=bool)
        if not pairs.any():
            return np.zeros(self.graph.n_tensors)
        arrays = self.arrays
        seconds_per_byte = float((1.0 / arrays.bandwidth[pairs]).mean())
        n_half_s = float((arrays.n_half[pairs] / arrays.bandwidth[pairs]).mean())
        latency_s = n_half_s + float(arrays.latency[pairs].mean())
        return self.graph.tensor_bytes * seconds_per_byte + latency_s

    @cached_property
    def footprint_bytes(self) -> FloatArray:
        """The memory footprint of each placement unit: bytes that it holds for most of the step, (n_units,).

        It is the sum of its resident bytes and of its activations that the backward pass reads: the load
        between the forward and the backward pass, where the memory of a training step peaks. This is an
        estimate; `simulate` is exact.
        """
        graph = self.graph
        saved = np.bincount(graph.tensor_producer, self.saved_bytes, minlength=graph.n_ops)
        return np.bincount(graph.unit_of, graph.resident_bytes + saved).astype(np.float64)

    @cached_property
    def saved_bytes(self) -> FloatArray:
        """Bytes of the forward results that the backward pass reads, 0 for other tensors, (n_tensors,)."""
        graph = self.graph
        backward = np.array([phase == "backward" for phase in graph.phases], dtype=bool)
        tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
        saved = np.zeros(graph.n_tensors, dtype=bool)
        saved[tensor[backward[graph.consumers.items]]] = True
        saved &= ~backward[graph.tensor_producer] & (graph.tensor_owner < 0)
        return np.where(saved, graph.tensor_bytes, 0.0)

    def with_graph(self, graph: OpGraph) -> Problem:
        """Returns the problem of another graph on the cluster, with the times of the cost model."""
        return Problem(graph, self.cluster)

    def with_memory(self, memory_bytes: FloatArray) -> Problem:
        """Returns the problem with other memory limits, in bytes, (n_devices,); at least 1 each."""
        limits = np.maximum(memory_bytes, 1.0).tolist()
        devices = tuple(
            replace(device, memory_bytes=limit)
            for device, limit in zip(self.cluster.devices, limits, strict=True)
        )
        return replace(self, cluster=replace(self.cluster, devices=devices))

    @property
    def is_feasible(self) -> bool:
        """Says whether `check_feasible` passes."""
        try:
            self.check_feasible()
        except InfeasibleError:
            return False
        return True

    def check_feasible(self, *, recomputes: bool = False) -> None:
        """Checks that each unit's footprint fits on some device, and all together on the cluster.

        Args:
            recomputes: true if the backward pass may recompute activations, so that devices need not hold all
                of them at once; then the resident bytes have to fit on the cluster.

        Raises:
            InfeasibleError: no placement is feasible.
        """
        where = f"graph '{self.graph.name}' on cluster '{self.cluster.name}'"
        memory = self.cluster.memory_bytes
        largest = int(np.argmax(self.footprint_bytes))
        if self.footprint_bytes[largest] > memory.max():
            ops = self.graph.units.row(largest)
            most = ops[np.argmax(self.graph.resident_bytes[ops])]
            told, remedy = self._told(ops, memory.max())
            raise InfeasibleError(
                f"{where}: op '{self.graph.op_names[most]}' and what is colocated with it keep {told}, but "
                f"the largest device has {_gb(memory.max())} GB; {remedy}"
            )
        needed = (self.graph.resident_bytes if recomputes else self.footprint_bytes).sum()
        if needed > memory.sum():
            told, _ = self._told(np.arange(self.graph.n_ops), memory.sum(), recomputes=recomputes)
            raise InfeasibleError(
                f"{where}: needs {told}, but all devices together have {_gb(memory.sum())} GB; use "
                "more or larger devices"
            )

    def _told(self, ops: IntArray, memory_bytes: float, *, recomputes: bool = False) -> tuple[str, str]:
        """Tells what whole units keep as the sum of its parts, and what would help on a device."""
        graph, owned = self.graph, np.isin(self.graph.tensor_owner, ops)
        of_weights = graph.tensor_owner == graph.tensor_producer
        in_unread = np.isin(graph.unit_of[ops], graph.unit_of[graph.unread])
        resident = graph.resident_bytes[ops].sum()
        total = resident if recomputes else self.footprint_bytes[np.unique(graph.unit_of[ops])].sum()
        parts = {
            "weights": graph.tensor_bytes[owned & of_weights].sum(),
            "gradients": graph.tensor_bytes[owned & ~of_weights].sum(),
            "weights that no op reads": graph.resident_bytes[ops[in_unread]].sum(),
            "activations": total - resident,
        }
        is_updated = any(graph.phases[op] == "optimizer" for op in ops)
        state = total - sum(parts.values())
        parts["optimizer state" if is_updated else "other"] = state
        told = ", ".join(f"{_gb(size)} {name}" for name, size in parts.items() if size > 1e-3 * total)
        remedy = "use a larger device"
        if any("embedding" in graph.op_types[op] for op in ops):
            remedy = f"rows of a table are not split over devices; {remedy}"
            is_dense = parts["gradients"] > parts["weights"] / 2
            remedy += ", or sparse=True with SGD, which keeps no optimizer state" if is_dense else ""
        elif is_updated and total - state <= memory_bytes:
            remedy += ", or SGD, which keeps no optimizer state"
        return f"{_gb(total)} GB ({told})", remedy

    @cached_property
    def always_fits(self) -> bool:
        """Says whether no placement can overflow a device, as all bytes together fit on the smallest one."""
        graph = self.graph
        everything = graph.resident_bytes.sum() + graph.tensor_bytes.sum()
        return bool(everything <= self.cluster.memory_bytes.min())


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.0f}" if size_bytes >= 1e12 else f"{size_bytes / 1e9:.3g}"


def _links(cluster: Cluster) -> IntArray:
    """Clock of the link of each ordered pair, -1 where every transfer has its own, (n_devices, n_devices)."""
    n = cluster.n_devices
    if cluster.sharing == "none":
        return np.full((n, n), -1)
    pair = np.arange(n * n).reshape(n, n)
    return n + 1 + (pair if cluster.sharing == "pair" else pair // n)


def kinds(columns: FloatArray) -> tuple[IntArray, IntArray]:
    """Finds the first of each kind of column, int (n_kinds,), and the kind of each, int (n_columns,)."""
    first: dict[bytes, int] = {}
    first_alike = [first.setdefault(column.tobytes(), index) for index, column in enumerate(columns.T)]
    chosen, kind_of = np.unique(first_alike, return_inverse=True)
    return chosen, kind_of
