"""The columns of an op graph: what is stored of its ops and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from graphs.system.array_types import FloatArray, IntArray

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


def _no_gemm() -> IntArray:
    return np.zeros((0, EXTENTS), dtype=np.int64)


def _no_image() -> IntArray:
    return np.zeros((0, IMAGE_SIDES), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class GraphColumns:
    """Columns of the ops and tensors of a graph; nothing is checked.

    Attributes:
        name, family: what the graph is and the model family it belongs to.
        op_names, op_types, modules, phases: one string per op; names are unique, `phases` are from `PHASES`.
        flops: floating-point operations, (n_ops,).
        bytes_moved: memory traffic in bytes, (n_ops,).
        resident_bytes: what the op keeps all step (parameters, gradients, optimizer state), (n_ops,).
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
        tree: whether each module of the model has a forward pass, as lists of modules have none, by path in
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
    gemm: IntArray = field(default_factory=_no_gemm)
    image: IntArray = field(default_factory=_no_image)
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
    def is_source(self) -> NDArray[np.bool_]:
        """Says whether an op never occupies a device (parameters and inputs), bool (n_ops,)."""
        return np.array([kind in SOURCE_TYPES for kind in self.op_types], dtype=bool)
