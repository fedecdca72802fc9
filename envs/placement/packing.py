"""Many problems in flat arrays, so that one numba loop steps episodes over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.placement.state import MdpArrays, mdp_arrays
from envs.problem_arrays import ProblemArrays
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel

if TYPE_CHECKING:
    from envs.placement.masks import Mask
    from envs.problem import Problem

OPS, TENSORS, READS, DEVICES, DEVICE_PAIRS, UNITS, OPS_BY_DEVICES, UNITS_BY_DEVICES = range(8)
"""Columns of `PackedProblems.offsets`: what is counted. A read is a tensor that an op reads."""


class PackedProblems(NamedTuple):
    """Problems one after the other; `offsets[i]` and `offsets[i + 1]` bound those of problem `i`."""

    problems: ProblemArrays  # each array flat
    mdps: MdpArrays  # each array flat
    offsets: IntArray  # (n_problems + 1, 8) columns OPS ... UNITS_BY_DEVICES


def pack_problems(problems: Sequence[Problem], mask: Mask) -> PackedProblems:
    """Lays problems out one after the other."""
    arrays = [problem.arrays for problem in problems]
    mdps = [mdp_arrays(problem, mask) for problem in problems]
    sizes = np.zeros((len(problems), 8), dtype=np.int64)
    for i, (p, m) in enumerate(zip(arrays, mdps, strict=True)):
        sizes[i, OPS] = len(p.is_source)
        sizes[i, TENSORS] = len(p.producer)
        sizes[i, READS] = len(p.consumer_item)
        sizes[i, DEVICES] = len(p.memory)
        sizes[i, DEVICE_PAIRS] = p.link.size
        sizes[i, UNITS] = len(m.footprint_bytes)
        sizes[i, OPS_BY_DEVICES] = p.op_seconds.size
        sizes[i, UNITS_BY_DEVICES] = m.allowed.size
    offsets = np.concatenate([np.zeros((1, 8), dtype=np.int64), sizes.cumsum(axis=0)])
    flat_problems: Iterator[Any] = (_flat(parts) for parts in zip(*arrays, strict=True))
    flat_mdps: Iterator[Any] = (_flat(parts) for parts in zip(*mdps, strict=True))
    return PackedProblems(ProblemArrays(*flat_problems), MdpArrays(*flat_mdps), offsets)


def _flat(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """One field of all problems in one array; None where it is None in all."""
    flat = [np.ravel(part) for part in parts if part is not None]
    return np.concatenate(flat) if flat else None


@kernel
def problem_at(packed, i):
    """Returns views: the `ProblemArrays` of one of the packed problems."""
    a, n = packed.problems, len(packed.offsets) - 1
    first, last = packed.offsets[i], packed.offsets[i + 1]
    op, op_end = first[OPS], last[OPS]
    tensor, tensor_end = first[TENSORS], last[TENSORS]
    read, read_end = first[READS], last[READS]
    device, device_end = first[DEVICES], last[DEVICES]
    pair, pair_end = first[DEVICE_PAIRS], last[DEVICE_PAIRS]
    n_gaps, n_rules = len(a.gaps) // n, len(a.rules) // n
    n_devices = device_end - device
    square = (n_devices, n_devices)
    return ProblemArrays(
        op_seconds=a.op_seconds[first[OPS_BY_DEVICES] : last[OPS_BY_DEVICES]].reshape(
            (op_end - op, n_devices)
        ),
        is_source=a.is_source[op:op_end],
        input_ptr=a.input_ptr[op + i : op_end + i + 1],
        input_item=a.input_item[read:read_end],
        output_ptr=a.output_ptr[op + i : op_end + i + 1],
        output_item=a.output_item[tensor:tensor_end],
        consumer_ptr=a.consumer_ptr[tensor + i : tensor_end + i + 1],
        consumer_item=a.consumer_item[read:read_end],
        producer=a.producer[tensor:tensor_end],
        size=a.size[tensor:tensor_end],
        owner=a.owner[tensor:tensor_end],
        resident=a.resident[op:op_end],
        bandwidth=a.bandwidth[pair:pair_end].reshape(square),
        latency=a.latency[pair:pair_end].reshape(square),
        n_half=a.n_half[pair:pair_end].reshape(square),
        link=a.link[pair:pair_end].reshape(square),
        memory=a.memory[device:device_end],
        slowdown=a.slowdown[device:device_end],
        gaps=a.gaps[n_gaps * i : n_gaps * (i + 1)],
        rules=a.rules[n_rules * i : n_rules * (i + 1)],
        detailed=a.detailed,
        slows=a.slows,
    )


@kernel
def mdp_arrays_at(packed, i):
    """Returns views: the `MdpArrays` of one of the packed problems."""
    a, n = packed.mdps, len(packed.offsets) - 1
    first, last = packed.offsets[i], packed.offsets[i + 1]
    n_scales, n_units, n_devices = (
        len(a.scales) // n,
        last[UNITS] - first[UNITS],
        last[DEVICES] - first[DEVICES],
    )
    return MdpArrays(
        unit_of=a.unit_of[first[OPS] : last[OPS]],
        unit_ptr=a.unit_ptr[first[UNITS] + i : last[UNITS] + i + 1],
        unit_item=a.unit_item[first[OPS] : last[OPS]],
        is_compute=a.is_compute[first[OPS] : last[OPS]],
        update=a.update[first[OPS] : last[OPS]],
        update_bytes=a.update_bytes[first[OPS] : last[OPS]],
        is_gradient=a.is_gradient[first[OPS] : last[OPS]],
        waits=a.waits[first[OPS] : last[OPS]],
        tail_s=a.tail_s[first[OPS] : last[OPS]],
        end_s=a.end_s[first[OPS] : last[OPS]],
        by_end_s=a.by_end_s[first[OPS] : last[OPS]],
        joined=a.joined[first[OPS] : last[OPS]],
        beside=a.beside[first[OPS] : last[OPS]],
        allowed=a.allowed[first[UNITS_BY_DEVICES] : last[UNITS_BY_DEVICES]].reshape((n_units, n_devices)),
        footprint_bytes=a.footprint_bytes[first[UNITS] : last[UNITS]],
        slowness=a.slowness[first[DEVICES] : last[DEVICES]],
        by_seconds=a.by_seconds[first[UNITS] : last[UNITS]],
        scales=a.scales[n_scales * i : n_scales * (i + 1)],
    )
