"""Times of single ops measured on real GPUs, read from CSV files of the NeuSight and Vidur data sets.

Sources: Lee, Phanishayee, Mahajan, "NeuSight", ASPLOS 2025; github.com/sitar-lab/NeuSight (MIT).
Agrawal et al., "Vidur", MLSys 2024; github.com/microsoft/vidur (MIT).
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agent.calibration.drift import drift_s
from envs.cluster.cluster import ClusterError
from envs.cluster.kinds import kind_of
from envs.costs.op_classes import TENSOR
from graphs.system.array_types import FloatArray
from graphs.system.errors import InputError

ITEM_BYTES = {"fp32": 4.0, "fp16": 2.0}
"""Bytes of an element by the dtypes that were measured; fp32 is without TF32."""
BINARY = frozenset({"add", "mul", "div", "pow"})
UNARY = frozenset({"addu", "mulu", "divu", "powu", "gelu", "relu", "tanh"})
MAX_LATENCY_MS = 1e9
DRIFT_ROWS = 100
"""Rows that are not held out, from which on the drift of a session is estimated."""


class MeasuredOpsError(InputError):
    """A file of measured times that cannot be used; the message says where and what would be right."""


@dataclass(frozen=True)
class MeasuredOp:
    """One measured op.

    Attributes:
        kind: device kind.
        name: the op as its source calls it.
        op_class: one of `envs.costs.op_classes.CLASSES`, or `TENSOR`.
        dtype: of the arithmetic.
        shape: batch, m, n and k of a matrix product; else 1, rows, elements of a row and 1.
        flops: floating-point operations.
        bytes_moved: memory traffic in bytes.
        seconds: measured time, less what the timing added by its drift.
        image: height and width of the output of a convolution, else 0.
        drift_s: what was taken off, of `agent.calibration.drift`.
    """

    kind: str
    name: str
    op_class: str
    dtype: str
    shape: tuple[int, int, int, int]
    flops: float
    bytes_moved: float
    seconds: float
    image: tuple[int, int] = (0, 0)
    drift_s: float = 0.0

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
    drift_s: FloatArray
    held_out: NDArray[np.bool_]

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> OpTable:
        """Returns some of the rows, by a mask or by indices."""
        return OpTable(
            self.kind,
            self.op_class,
            self.dtype,
            self.shape[rows],
            self.flops[rows],
            self.bytes_moved[rows],
            self.seconds[rows],
            self.image[rows],
            self.drift_s[rows],
            self.held_out[rows],
        )


def read_ops(paths: Iterable[str | os.PathLike[str]]) -> list[MeasuredOp]:
    """Reads files of measured ops, `.csv` or `.csv.gz`, in which each row names its device.

    Raises:
        MeasurementError: a file cannot be read, lacks a column, or has an unknown op or device, an
            impossible shape, or a time that is not positive.
    """
    return [row for path in paths for row in _without_drift(list(_read_file(os.fspath(path))))]


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
            np.array([row.drift_s for row in group]),
            np.array([row.is_held_out for row in group]),
        )
        for (kind, op_class), group in sorted(groups.items())
    ]


def _without_drift(rows: list[MeasuredOp]) -> list[MeasuredOp]:
    """Takes the drift of the timing off the rows of a file, if it is a session of convolutions."""
    n_used = sum(not row.is_held_out for row in rows)
    if n_used < DRIFT_ROWS or {(row.kind, row.op_class) for row in rows} != {(rows[0].kind, "conv")}:
        return rows
    seconds, flops, size = np.array([(row.seconds, row.flops, row.bytes_moved) for row in rows]).T
    added = drift_s(seconds, flops, size, np.array([not row.is_held_out for row in rows]))
    return [
        replace(row, seconds=row.seconds - by, drift_s=by)
        for row, by in zip(rows, added.tolist(), strict=True)
    ]


def _read_file(path: str) -> Iterator[MeasuredOp]:
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.endswith(".gz")
            else open(path, encoding="utf-8") as file
        ):
            for number, record in enumerate(csv.DictReader(file), start=2):
                where = f"{path}: line {number}"
                yield from (
                    _llama_rows(record, path, where) if "num_tokens" in record else [_row(record, where)]
                )
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise MeasuredOpsError(f"{path}: cannot be read: {why}") from None


def _row(record: Mapping[str, str | None], where: str) -> MeasuredOp:
    name = _text(record, "OPName", where)
    reader = READERS.get(name)
    if reader is None:
        raise MeasuredOpsError(f"{where}: OPName is {name!r}; known ops are {', '.join(sorted(READERS))}")
    try:
        kind = kind_of(_text(record, "Device", where))
    except ClusterError as error:
        raise MeasuredOpsError(f"{where}: {error}") from None
    latency_ms = _milliseconds(record, "Latency", where)
    op_class, shape, flops, elements, image = reader(record, where)
    size = ITEM_BYTES["fp32"] * elements
    return MeasuredOp(kind, name, op_class, "fp32", shape, flops, size, latency_ms * 1e-3, image)


LLAMA_KINDS = {"a100": "a100-sxm4-80gb", "h100": "h100-sxm5-80gb"}
"""Kinds by how the names of Vidur's files begin."""


