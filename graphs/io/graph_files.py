"""Graph files, format `placewalk.opgraph/1`: one graph in `.json`, one a line in `.jsonl`, or with `.gz`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphs.io.json_fields import (
    array,
    fields,
    integer,
    json_number,
    kind_of,
    name,
    number,
    text,
)
from graphs.io.json_files import (
    FileFormatError,
    read_json,
    read_json_lines,
    write_json_atomic,
    write_json_lines_atomic,
)
from graphs.op_graph import Csr, FloatArray, GraphError, IntArray, OpGraph

FORMAT = "placewalk.opgraph/1"
SUFFIXES = (".json", ".jsonl")
GRAPH_REQUIRED = frozenset({"format", "name", "ops", "tensors"})
GRAPH_OPTIONAL = frozenset({"family"})
AMOUNTS = ("flops", "bytes_moved", "resident_bytes")
OP_REQUIRED = frozenset({"name"})
OP_OPTIONAL = frozenset({"type", "module", "phase", *AMOUNTS, "colocate", "seconds"})
TENSOR_REQUIRED = frozenset({"producer", "consumers"})
TENSOR_OPTIONAL = frozenset({"bytes"})

Record = Mapping[str, Any]


def read_graphs(path: str | os.PathLike[str]) -> list[OpGraph]:
    """Read every graph of a file, at least one.

    Raises:
        FileFormatError: the path is no readable graph file, or the file breaks the format.
        GraphError: a graph breaks a rule of `OpGraph`.
    """
    if _plain_suffix(Path(path)) == ".json":
        return [graph_from_json(read_json(path), str(path))]
    graphs = [graph_from_json(value, where) for where, value in read_json_lines(path)]
    if not graphs:
        raise FileFormatError(f"{path}: holds no graph; expected one a line")
    return graphs


def write_graphs(path: str | os.PathLike[str], graphs: Iterable[OpGraph]) -> None:
    """Write graphs atomically: exactly one to `.json`, any number to `.jsonl`.

    Raises:
        FileFormatError: the path ends otherwise, or a `.json` is given another number of graphs than one.
    """
    records = [graph_to_json(graph) for graph in graphs]
    if _plain_suffix(Path(path)) == ".jsonl":
        write_json_lines_atomic(path, records)
    elif len(records) == 1:
        write_json_atomic(path, records[0])
    else:
        raise FileFormatError(f"{path}: a .json holds one graph, not {len(records)}; write to a .jsonl")


def graph_from_json(value: object, where: str) -> OpGraph:
    """Make a graph from its parsed JSON; `where` begins the message of any error.

    Raises:
        FileFormatError: the value breaks the format.
        GraphError: the graph breaks a rule of `OpGraph`.
    """
    record = fields(value, where, GRAPH_REQUIRED, GRAPH_OPTIONAL, format=FORMAT)
    ops = array(record["ops"], f"{where}: ops")
    tensors = array(record["tensors"], f"{where}: tensors")
    _check_records(ops, f"{where}: op", OP_REQUIRED, OP_OPTIONAL)
    _check_records(tensors, f"{where}: tensor", TENSOR_REQUIRED, TENSOR_OPTIONAL)
    try:
        return OpGraph(
            name=name(record["name"], f"{where}: name"),
            family=text(record.get("family", ""), f"{where}: family"),
            op_names=_strings(ops, "name", "", f"{where}: op"),
            op_types=_strings(ops, "type", "", f"{where}: op"),
            modules=_strings(ops, "module", "", f"{where}: op"),
            phases=_strings(ops, "phase", "forward", f"{where}: op"),
            flops=_amounts(ops, "flops", f"{where}: op"),
            bytes_moved=_amounts(ops, "bytes_moved", f"{where}: op"),
            resident_bytes=_amounts(ops, "resident_bytes", f"{where}: op"),
            colocate=_groups(ops, f"{where}: op"),
            tensor_producer=_producers(tensors, f"{where}: tensor"),
            tensor_bytes=_amounts(tensors, "bytes", f"{where}: tensor"),
            consumers=_consumers(tensors, f"{where}: tensor"),
            seconds=_seconds(ops, f"{where}: op"),
        )
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None


def graph_to_json(graph: OpGraph) -> dict[str, Any]:
    """The graph as JSON values: whole numbers are integers, and `seconds` names measured kinds only."""
    amounts = {key: _json_column(getattr(graph, key)) for key in AMOUNTS}
    measured = {kind: _json_column(values) for kind, values in graph.seconds.items()}
    sizes = _json_column(graph.tensor_bytes)
    groups = graph.colocate.tolist()
    ops = []
    for op, op_name in enumerate(graph.op_names):
        record: dict[str, Any] = {
            "name": op_name,
            "type": graph.op_types[op],
            "module": graph.modules[op],
            "phase": graph.phases[op],
            **{key: values[op] for key, values in amounts.items()},
            "colocate": None if groups[op] < 0 else groups[op],
        }
        seconds = {kind: values[op] for kind, values in measured.items() if values[op] is not None}
        ops.append(record | {"seconds": seconds} if seconds else record)
    tensors = [
        {"producer": producer, "bytes": sizes[tensor], "consumers": graph.consumers.row(tensor).tolist()}
        for tensor, producer in enumerate(graph.tensor_producer.tolist())
    ]
    return {"format": FORMAT, "name": graph.name, "family": graph.family, "ops": ops, "tensors": tensors}


def _plain_suffix(path: Path) -> str:
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix not in SUFFIXES:
        raise FileFormatError(f"{path}: graph files end in .json, .jsonl, .json.gz or .jsonl.gz")
    return suffix


def _check_records(
    records: Sequence[object], where: str, required: frozenset[str], optional: frozenset[str]
) -> None:
    known = required | optional
    for index, record in enumerate(records):
        if type(record) is not dict or not required <= record.keys() <= known:
            fields(record, f"{where} {index}", required, optional)


def _strings(records: Sequence[Record], key: str, default: str, where: str) -> tuple[str, ...]:
    values = [record.get(key, default) for record in records]
    check = name if key == "name" else text
    # Joined first: a check per string would be most of the reading time.
    plain = set(map(type, values)) <= {str} and "".join(values).isprintable()
    if not plain or (check is name and "" in values):
        for index, value in enumerate(values):
            check(value, f"{where} {index}: {key}")
    return tuple(values)


def _amounts(records: Sequence[Record], key: str, where: str) -> FloatArray:
    values = [record.get(key, 0) for record in records]
    if set(map(type, values)) <= {float}:
        return np.array(values, dtype=np.float64)
    return np.array([number(value, f"{where} {index}: {key}") for index, value in enumerate(values)])


def _groups(ops: Sequence[Record], where: str) -> IntArray:
    values = [op.get("colocate") for op in ops]
    for index, value in enumerate(values):
        if value is not None and integer(value, f"{where} {index}: colocate") < 0:
            raise FileFormatError(f"{where} {index}: colocate is {value}; expected a group id >= 0 or null")
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)


def _producers(tensors: Sequence[Record], where: str) -> IntArray:
    values = [
        integer(tensor["producer"], f"{where} {index}: producer") for index, tensor in enumerate(tensors)
    ]
    return np.array(values, dtype=np.int64)


def _consumers(tensors: Sequence[Record], where: str) -> Csr:
    rows = [array(tensor["consumers"], f"{where} {index}: consumers") for index, tensor in enumerate(tensors)]
    for index, row in enumerate(rows):
        for value in row:
            integer(value, f"{where} {index}: a consumer")
        if len(set(row)) != len(row):
            twice = next(value for at, value in enumerate(row) if value in row[:at])
            raise FileFormatError(f"{where} {index}: lists consumer {twice} twice; expected each once")
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return Csr.from_pairs(
        owner, np.array([v for row in rows for v in sorted(row)], dtype=np.int64), len(rows)
    )


def _seconds(ops: Sequence[Record], where: str) -> dict[str, FloatArray]:
    seconds: dict[str, FloatArray] = {}
    for index, op in enumerate(ops):
        if "seconds" in op:
            at = f"{where} {index}: seconds"
            for kind, value in _measured(op["seconds"], at):
                if kind not in seconds:
                    seconds[kind] = np.full(len(ops), np.nan)
                seconds[kind][index] = value
    return seconds


def _measured(record: object, where: str) -> Iterator[tuple[str, float]]:
    if not isinstance(record, dict):
        raise FileFormatError(f"{where}: is {kind_of(record)}; expected an object, device kind to seconds")
    for kind, value in record.items():
        yield name(kind, f"{where}: a device kind"), number(value, f"{where} on {kind}")


def _json_column(values: FloatArray) -> list[int | float | None]:
    return [json_number(value) for value in values.tolist()]
