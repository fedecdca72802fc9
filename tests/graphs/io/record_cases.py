"""A small graph as its JSON record, with what a test changes."""

from typing import Any


def record(**changes: Any) -> dict[str, Any]:
    """A small conforming graph, with some top-level keys changed."""
    ops = [
        {"name": "w", "type": "parameter", "resident_bytes": 64, "colocate": 0},
        {"name": "mm", "type": "aten.mm", "module": "a.b", "flops": 1024, "bytes_moved": 0.5, "colocate": 0}
        | {"dtype": "tf32", "gemm": [1, 32, 4, 4], "image": [4, 2], "source": "model.py:3", "shape": [2, 0]},
        {"name": "mm_grad", "phase": "backward", "seconds": {"k80": 1e-4}},
    ]
    tensors = [
        {"producer": 0, "bytes": 16, "consumers": [2, 1]},
        {"producer": 1, "bytes": 4096, "consumers": [2]},
    ]
    base = {"format": "placewalk.opgraph/1", "name": "g", "family": "f", "ops": ops, "tensors": tensors}
    return base | changes


def with_op(**changes: Any) -> dict[str, Any]:
    return record(ops=[{"name": "a"}, {"name": "b"} | changes], tensors=[])


def with_tensor(**changes: Any) -> dict[str, Any]:
    tensor = {"producer": 0, "bytes": 1, "consumers": [1, 2]} | changes
    return record(ops=[{"name": "a"}, {"name": "b"}, {"name": "c"}], tensors=[tensor])