def _llama_rows(record: Mapping[str, str | None], path: str, where: str) -> Iterator[MeasuredOp]:
    """Yields the four matrix products of a Llama layer in half precision: a row of a Vidur file."""
    kind = LLAMA_KINDS.get(os.path.basename(path).partition(".")[0])
    if kind is None:
        raise MeasuredOpsError(
            f"{path}: names no device; begin its name with one of {', '.join(LLAMA_KINDS)}, and a dot"
        )
    keys = ("num_tokens", "n_embd", "n_expanded_embd", "num_tensor_parallel_workers")
    tokens, width, inner, parts = (_size(record, key, where) for key in keys)
    products = {
        "attn_pre_proj": (3 * width // parts, width),
        "attn_post_proj": (width, width // parts),
        "mlp_up_proj": (2 * inner // parts, width),
        "mlp_down_proj": (width, inner // parts),
    }
    for name, (n, k) in products.items():
        column = f"time_stats.{name}.median"
        if record.get(column) != "":
            elements = tokens * n + n * k + tokens * k
            seconds = _milliseconds(record, column, where) * 1e-3
            work = 2.0 * tokens * n * k, ITEM_BYTES["fp16"] * elements
            yield MeasuredOp(kind, name, TENSOR, "fp16", (1, tokens, n, k), *work, seconds)


Shape = tuple[int, int, int, int]
Work = tuple[str, Shape, float, float, tuple[int, int]]
"""Class, shape, flops, elements read and written, and image of a convolution."""


def _matmul(op_class: str) -> Callable[[Mapping[str, str | None], str], Work]:
    def read(record: Mapping[str, str | None], where: str) -> Work:
        # The files call the inner dimension N and the columns of the output K.
        batch, m, k, n = (_size(record, key, where) for key in "BMNK")
        elements = float(batch * (m * k + k * n + m * n))
        return op_class, (batch, m, n, k), 2.0 * batch * m * n * k, elements, (0, 0)

    return read


def _convolution(record: Mapping[str, str | None], where: str) -> Work:
    keys = ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride")
    batch, inputs, outputs, kernel, size, stride = (_size(record, key, where) for key in keys)
    side = (size + 2 * int(_number(record, "Padding", where)) - kernel) // stride + 1
    if side < 1:
        raise MeasuredOpsError(f"{where}: a kernel of {kernel} does not fit an input of {size}")
    m, k = batch * side * side, inputs * kernel * kernel
    elements = batch * inputs * size * size + k * outputs + m * outputs
    image = (side, side) if (kernel, stride) == (3, 1) else (0, 0)
    return "conv", (1, m, outputs, k), 2.0 * m * outputs * k, float(elements), image


def _rows(op_class: str, flops: float, passes: int) -> Callable[[Mapping[str, str | None], str], Work]:
    def read(record: Mapping[str, str | None], where: str) -> Work:
        rows, length = _size(record, "B", where), _size(record, "H", where)
        return op_class, (1, rows, length, 1), flops * rows * length, float(passes * rows * length), (0, 0)

    return read


READERS: dict[str, Callable[[Mapping[str, str | None], str], Work]] = {
    "linear": _matmul("gemm"),
    "bmm": _matmul("bmm"),
    "conv": _convolution,
    "ln": _rows("norm", 8, 2),
    "softmax": _rows("softmax", 5, 2),
    **{name: _rows("elementwise", 1, 3) for name in BINARY},
    **{name: _rows("elementwise", 1, 2) for name in UNARY},
}
"""Readers of a record's work by the name of its op."""


def _text(record: Mapping[str, str | None], key: str, where: str) -> str:
    value = record.get(key)
    if value is None:
        raise MeasuredOpsError(f"{where}: column {key!r} is missing")
    return value


def _number(record: Mapping[str, str | None], key: str, where: str) -> float:
    text = _text(record, key, where)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise MeasuredOpsError(f"{where}: {key} is {text!r}; expected a number")
    return value


def _milliseconds(record: Mapping[str, str | None], key: str, where: str) -> float:
    value = _number(record, key, where)
    if not 0 < value < MAX_LATENCY_MS:
        raise MeasuredOpsError(f"{where}: {key} is {value:g}; expected milliseconds, more than 0")
    return value


def _size(record: Mapping[str, str | None], key: str, where: str) -> int:
    value = _number(record, key, where)
    if value < 1 or value != int(value) or value > 2**53:
        raise MeasuredOpsError(f"{where}: {key} is {value:g}; expected a whole number, at least 1")
    return int(value)
