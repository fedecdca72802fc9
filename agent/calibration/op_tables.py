"""Times of single ops measured on a device, as tables that fits are made of."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphs.system.array_types import FloatArray
from graphs.system.errors import InputError

ITEM_BYTES = {"fp32": 4.0, "fp16": 2.0}
"""Bytes of an element by the dtypes that are measured; fp32 is without TF32."""


class MeasuredOpsError(InputError):
    """Measured times that cannot be used; the message says where and what would be right."""


@dataclass(frozen=True)
class MeasuredOp:
    """One measured op.

    Attributes:
        op_class: one of `envs.costs.op_classes.CLASSES`, or `TENSOR`.
        dtype: of the arithmetic.
        shape: batch, m, n and k of a matrix product; else 1, rows, elements of a row and 1.
        image: height and width of the output of a convolution, else 0.
    """

    kind: str
    op_class: str
    dtype: str
    shape: tuple[int, int, int, int]
    flops: float
    bytes_moved: float
    seconds: float
    image: tuple[int, int] = (0, 0)

    @property
    def is_held_out(self) -> bool:
        """Says whether the row judges a fit instead of making it: every second shape, the same on all
        devices.
        """
        return zlib.crc32(f"{self.op_class} {self.shape}".encode()) % 2 == 1


@dataclass(frozen=True)
class OpTable:
    """Rows of one device kind and op class as arrays; see `MeasuredOp`.

    Attributes:
        held_out: whether each row judges the fit, bool (n,).
    """

    kind: str
    op_class: str
    dtype: str
    shape: FloatArray
    flops: FloatArray
    bytes_moved: FloatArray
    seconds: FloatArray
    image: FloatArray
    held_out: NDArray[np.bool_]

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> OpTable:
        """Returns some of the rows, by a mask or by indices."""
        own: dict[str, Any] = {key: each for key, each in vars(self).items() if isinstance(each, np.ndarray)}
        return replace(self, **{key: each[rows] for key, each in own.items()})


def tables(rows: Sequence[MeasuredOp]) -> list[OpTable]:
    """Sorts rows into one table for each device kind and op class; equal shapes stay apart."""
    groups: dict[tuple[str, str], list[MeasuredOp]] = defaultdict(list)
    for row in rows:
        groups[row.kind, row.op_class].append(row)
    return [
        OpTable(
            kind,
            op_class,
            group[0].dtype,
            np.array([row.shape for row in group], dtype=np.float64),
            np.array([row.flops for row in group]),
            np.array([row.bytes_moved for row in group]),
            np.array([row.seconds for row in group]),
            np.array([row.image for row in group], dtype=np.float64),
            np.array([row.is_held_out for row in group]),
        )
        for (kind, op_class), group in sorted(groups.items())
    ]
