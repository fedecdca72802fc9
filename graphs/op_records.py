"""Parsing of op records, those of graph files and those given to `build_graph`, into one column per field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from graphs.graph_columns import AMOUNTS, EXTENTS, IMAGE_SIDES
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.json_fields import array, fields, integer, kind_of, name, number, text
from graphs.system.json_files import FileFormatError

STRINGS = {
    "op_names": ("name", ""),
    "op_types": ("type", ""),
    "modules": ("module", ""),
    "phases": ("phase", "forward"),
    "dtypes": ("dtype", ""),
    "sources": ("source", ""),
}
"""Key and default of each column of strings."""
OP_REQUIRED = frozenset({"name"})
OP_OPTIONAL = (
    {key for key, _ in STRINGS.values()} | {*AMOUNTS, "colocate", "seconds", "gemm", "image", "shape"}
) - OP_REQUIRED

Record = Mapping[str, Any]


def parse_ops(ops: Sequence[object], where: str) -> dict[str, Any]:
    """Check the types of op records and sort their values by field.

    Args:
        ops: one object per op with the keys of the graph file format; only `name` is required.
        where: begins the message of any error, before the index of the op.

    Returns:
        The fields of `OpGraph` that describe its ops.

    Raises:
        FileFormatError: a record is no object, has an unknown key or no name, or a value is of another type.
    """
    records = check_records(ops, where, OP_REQUIRED, OP_OPTIONAL)
    return {
        **{column: _strings(records, key, default, where) for column, (key, default) in STRINGS.items()},
        **{key: parse_amounts(records, key, where) for key in AMOUNTS},
        "colocate": _colocation(records, where),
        "seconds": _seconds(records, where),
        "gemm": _extents(records, "gemm", EXTENTS, "[batch, m, n, k]", where),
        "image": _extents(records, "image", IMAGE_SIDES, "[height, width]", where),
        "shapes": _shapes(records, where),
    }


def check_records(
    records: Sequence[object], where: str, required: AbstractSet[str], optional: AbstractSet[str]
) -> Sequence[Record]:
    """Check that each record is an object with all `required` keys and no key beyond `optional`.

    Raises:
        FileFormatError: one is not; the message has its index.
    """
    allowed = required | optional
    for index, record in enumerate(records):
        if type(record) is not dict or not required <= record.keys() <= allowed:
            fields(record, f"{where} {index}", required, optional)
    return records  # type: ignore[return-value]


def parse_amounts(records: Sequence[Record], key: str, where: str) -> FloatArray:
    """The numbers that records hold under a key, 0 where there is none, (n_records,).

    Raises:
        FileFormatError: one is no finite number.
    """
    values = [record.get(key, 0) for record in records]
    # Checked all at once where that can be: a check per number would be most of the reading time.
    if set(map(type, values)) <= {float}:
        return np.array(values, dtype=np.float64)
    checked = [number(value, f"{where} {index}: {key}") for index, value in enumerate(values)]
    return np.array(checked, dtype=np.float64)


def _strings(records: Sequence[Record], key: str, default: str, where: str) -> tuple[str, ...]:
    values = [record.get(key, default) for record in records]
    check = name if key == "name" else text
    # Joined first, for the same reason.
    plain = set(map(type, values)) <= {str} and "".join(values).isprintable()
    if not plain or (check is name and "" in values):
        for index, value in enumerate(values):
            check(value, f"{where} {index}: {key}")
    return tuple(values)


def _colocation(ops: Sequence[Record], where: str) -> IntArray:
    values = [op.get("colocate") for op in ops]
    for index, value in enumerate(values):
        if value is not None and integer(value, f"{where} {index}: colocate") < 0:
            raise FileFormatError(f"{where} {index}: colocate is {value}; expected an id >= 0 or null")
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)


def _extents(ops: Sequence[Record], key: str, count: int, expected: str, where: str) -> IntArray:
    columns = np.zeros((len(ops), count), dtype=np.int64)
    for index, op in enumerate(ops):
        if key in op:
            extents_where = f"{where} {index}: {key}"
            extents = array(op[key], extents_where)
            if len(extents) != count:
                raise FileFormatError(f"{extents_where}: has {len(extents)} numbers; expected {expected}")
            columns[index] = [integer(extent, extents_where) for extent in extents]
    return columns


def _shapes(ops: Sequence[Record], where: str) -> tuple[tuple[int, ...] | None, ...]:
    shapes: list[tuple[int, ...] | None] = [None] * len(ops)
    for index, op in enumerate(ops):
        if op.get("shape") is not None:
            shape_where = f"{where} {index}: shape"
            shapes[index] = extents = tuple(
                integer(extent, shape_where) for extent in array(op["shape"], shape_where)
            )
            if min(extents, default=0) < 0:
                raise FileFormatError(f"{shape_where}: is {list(extents)}; expected extents of at least 0")
    return tuple(shapes)


def _seconds(ops: Sequence[Record], where: str) -> dict[str, FloatArray]:
    seconds: dict[str, FloatArray] = {}
    for index, op in enumerate(ops):
        if "seconds" in op:
            seconds_where = f"{where} {index}: seconds"
            if not isinstance(record := op["seconds"], dict):
                what = kind_of(record)
                raise FileFormatError(
                    f"{seconds_where}: is {what}; expected an object, device kind to seconds"
                )
            for kind, value in record.items():
                if name(kind, f"{seconds_where}: a device kind") not in seconds:
                    seconds[kind] = np.full(len(ops), np.nan)
                seconds[kind][index] = number(value, f"{seconds_where} on {kind}")
    return seconds
