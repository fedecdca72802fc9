"""Records of graphs: what is read from them, and how what does not conform is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from graphs.graph_columns import GraphError
from graphs.io.graph_files import graph_from_json, graph_to_json
from graphs.limits import MAX_BYTES, MAX_FLOPS
from graphs.op_graph import build_graph
from graphs.system.json_files import FileFormatError
from tests.graphs.io.record_cases import record, with_op, with_tensor


def test_every_field_arrives() -> None:
    graph = graph_from_json(record(), "here")
    assert (graph.name, graph.family) == ("g", "f")
    assert graph.op_names == ("w", "mm", "mm_grad")
    assert graph.op_types == ("parameter", "aten.mm", "")
    assert graph.modules == ("", "a.b", "")
    assert graph.phases == ("forward", "forward", "backward")
    np.testing.assert_array_equal(graph.flops, [0, 1024, 0])
    np.testing.assert_array_equal(graph.bytes_moved, [0, 0.5, 0])
    np.testing.assert_array_equal(graph.resident_bytes, [64, 0, 0])
    np.testing.assert_array_equal(graph.colocate, [0, 0, -1])
    np.testing.assert_array_equal(graph.tensor_producer, [0, 1])
    np.testing.assert_array_equal(graph.tensor_bytes, [16, 4096])
    assert [graph.consumers.row(tensor).tolist() for tensor in range(2)] == [[1, 2], [2]]
    np.testing.assert_array_equal(graph.seconds["k80"], [np.nan, np.nan, 1e-4])
    assert graph.dtypes == ("", "tf32", "")
    np.testing.assert_array_equal(graph.gemm, [[0, 0, 0, 0], [1, 32, 4, 4], [0, 0, 0, 0]])
    np.testing.assert_array_equal(graph.image, [[0, 0], [4, 2], [0, 0]])
    assert graph.sources == ("", "model.py:3", "")
    assert graph.shapes == (None, (2, 0), None)


def test_a_graph_that_says_nothing_of_its_arithmetic_is_written_as_before() -> None:
    value = graph_to_json(build_graph("g", "", [{"name": "a"}], []))
    assert value["ops"] == [
        {"name": "a", "type": "", "module": "", "phase": "forward", "flops": 0}
        | {"bytes_moved": 0, "resident_bytes": 0, "colocate": None}
    ]


def test_whole_numbers_are_written_as_integers() -> None:
    op = graph_to_json(graph_from_json(record(), "here"))["ops"][1]
    assert json.dumps([op["flops"], op["bytes_moved"]]) == "[1024, 0.5]"


BAD_RECORDS = {
    "not an object": ([1], "is an array; expected an object"),
    "format": (record(format="placewalk.opgraph/2"), "format is 'placewalk.opgraph/2'; expected"),
    "format is no string": (record(format=["x"]), "format is an array; expected"),
    "no ops": (record(ops=[], tensors=[]), "has no ops"),
    "ops are no array": (record(ops={}), "ops: is an object; expected an array"),
    "op is no object": (record(ops=["mm"]), "op 0: is a string; expected an object"),
    "unknown key": (record(version=1), "unknown key 'version'; known keys are family, format, name"),
    "unknown op key": (with_op(flop=1), "op 1: unknown key 'flop'"),
    "unknown tensor key": (with_tensor(size=1), "tensor 0: unknown key 'size'"),
    "missing name": ({"format": "placewalk.opgraph/1", "ops": [], "tensors": []}, "key 'name' is missing"),
    "missing keys": (
        {"name": "g"},
        "keys 'format', 'ops', 'tensors' are missing; format must be 'placewalk.opgraph/1'$",
    ),
    "another format": ({"format": "placewalk.cluster/1", "devices": []}, "expected 'placewalk.opgraph/1'$"),
    "missing op name": (record(ops=[{"type": "mm"}]), "op 0: key 'name' is missing"),
    "missing producer": (record(tensors=[{"consumers": []}]), "tensor 0: key 'producer' is missing"),
    "name is no string": (record(name=3), "name: is a number; expected a string"),
    "empty op name": (with_op(name=""), "op 1: name: is empty"),
    "op name with a newline": (with_op(name="a\nb"), "op 1: name: 'a\\\\nb' holds characters"),
    "surrogate": (with_op(module="\ud800"), "op 1: module: .* holds characters that cannot be printed"),
    "duplicate op name": (with_op(name="a"), "two ops are named 'a'"),
    "phase": (with_op(phase="warm-up"), "has phase 'warm-up'; use one of forward, backward, optimizer"),
    "flops is a boolean": (with_op(flops=True), "op 1: flops: is a boolean; expected a number"),
    "flops is a string": (with_op(flops="1"), "op 1: flops: is a string"),
    "flops is huge": (with_op(flops=10**400), "op 1: flops: is too large"),
    "flops is infinite": (with_op(flops=float("inf")), "flops"),
    "flops beyond physics": (with_op(flops=1e308), "flops of the whole step is 1e\\+308, at op 1 \\('b'\\)"),
    "seconds of a century": (with_op(seconds={"k80": 4e9}), "seconds of 'k80' of the whole step is 4e\\+09"),
    "bytes beyond physics": (with_tensor(bytes=1e22), "bytes of the whole step is 1e\\+22, at tensor 0"),
    "flops with an exponent": (with_op(flops=float("1e999")), "op 1: flops: is too large"),
    "flops is negative": (with_op(flops=-1), "op 1 \\('b'\\) has flops -1.0; use a finite number >= 0"),
    "colocate is a float": (with_op(colocate=1.0), "op 1: colocate: is 1.0; expected an integer"),
    "colocate is negative": (with_op(colocate=-1), "op 1: colocate is -1; expected an id >= 0 or null"),
    "colocate is huge": (with_op(colocate=2**70), "op 1: colocate: .* at most 2\\*\\*53"),
    "seconds is a number": (with_op(seconds=1), "op 1: seconds: is a number; expected an object"),
    "seconds of a kind": (with_op(seconds={"k80": None}), "op 1: seconds on k80: is null; expected a number"),
    "seconds is negative": (with_op(seconds={"k80": -1}), "has seconds of 'k80' -1.0"),
    "unknown dtype": (with_op(dtype="fp31"), "op 1 \\('b'\\) has dtype 'fp31'; use one of fp64, fp32, tf32"),
    "dtype is null": (with_op(dtype=None), "op 1: dtype: is null; expected a string"),
    "gemm is a number": (with_op(gemm=1), "op 1: gemm: is a number; expected an array"),
    "gemm of three": (with_op(gemm=[1, 2, 3]), "op 1: gemm: has 3 numbers; expected \\[batch, m, n, k\\]"),
    "gemm of a float": (with_op(gemm=[1, 2, 3, 4.0]), "op 1: gemm: is 4.0; expected an integer"),
    "gemm with a zero": (with_op(gemm=[1, 2, 0, 4]), "op 1 \\('b'\\) has gemm \\[1, 2, 0, 4\\]; use four"),
    "gemm is negative": (with_op(gemm=[1, 2, -1, 4]), "use four extents from 1 to 1e\\+15"),
    "gemm too long": (with_op(gemm=[1, 2**52, 1, 1]), "use four extents from 1 to 1e\\+15"),
    "gemm too large": (with_op(gemm=[10**10] * 4), "of at most 1e\\+27 flops"),
    "source is null": (with_op(source=None), "op 1: source: is null; expected a string"),
    "source with a bell": (with_op(source="a\a"), "cannot be printed"),
    "shape is a number": (with_op(shape=3), "op 1: shape: is a number; expected an array"),
    "shape of a float": (with_op(shape=[1.0]), "op 1: shape: is 1.0; expected an integer"),
    "shape is negative": (with_op(shape=[-1]), "op 1: shape: is \\[-1\\]; expected extents of at least 0"),
    "image of one": (with_op(image=[1]), "op 1: image: has 1 numbers; expected \\[height, width\\]"),
    "image with a zero": (
        with_op(gemm=[1, 32, 4, 4], image=[0, 4]),
        "has image \\[0, 4\\]; use the height and",
    ),
    "image without gemm": (with_op(image=[4, 4]), "whose product divides m of gemm, 0"),
    "image that does not fit": (with_op(gemm=[1, 32, 4, 4], image=[3, 4]), "divides m of gemm, 32"),
    "image is negative": (with_op(gemm=[1, 32, 4, 4], image=[-4, -4]), "has image \\[-4, -4\\]"),
    "image is huge": (with_op(gemm=[1, 32, 4, 4], image=[2**52, 2**52]), "divides m of gemm, 32"),
    "producer is a float": (with_tensor(producer=0.0), "tensor 0: producer: is 0.0; expected an integer"),
    "producer is a boolean": (with_tensor(producer=False), "tensor 0: producer: is False"),
    "producer is unknown": (with_tensor(producer=7), "tensor 0 is produced by op 7, but ops are 0 to 2"),
    "consumer is unknown": (with_tensor(consumers=[3]), "tensor 0 is consumed by op 3, but ops are 0 to 2"),
    "consumer is null": (with_tensor(consumers=[None]), "tensor 0: a consumer: is null"),
    "consumers is a number": (
        with_tensor(consumers=1),
        "tensor 0: consumers: is a number; expected an array",
    ),
    "duplicate consumer": (with_tensor(consumers=[2, 1, 2]), "tensor 0: lists consumer 2 twice"),
    "out of order": (with_tensor(producer=2, consumers=[0]), "goes from op 2 to op 0"),
    "cycle": (with_tensor(producer=1, consumers=[1]), "a cycle cannot be sorted"),
    "bytes is negative": (with_tensor(bytes=-1), "tensor 0 has bytes -1.0"),
}


@pytest.mark.parametrize(("value", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_what_breaks_the_format_is_refused_in_one_line(value: object, message: str) -> None:
    with pytest.raises((FileFormatError, GraphError), match=f"^here: .*{message}") as caught:
        graph_from_json(value, "here")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "op",
    [
        {"name": ""},
        {"type": "mm"},
        {"name": "b", "flop": 1},
        {"name": "b", "flops": "1"},
        {"name": "b", "colocate": -1},
        {"name": "b", "seconds": {"k80": None}},
        ["b"],
    ],
)
def test_graphs_built_in_python_keep_the_rules_of_files(op: Any) -> None:
    with pytest.raises(FileFormatError) as of_file:
        graph_from_json(record(name="g", ops=[{"name": "a"}, op], tensors=[]), "graph 'g'")
    with pytest.raises(GraphError) as of_python:
        build_graph("g", "", [{"name": "a"}, op], [])
    assert str(of_file.value) == str(of_python.value)


def test_graphs_built_in_python_may_hold_numbers_of_numpy() -> None:
    op = {"name": "a", "flops": np.int64(3), "bytes_moved": np.float32(0.5), "colocate": np.int64(2)}
    graph = build_graph("g", "", [op], [])
    assert (graph.flops[0], graph.bytes_moved[0], graph.colocate[0]) == (3.0, 0.5, 2)


@pytest.mark.parametrize("amount", ["flops", "bytes_moved", "resident_bytes"])
def test_amounts_that_overflow_together_are_refused(amount: str) -> None:
    with pytest.raises(GraphError, match=f"{amount} of the whole step is inf, at op 0 .* at most"):
        build_graph("g", "", [{"name": str(at), amount: 1.5e308} for at in range(2)], [])
    most = {"flops": MAX_FLOPS}.get(amount, MAX_BYTES)
    with pytest.raises(GraphError, match=f"a step has at most {re.escape(f'{most:g}')}"):
        build_graph("g", "", [{"name": str(at), amount: most / 2} for at in range(3)], [])
    thirds = [{"name": str(at), amount: most / 3} for at in range(3)]
    assert build_graph("g", "", thirds, []).n_ops == 3


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "\ud800", "\u2028"])
def test_what_cannot_be_printed_cannot_be_constructed(text: str) -> None:
    graph = graph_from_json(record(), "here")
    names = ("w", "mm", text)
    for changes in (
        {"name": text},
        {"family": text},
        {"op_names": names},
        {"op_types": names},
        {"modules": names},
        {"seconds": {text: graph.flops}},
    ):
        with pytest.raises(GraphError, match="holds characters that cannot be printed"):
            replace(graph, **changes)


def test_what_has_no_name_cannot_be_constructed() -> None:
    graph = graph_from_json(record(), "here")
    for changes in ({"name": ""}, {"op_names": ("w", "mm", "")}, {"seconds": {"": graph.flops}}):
        with pytest.raises(GraphError, match="has an empty name"):
            replace(graph, **changes)
    with pytest.raises(GraphError, match="at most 2"):
        replace(graph, colocate=np.array([2**60, -1, -1]))
