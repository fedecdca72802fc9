"""Replays what a stage allocates and frees in torch's caching allocator for CUDA, to find what it reserves.

Source: `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.5: sizes are rounded up to 512 bytes; blocks of up to
1 MiB come from segments of 2 MiB, others from segments of 20 MiB or, from 10 MiB on, of their size rounded up
to 2 MiB; the smallest free block that fits is taken and split; neighbours that are free are joined; segments
are kept.

What NCCL reduces in place is recorded on its stream, as `ProcessGroupNCCL` does by default, so it can be
reused only once the device has come as far. The host is taken to be a pass ahead: such a block is free after
its pass.
"""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from agent.lab.captured_shards import pipelined
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray

MIB = 1 << 20
MOST_MICROBATCHES, STEPS = 12, 3
"""Microbatches that are replayed, as later ones repeat; steps, of which the first makes optimizer states."""

FIRST_NORMS = ("self_attn_layer_norm/native_layer_norm_backward", "ln_1/native_layer_norm_backward")
"""Ops that read the sum of the gradients of queries, keys and values."""

Block = tuple[int, int, int]


class Allocator:
    """A caching allocator; `reserved` and `most` are bytes of segments, and most of blocks in use."""

    def __init__(self) -> None:
        self.reserved, self.held, self.most = 0, 0, 0
        self._free: tuple[list[Block], list[Block]] = ([], [])
        self._segments: list[dict[int, list[int]]] = []

    def allocate(self, n_bytes: float) -> Block:
        """Allocates a block: pool, segment and offset."""
        size = max(512, -(-int(n_bytes) // 512) * 512)
        pool = int(size > MIB)
        free = self._free[pool]
        at = bisect.bisect_left(free, (size, -1, -1))
        if at < len(free):
            whole, segment, offset = free.pop(at)
        else:
            whole = 2 * MIB if not pool else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            segment, offset = len(self._segments), 0
            self._segments.append({0: [whole, 0]})
            self.reserved += whole
        if whole - size >= (MIB + 1 if pool else 512):
            self._segments[segment][offset + size] = [whole - size, 1]
            bisect.insort(free, (whole - size, segment, offset + size))
            whole = size
        self._segments[segment][offset] = [whole, 0]
        self.held += whole
        self.most = max(self.most, self.held)
        return pool, segment, offset

    def release(self, block: Block) -> None:
        """Frees a block."""
        pool, number, offset = block
        segment, free = self._segments[number], self._free[pool]
        size = segment[offset][0]
        self.held -= size
        after = offset + size
        if segment.get(after, [0, 0])[1]:
            added = segment.pop(after)[0]
            free.pop(bisect.bisect_left(free, (added, number, after)))
            size += added
        before = [at for at in segment if at < offset and at + segment[at][0] == offset]
        if before and segment[before[0]][1]:
            del segment[offset]
            offset = before[0]
            free.pop(bisect.bisect_left(free, (segment[offset][0], number, offset)))
            size += segment[offset][0]
        segment[offset] = [size, 1]
        bisect.insort(free, (size, number, offset))


def actions(n_stages: int, stage: int, microbatches: int) -> list[tuple[int, int]]:
    """Lists the actions of a stage in `1f1b`: pass, microbatch."""
    warm = min(n_stages - stage - 1, microbatches)
    found = [(0, at) for at in range(warm)]
    for at in range(microbatches - warm):
        found += [(0, warm + at), (1, at)]
    return found + [(1, at) for at in range(microbatches - warm, microbatches)]


def all_reduced(graph: OpGraph) -> set[int]:
    """Returns what GPUs of a node sum: results of layers divided by input, gradients of others."""
    found = set()
    for tensor, maker in enumerate(graph.tensor_producer.tolist()):
        name, _, op = graph.op_names[maker].rpartition("/")
        readers = graph.consumers.items[graph.consumers.ptr[tensor] : graph.consumers.ptr[tensor + 1]]
        norms = [at for at in readers if graph.op_names[at].endswith(FIRST_NORMS)]
        if graph.phases[maker] == "forward":
            is_reduced = op == "addmm" and name.endswith(("out_proj", "fc2", "c_proj"))
        else:
            is_reduced = (op == "mm" and name.endswith(("fc1", "c_fc"))) or len(norms) == len(readers) == 1
        if is_reduced:
            found.add(tensor)
    return found


def reserved_bytes(plan: Any, microbatches: int) -> FloatArray:
    """Replays steps of each stage; returns the bytes that it reserves, (n_stages,)."""
    count = min(microbatches, MOST_MICROBATCHES)
    return np.array([_replayed(plan, count, stage).reserved for stage in range(len(plan["layers"]))], float)


def _replayed(plan: Any, microbatches: int, stage: int) -> Allocator:
    problem, stages = pipelined(plan, microbatches, True)
    graph, mine = problem.problem.graph, stages.device_of == stage
    phase = np.array([("forward", "backward", "optimizer").index(name) for name in graph.phases])
    sizes, producer, owner = graph.tensor_bytes, graph.tensor_producer, graph.tensor_owner
    made: dict[int, list[int]] = {}
    freed: dict[int, list[int]] = {}
    received: tuple[list[int], list[int]] = ([], [])
    weights = []
    for tensor in range(graph.n_tensors):
        maker = int(producer[tensor])
        readers = graph.consumers.items[graph.consumers.ptr[tensor] : graph.consumers.ptr[tensor + 1]]
        own = [int(op) for op in readers if mine[op] and phase[op] != 2]
        if graph.is_source[maker]:
            weights += [tensor] * int(mine[maker] and graph.op_types[maker] == "parameter")
        elif mine[maker]:
            made.setdefault(maker, []).append(tensor)
            freed.setdefault(max([*own, maker]), []).append(tensor)
        elif own:
            received[phase[maker]].append(tensor)
            freed.setdefault(max(own), []).append(tensor)
    ops = [np.flatnonzero(mine & (phase == part) & ~graph.is_source).tolist() for part in (0, 1)]
    allocator, late_ones = Allocator(), all_reduced(graph)
    for tensor in weights:
        allocator.allocate(sizes[tensor])
    for step in range(STEPS):
        gradients: dict[int, Block] = {}
        live: dict[tuple[int, int], Block] = {}
        for part, at in actions(len(plan["layers"]), stage, microbatches):
            live |= {(tensor, at): allocator.allocate(sizes[tensor]) for tensor in received[part]}
            late = []
            for op in ops[part]:
                for tensor in made.get(op, ()):
                    block = allocator.allocate(sizes[tensor])
                    if part == 0 or owner[tensor] < 0:
                        live[tensor, at] = block
                    elif gradients.setdefault(tensor, block) is not block:
                        allocator.release(block)
                for tensor in freed.get(op, ()):
                    if (tensor, at) in live and tensor in late_ones:
                        late.append(live.pop((tensor, at)))
                    elif (tensor, at) in live:
                        allocator.release(live.pop((tensor, at)))
            for block in late:
                allocator.release(block)
        for block in live.values():
            allocator.release(block)
        allocator.release(allocator.allocate(sum(sizes[tensor] for tensor in gradients)))
        if step == 0:
            for tensor in gradients:
                allocator.allocate(sizes[tensor])
                allocator.allocate(sizes[tensor])
        for block in gradients.values():
            allocator.release(block)
    return allocator
