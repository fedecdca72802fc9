"""The rules of an op graph: what `OpGraph` checks when one is made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphs.graph_columns import GraphColumns
from graphs.limits import MAX_BYTES, MAX_EXTENT, MAX_FLOPS, MAX_SECONDS, ROUNDING
from graphs.op_records import AMOUNTS
from graphs.system.array_types import FloatArray
from graphs.system.errors import InputError
from graphs.system.json_fields import MAX_INTEGER
from graphs.system.json_files import first_repeated

PHASES = ("forward", "backward", "optimizer")
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int")
"""Types of an op's arithmetic; `tf32` are 32-bit floats that are multiplied with 10 bits of mantissa, `fp8`
all floats of a byte, and `int8` products of bytes."""


class GraphError(InputError):
    """A graph that breaks a rule of `OpGraph`; the message says which, where, and what would be right."""


def check_graph(graph: GraphColumns) -> None:
    """Checks that a graph keeps the rules of `OpGraph`.

    Raises:
        GraphError: it breaks one.
    """
    where = f"graph '{graph.name}'"
    n_ops = graph.n_ops
    if n_ops == 0:
        raise GraphError(f"{where}: has no ops; give at least one")
    for label in (
        "op_types",
        "modules",
        "phases",
        *AMOUNTS,
        "colocate",
        "dtypes",
        "gemm",
        "sources",
        "shapes",
    ):
        if len(getattr(graph, label)) != n_ops:
            raise GraphError(f"{where}: {label} has {len(getattr(graph, label))} entries for {n_ops} ops")
    _check_strings(where, graph)
    for op, phase in enumerate(graph.phases):
        if phase not in PHASES:
            raise GraphError(
                f"{where}: op {op} ('{graph.op_names[op]}') has phase '{phase}'; "
                f"use one of {', '.join(PHASES)}"
            )
    _check_amounts(where, "flops", graph.flops, MAX_FLOPS, graph.op_names)
    _check_amounts(where, "bytes_moved", graph.bytes_moved, MAX_BYTES, graph.op_names)
    _check_amounts(where, "resident_bytes", graph.resident_bytes, MAX_BYTES, graph.op_names)
    for kind, values in graph.seconds.items():
        if len(values) != n_ops:
            raise GraphError(f"{where}: seconds of '{kind}' has {len(values)} entries for {n_ops} ops")
        known = np.where(np.isnan(values), 0.0, values)
        _check_amounts(where, f"seconds of '{kind}'", known, MAX_SECONDS, graph.op_names)
    bad = (graph.colocate < -1) | (graph.colocate > MAX_INTEGER)
    if bad.any():
        op = int(np.argmax(bad))
        raise GraphError(
            f"{where}: op {op} has colocate {graph.colocate[op]}; use an id >= 0 (at most 2**53) or null"
        )
    _check_arithmetic(where, graph)
    _check_tensors(where, graph)


def _check_arithmetic(where: str, graph: GraphColumns) -> None:
    for op, dtype in enumerate(graph.dtypes):
        if dtype and dtype not in DTYPES:
            raise GraphError(
                f"{where}: op {op} ('{graph.op_names[op]}') has dtype '{dtype}'; "
                f"use one of {', '.join(DTYPES)}"
            )
    if graph.gemm.shape != (graph.n_ops, 4):
        raise GraphError(f"{where}: gemm has shape {graph.gemm.shape}; use ({graph.n_ops}, 4)")
    bad = ((graph.gemm < 1) | (graph.gemm > MAX_EXTENT)).any(axis=1) & graph.gemm.any(axis=1)
    bad |= 2.0 * graph.gemm.astype(float).prod(axis=1) > MAX_FLOPS
    if bad.any():
        op = int(np.argmax(bad))
        raise GraphError(
            f"{where}: op {op} ('{graph.op_names[op]}') has gemm {graph.gemm[op].tolist()}; use four extents "
            f"from 1 to {MAX_EXTENT:g} of at most {MAX_FLOPS:g} flops"
        )
    _check_images(where, graph)


def _check_images(where: str, graph: GraphColumns) -> None:
    if graph.image.shape != (graph.n_ops, 2):
        raise GraphError(f"{where}: image has shape {graph.image.shape}; use ({graph.n_ops}, 2)")
    said = graph.image.any(axis=1)
    low, high = graph.image.min(axis=1), graph.image.max(axis=1)
    positions = graph.gemm[:, 1]
    # Compared before they are multiplied, which could overflow.
    bad = said & ((low < 1) | (high > positions))
    sized = np.flatnonzero(said & ~bad)
    bad[sized] = [
        m % (h * w) != 0
        for m, (h, w) in zip(positions[sized].tolist(), graph.image[sized].tolist(), strict=True)
    ]
    if bad.any():
        op = int(np.argmax(bad))
        raise GraphError(
            f"{where}: op {op} ('{graph.op_names[op]}') has image {graph.image[op].tolist()}; use the height "
            f"and width of the output of a convolution, whose product divides m of gemm, {positions[op]}"
        )


def _check_strings(where: str, graph: GraphColumns) -> None:
    named = {
        "op name": graph.op_names,
        "type": graph.op_types,
        "module": graph.modules,
        "source": graph.sources,
        "tied path": [path for paths in graph.tied for path in paths],
    }
    single = {"name": (graph.name,), "family": (graph.family,), "kind of seconds": tuple(graph.seconds)}
    for label, texts in (single | named).items():
        if not "".join(texts).isprintable():
            bad = next(text for text in texts if not text.isprintable())
            raise GraphError(
                f"{where}: {label} {bad!r} holds characters that cannot be printed; escape or remove them"
            )
    if not graph.name or "" in graph.op_names or "" in graph.seconds:
        raise GraphError(f"{where}: the graph, an op or a device kind has an empty name; give each a name")
    if len(set(graph.op_names)) != graph.n_ops:
        twice = first_repeated(graph.op_names)
        raise GraphError(f"{where}: two ops are named '{twice}'; op names must be unique")


def _check_amounts(
    where: str, label: str, values: FloatArray, most: float, op_names: Sequence[str] | None = None
) -> None:
    """Checks amounts of ops or, where there are no names, of tensors; `most` is that of all together."""

    def at(index: int) -> str:
        return f"tensor {index}" if op_names is None else f"op {index} ('{op_names[index]}')"

    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        index = int(np.argmax(bad))
        raise GraphError(f"{where}: {at(index)} has {label} {values[index]}; use a finite number >= 0")
    with np.errstate(over="ignore"):
        total = float(np.sum(values))
    if total > most * (1 + ROUNDING):
        index = int(np.argmax(values))
        raise GraphError(
            f"{where}: {label} of the whole step is {total:g}, at {at(index)} {values[index]:g}; "
            f"a step has at most {most:g}"
        )


def _check_tensors(where: str, graph: GraphColumns) -> None:
    n_tensors, sizes = graph.n_tensors, graph.tensor_bytes
    if len(sizes) != n_tensors or len(graph.consumers) != n_tensors:
        raise GraphError(
            f"{where}: {n_tensors} producers, {len(sizes)} sizes and {len(graph.consumers)} consumer lists"
        )
    _check_amounts(where, "bytes", sizes, MAX_BYTES)
    producer, readers = graph.tensor_producer, graph.consumers.items
    owner = np.repeat(np.arange(n_tensors), np.diff(graph.consumers.ptr))
    for label, ops, tensor_of in (
        ("is produced by", producer, np.arange(n_tensors)),
        ("is consumed by", readers, owner),
    ):
        bad = (ops < 0) | (ops >= graph.n_ops)
        if bad.any():
            at = int(np.argmax(bad))
            raise GraphError(
                f"{where}: tensor {tensor_of[at]} {label} op {ops[at]}, but ops are 0 to {graph.n_ops - 1}"
            )
    late = readers <= producer[owner]
    if late.any():
        at = int(np.argmax(late))
        raise GraphError(
            f"{where}: tensor {owner[at]} goes from op {producer[owner[at]]} to op {readers[at]}, "
            "but ops are in program order; sort them topologically (a cycle cannot be sorted)"
        )
    repeat = (np.diff(readers) <= 0) & (np.diff(owner) == 0)
    if repeat.any():
        tensor = int(owner[int(np.argmax(repeat))])
        raise GraphError(f"{where}: the consumers of tensor {tensor} must be ascending and distinct")
    taken = np.flatnonzero(graph.is_source)
    fed = np.intersect1d(readers, taken)
    if len(fed):
        op = int(fed[0])
        raise GraphError(
            f"{where}: op {op} ('{graph.op_names[op]}') is a {graph.op_types[op]} and reads a tensor; "
            "parameters and inputs have no inputs"
        )
