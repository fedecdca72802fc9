"""Max-load in plain Python, op by op, and the least one of all plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from math import ceil

import numpy as np

from envs.pipeline.simulate import PipelinedProblem


@dataclass(frozen=True)
class PlainPlan:
    """Stage of each piece, devices of each stage, and whether it recomputes."""

    stage_of: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    recomputes: tuple[bool, ...]


def plain_loads(pipelined: PipelinedProblem, plan: PlainPlan, *, overlaps: bool = False) -> list[float]:
    """Seconds per microbatch of each stage; links are taken to be equal."""
    problem, graph = pipelined.problem, pipelined.problem.graph
    cluster, stage = problem.cluster, [plan.stage_of[piece] for piece in pipelined.chain.piece_of]
    one, other = (0, 1) if problem.n_devices > 1 else (0, 0)
    byte_s = 1 / cluster.bytes_per_s[one, other] if one != other else 0.0
    fixed_s = (
        cluster.latency_s[one, other] + cluster.n_half_matrix[one, other] * byte_s if one != other else 0.0
    )
    found = []
    for s, (group, again) in enumerate(zip(plan.devices, plan.recomputes, strict=True)):
        compute_s = front_s = back_s = gradients = 0.0
        for op, phase in enumerate(graph.phases):
            if stage[op] == s and not graph.is_source[op] and phase != "optimizer":
                compute_s += problem.op_seconds[op, group[0]] * (2 if again and phase == "forward" else 1)
        for tensor in range(graph.n_tensors):
            maker, readers = int(graph.tensor_producer[tensor]), graph.consumers.row(tensor).tolist()
            if graph.is_source[maker] or graph.phases[maker] == "optimizer":
                continue
            if graph.phases[maker] == "backward" and any(graph.phases[r] == "optimizer" for r in readers):
                gradients += graph.tensor_bytes[tensor] * (stage[maker] == s)
            to = {stage[reader] for reader in readers if graph.phases[reader] != "optimizer"} - {stage[maker]}
            time_s = fixed_s + graph.tensor_bytes[tensor] * byte_s
            sends, receives = stage[maker] == s and bool(to), s in to
            if graph.phases[maker] == "forward":
                front_s, back_s = front_s + time_s * receives, back_s + time_s * sends
            else:
                front_s, back_s = front_s + time_s * sends, back_s + time_s * receives
        r, count = len(group), pipelined.pipeline.microbatches
        if overlaps:
            found.append(max(compute_s / r, 2 * (r - 1) * gradients * byte_s / r, front_s, back_s))
        else:
            found.append((compute_s + front_s + back_s) / r + 4 * (r - 1) / r * gradients * byte_s / count)
    return found


def plain_fits(pipelined: PipelinedProblem, plan: PlainPlan) -> bool:
    """Says whether the estimated memory of no stage is above that of its devices."""
    graph, stage = pipelined.problem.graph, [plan.stage_of[piece] for piece in pipelined.chain.piece_of]
    for s, (group, again) in enumerate(zip(plan.devices, plan.recomputes, strict=True)):
        held = sum(graph.resident_bytes[op] for op in range(graph.n_ops) if stage[op] == s)
        kept = inputs = 0.0
        for tensor in range(graph.n_tensors):
            maker, readers = int(graph.tensor_producer[tensor]), graph.consumers.row(tensor).tolist()
            if graph.is_source[maker] or graph.phases[maker] != "forward":
                continue
            here = {graph.phases[reader] for reader in readers if stage[reader] == s} - {"optimizer"}
            kept += graph.tensor_bytes[tensor] * ("backward" in here)
            inputs += graph.tensor_bytes[tensor] * (stage[maker] != s and bool(here))
        count, after = pipelined.pipeline.microbatches, sum(len(each) for each in plan.devices[s:])
        alive = ceil((count if pipelined.pipeline.name == "gpipe" else min(count, after)) / len(group))
        need = held + (kept + alive * inputs if again else alive * kept)
        if need > min(pipelined.problem.cluster.devices[device].memory_bytes for device in group):
            return False
    return True


def is_valid(pipelined: PipelinedProblem, stage_of: tuple[int, ...]) -> bool:
    """Says whether no piece is in an earlier stage than one before it that it shares a tensor with."""
    graph, piece, phases = pipelined.problem.graph, pipelined.chain.piece_of, pipelined.problem.graph.phases
    for maker, reader in graph.edges.tolist():
        if not graph.is_source[maker] and phases[reader] != "optimizer":
            early, late = sorted((piece[maker], piece[reader]))
            if stage_of[early] > stage_of[late]:
                return False
    return True


def plain_plans(
    pipelined: PipelinedProblem, *, chain_only: bool, degrees: tuple[int, ...], recomputes: bool
) -> Iterator[PlainPlan]:
    """Yields all plans; replicas of a stage have the same memory and times."""
    n_pieces, cluster = pipelined.chain.n_pieces, pipelined.problem.cluster
    kinds = [(device.kind, device.memory_bytes) for device in cluster.devices]
    for n_stages in range(1, cluster.n_devices + 1):
        groupings = []
        for sizes in product(degrees, repeat=n_stages):
            if sum(sizes) > cluster.n_devices:
                continue
            seen = set()
            for ranks in permutations(range(cluster.n_devices), sum(sizes)):
                ends = np.cumsum(sizes).tolist()
                groups = tuple(ranks[end - size : end] for end, size in zip(ends, sizes, strict=True))
                named = tuple(tuple(kinds[device] for device in group) for group in groups)
                if named not in seen and all(len(set(each)) == 1 for each in named):
                    groupings.append(groups)
                seen.add(named)
        for stage_of in product(range(n_stages), repeat=n_pieces):
            if len(set(stage_of)) < n_stages or not is_valid(pipelined, stage_of):
                continue
            if chain_only and list(stage_of) != sorted(stage_of):
                continue
            for groups in groupings:
                for again in product((False, True)[: 1 + recomputes], repeat=n_stages):
                    yield PlainPlan(stage_of, groups, again)
