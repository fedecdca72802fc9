"""Max-load in plain Python, op by op, and all plans of a chain."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations

from envs.pipeline.simulate import PipelinedProblem


@dataclass(frozen=True)
class PlainPlan:
    """First piece and device of each stage."""

    first: tuple[int, ...]
    devices: tuple[int, ...]

    def stages(self, pipelined: PipelinedProblem) -> list[int]:
        """Stage of each op."""
        return [bisect_right(self.first, piece) - 1 for piece in pipelined.chain.piece_of]


def plain_loads(pipelined: PipelinedProblem, plan: PlainPlan) -> list[float]:
    """Seconds per microbatch of each stage; links are taken to be equal."""
    problem, graph = pipelined.problem, pipelined.problem.graph
    cluster, stage = problem.cluster, plan.stages(pipelined)
    byte_s = fixed_s = 0.0
    if problem.n_devices > 1:
        byte_s = 1 / cluster.bytes_per_s[0, 1]
        fixed_s = cluster.latency_s[0, 1] + cluster.n_half_matrix[0, 1] * byte_s
    loads_s = []
    for s, device in enumerate(plan.devices):
        compute_s = front_s = back_s = 0.0
        for op, phase in enumerate(graph.phases):
            if stage[op] == s and not graph.is_source[op] and phase != "optimizer":
                compute_s += problem.op_seconds[op, device]
        for tensor in range(graph.n_tensors):
            maker, readers = int(graph.tensor_producer[tensor]), graph.consumers.row(tensor).tolist()
            if graph.is_source[maker] or graph.phases[maker] == "optimizer":
                continue
            to = {stage[reader] for reader in readers if graph.phases[reader] != "optimizer"} - {stage[maker]}
            time_s = fixed_s + graph.tensor_bytes[tensor] * byte_s
            sends, receives = stage[maker] == s and bool(to), s in to
            if graph.phases[maker] == "forward":
                front_s, back_s = front_s + time_s * receives, back_s + time_s * sends
            else:
                front_s, back_s = front_s + time_s * sends, back_s + time_s * receives
        loads_s.append(max(compute_s, front_s, back_s))
    return loads_s


def plain_fits(pipelined: PipelinedProblem, plan: PlainPlan) -> bool:
    """Says whether the estimated memory of no stage is above that of its device."""
    graph, stage, count = pipelined.problem.graph, plan.stages(pipelined), pipelined.pipeline.microbatches
    for s, device in enumerate(plan.devices):
        held = sum(graph.resident_bytes[op] for op in range(graph.n_ops) if stage[op] == s)
        kept = 0.0
        for tensor in range(graph.n_tensors):
            maker, readers = int(graph.tensor_producer[tensor]), graph.consumers.row(tensor).tolist()
            if graph.is_source[maker] or graph.phases[maker] != "forward":
                continue
            kept += graph.tensor_bytes[tensor] * any(
                stage[reader] == s and graph.phases[reader] == "backward" for reader in readers
            )
        alive = count if pipelined.pipeline.name == "gpipe" else min(count, len(plan.devices) - s)
        if held + alive * kept > pipelined.problem.cluster.devices[device].memory_bytes:
            return False
    return True


def plain_plans(pipelined: PipelinedProblem) -> Iterator[PlainPlan]:
    """Yields all plans, with devices of the same kind and memory in one order."""
    n_pieces, cluster = pipelined.chain.n_pieces, pipelined.problem.cluster
    kinds = [(device.kind, device.memory_bytes) for device in cluster.devices]
    for n_stages in range(1, min(cluster.n_devices, n_pieces) + 1):
        by_kind = {
            tuple(kinds[device] for device in devices): devices
            for devices in permutations(range(cluster.n_devices), n_stages)
        }
        for cuts in combinations(range(1, n_pieces), n_stages - 1):
            for devices in by_kind.values():
                yield PlainPlan((0, *cuts), devices)
