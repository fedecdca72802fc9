"""The columns of an op graph, what is stored of its ops and tensors, and the rules that they keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from graphs.limits import MAX_BYTES, MAX_EXTENT, MAX_FLOPS, MAX_SECONDS, ROUNDING
from graphs.system.array_types import BoolArray, FloatArray, IntArray
from graphs.system.errors import InputError
from graphs.system.json_fields import MAX_INTEGER
from graphs.system.json_files import first_repeated

AMOUNTS = ("flops", "bytes_moved", "resident_bytes")
"""Columns of amounts of ops."""
PHASES = ("forward", "backward", "optimizer")
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int")
"""Types of an op's arithmetic; `tf32` are 32-bit floats that are multiplied with 10 bits of mantissa, `fp8`
all floats of a byte, and `int8` products of bytes."""
SOURCE_TYPES = ("parameter", "input")
"""Types of ops that are available from time 0 and never occupy a device."""
EXTENTS = 4
"""Numbers in the `gemm` of an op."""
IMAGE_SIDES = 2
"""Numbers in its `image`."""


@dataclass(frozen=True)
class Csr:
    """Ragged integer rows: row `i` is `items[ptr[i]:ptr[i + 1]]`."""

    ptr: IntArray
    items: IntArray

    def row(self, index: int) -> IntArray:
        """Items of one row, int (length of the row,)."""
        return self.items[self.ptr[index] : self.ptr[index + 1]]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @staticmethod
    def from_pairs(rows: IntArray, items: IntArray, n_rows: int) -> Csr:
        """Groups `items` by `rows`; items of one row keep their sequence.

        Args:
            rows: row of each item, int (n,).
            items: int (n,).
        """
        ptr = np.zeros(n_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=n_rows), out=ptr[1:])
        return Csr(ptr, items[np.argsort(rows, kind="stable")])


class GraphError(InputError):
    """A graph that breaks a rule of `OpGraph`; the message says which, where, and what would be right."""


@dataclass(frozen=True, eq=False)
class GraphColumns:
    """Columns of the ops and tensors of a graph; nothing is checked.

    Attributes:
        name, family: names of the graph and of its model's family.
        op_names, op_types, modules, phases: one string per op; names are unique, `phases` are from `PHASES`.
        flops: floating-point operations, (n_ops,).
        bytes_moved: memory traffic in bytes, (n_ops,).
        resident_bytes: bytes that the op keeps all step (parameters, gradients, optimizer state), (n_ops,).
        colocate: int (n_ops,); ops with the same id >= 0 go on one device, -1 is no id.
        seconds: measured seconds per device kind, each (n_ops,), NaN where not measured.
        tensor_producer: op that makes each tensor, int (n_tensors,).
        tensor_bytes: size of each tensor in bytes, (n_tensors,).
        consumers: ops that read each tensor, one row per tensor, ascending and distinct.
        dtypes: type of each op's arithmetic, of a source that of its values: from `DTYPES`, or "" where it is
            not said (the default). An op that works on several types has that of its widest floats.
        gemm: extents of the matrix product behind each op, int (n_ops, 4): batch, m, n, k of a product or a
            convolution, which is counted as its implicit product (groups, positions of the output in all
            samples, output channels of a group, kernel elements of a group); batch * heads, queries, keys and
            head width of attention. Zeros where there is none (the default).
        image: height and width of the output of each 3x3 convolution of stride 1 that has one group and no
            dilation, which can be computed in tiles of the image; int (n_ops, 2), zeros for all else (the
            default).
        sources: line of code that ran each op, `file.py:12`; "" where it is not known (the default).
        shapes: shape of the first tensor that each op makes; None where it is not known (the default).
        tree: false for modules of the model without a forward pass, as lists of modules have none, by path in
            the order of registration; empty where it is not known (the default). Files do not hold it.
        tied: paths under which the captured module holds one tensor several times, or one submodule without
            tensors; a tensor's first path is the name of its parameter op.
    """

    name: str
    family: str
    op_names: tuple[str, ...]
    op_types: tuple[str, ...]
    modules: tuple[str, ...]
    phases: tuple[str, ...]
    flops: FloatArray
    bytes_moved: FloatArray
    resident_bytes: FloatArray
    colocate: IntArray
    tensor_producer: IntArray
    tensor_bytes: FloatArray
    consumers: Csr
    seconds: Mapping[str, FloatArray] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    gemm: IntArray = field(default_factory=lambda: np.zeros((0, EXTENTS), np.int64))
    image: IntArray = field(default_factory=lambda: np.zeros((0, IMAGE_SIDES), np.int64))
    sources: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    tree: Mapping[str, bool] = field(default_factory=dict)
    tied: tuple[tuple[str, ...], ...] = ()

    @property
    def n_ops(self) -> int:
        """Number of ops, sources (parameters and inputs) included."""
        return len(self.op_names)

    @property
    def n_tensors(self) -> int:
        """Number of tensors."""
        return len(self.tensor_producer)

    @cached_property
    def is_source(self) -> BoolArray:
        """Says whether an op never occupies a device (parameters and inputs), bool (n_ops,)."""
        return np.array([kind in SOURCE_TYPES for kind in self.op_types], dtype=bool)


def check_graph(graph: GraphColumns) -> None:
    """Checks that a graph keeps the rules of `OpGraph`.

    Raises:
        GraphError: it breaks one.
    """
    where = f"graph '{graph.name}'"
    n_ops = graph.n_ops
    if n_ops == 0:
        raise GraphError(f"{where}: has no ops; give at least one")
    of_ops = ("op_types", "modules", "phases", *AMOUNTS, "colocate", "dtypes", "gemm", "sources", "shapes")
    for label in of_ops:
        if len(getattr(graph, label)) != n_ops:
            raise GraphError(f"{where}: {label} has {len(getattr(graph, label))} entries for {n_ops} ops")
    _check_strings(where, graph)
    for label, most in zip(AMOUNTS, (MAX_FLOPS, MAX_BYTES, MAX_BYTES), strict=True):
        _check_amounts(where, label, getattr(graph, label), most, graph.op_names)
    for kind, values in graph.seconds.items():
        if len(values) != n_ops:
            raise GraphError(f"{where}: seconds of '{kind}' has {len(values)} entries for {n_ops} ops")
        seconds = np.where(np.isnan(values), 0.0, values)
        _check_amounts(where, f"seconds of '{kind}'", seconds, MAX_SECONDS, graph.op_names)
    _refuse(
        (graph.colocate < -1) | (graph.colocate > MAX_INTEGER),
        lambda op: (
            f"{where}: op {op} has colocate {graph.colocate[op]}; use an id >= 0 (at most 2**53) or null"
        ),
    )
    _check_products(where, graph)
    _check_tensors(where, graph)


def _refuse(bad: BoolArray, message: Callable[[int], str]) -> None:
    """Raises `GraphError` with the message about the first bad entry, if there is one."""
    if bad.any():
        raise GraphError(message(int(np.argmax(bad))))


def _check_products(where: str, graph: GraphColumns) -> None:
    """Checks the extents of matrix products and the sides of images."""
    for label, columns in (("gemm", EXTENTS), ("image", IMAGE_SIDES)):
        if (shape := getattr(graph, label).shape) != (graph.n_ops, columns):
            raise GraphError(f"{where}: {label} has shape {shape}; use ({graph.n_ops}, {columns})")
    bad = ((graph.gemm < 1) | (graph.gemm > MAX_EXTENT)).any(axis=1) & graph.gemm.any(axis=1)
    _refuse(
        bad | (2.0 * graph.gemm.astype(float).prod(axis=1) > MAX_FLOPS),
        lambda op: (
            f"{where}: op {op} ('{graph.op_names[op]}') has gemm {graph.gemm[op].tolist()}; use four extents "
            f"from 1 to {MAX_EXTENT:g} of at most {MAX_FLOPS:g} flops"
        ),
    )
    said, positions = graph.image.any(axis=1), graph.gemm[:, 1]
    bad = said & ((graph.image.min(axis=1) < 1) | (graph.image.max(axis=1) > positions))
    sized = np.flatnonzero(said & ~bad)
    sides = graph.image[sized].tolist()  # Python's integers, whose product cannot overflow
    bad[sized] = [m % (h * w) != 0 for m, (h, w) in zip(positions[sized].tolist(), sides, strict=True)]
    _refuse(
        bad,
        lambda op: (
            f"{where}: op {op} ('{graph.op_names[op]}') has image {graph.image[op].tolist()}; use the height "
            f"and width of the output of a convolution, whose product divides m of gemm, {positions[op]}"
        ),
    )


def _check_strings(where: str, graph: GraphColumns) -> None:
    strings = {
        "name": (graph.name,),
        "family": (graph.family,),
        "kind of seconds": tuple(graph.seconds),
        "op name": graph.op_names,
        "type": graph.op_types,
        "module": graph.modules,
        "source": graph.sources,
        "tied path": [path for paths in graph.tied for path in paths],
    }
    for label, texts in strings.items():
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
    for label, values, choices in (("phase", graph.phases, PHASES), ("dtype", graph.dtypes, ("", *DTYPES))):
        for op, value in enumerate(values):
            if value not in choices:
                raise GraphError(
                    f"{where}: op {op} ('{graph.op_names[op]}') has {label} '{value}'; "
                    f"use one of {', '.join(filter(None, choices))}"
                )


def _check_amounts(
    where: str, label: str, values: FloatArray, most: float, op_names: Sequence[str] | None = None
) -> None:
    """Checks amounts of ops or, where there are no names, of tensors; `most` is that of all together."""

    def place_of(index: int) -> str:
        return f"tensor {index}" if op_names is None else f"op {index} ('{op_names[index]}')"

    _refuse(
        ~np.isfinite(values) | (values < 0),
        lambda index: f"{where}: {place_of(index)} has {label} {values[index]}; use a finite number >= 0",
    )
    with np.errstate(over="ignore"):
        total = float(np.sum(values))
    if total > most * (1 + ROUNDING):
        index = int(np.argmax(values))
        raise GraphError(
            f"{where}: {label} of the whole step is {total:g}, at {place_of(index)} {values[index]:g}; "
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
        for i in np.flatnonzero((ops < 0) | (ops >= graph.n_ops)):
            raise GraphError(
                f"{where}: tensor {tensor_of[i]} {label} op {ops[i]}, but ops are 0 to {graph.n_ops - 1}"
            )
    _refuse(
        readers <= producer[owner],
        lambda i: (
            f"{where}: tensor {owner[i]} goes from op {producer[owner[i]]} to op {readers[i]}, "
            "but ops are in program order; sort them topologically (a cycle cannot be sorted)"
        ),
    )
    _refuse(
        (np.diff(readers) <= 0) & (np.diff(owner) == 0),
        lambda i: f"{where}: the consumers of tensor {owner[i]} must be ascending and distinct",
    )
    _refuse(
        np.isin(np.arange(graph.n_ops), readers) & graph.is_source,
        lambda op: (
            f"{where}: op {op} ('{graph.op_names[op]}') is a {graph.op_types[op]} and reads a tensor; "
            "parameters and inputs have no inputs"
        ),
    )
