"""JSON records of a small graph and a small cluster, with what a test changes."""

from typing import Any


def graph_record(**changes: Any) -> dict[str, Any]:
    """Returns a conforming graph, with some top-level keys changed."""
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
    return graph_record(ops=[{"name": "a"}, {"name": "b"} | changes], tensors=[])


def with_tensor(**changes: Any) -> dict[str, Any]:
    tensor = {"producer": 0, "bytes": 1, "consumers": [1, 2]} | changes
    return graph_record(ops=[{"name": "a"}, {"name": "b"}, {"name": "c"}], tensors=[tensor])


DEVICE = {
    "name": "gpu0",
    "kind": "k80",
    "memory_bytes": 1.2e10,
    "flops_per_s": 2.8e12,
    "bytes_per_s": 2.4e11,
    "launch_s": 6e-6,
}
LINKS = {
    "bytes_per_s": 7.6e9,
    "latency_s": [[0, 1e-6], [2e-6, 0]],
    "sharing": "pair",
    "transfer_per": "tensor",
}


def cluster_record(**changes: Any) -> dict[str, Any]:
    """Returns a conforming cluster of two devices, with some top-level keys changed."""
    base = {
        "format": "placewalk.cluster/1",
        "name": "c",
        "schedule": "fifo",
        "devices": [DEVICE, DEVICE | {"name": "gpu1"}],
        "links": LINKS,
        "op_gap_s": 1e-6,
        "transfer_gap_s": 2e-6,
    }
    return base | changes


def with_device(**changes: Any) -> dict[str, Any]:
    return cluster_record(devices=[DEVICE, DEVICE | {"name": "gpu1"} | changes])


def with_links(**changes: Any) -> dict[str, Any]:
    return cluster_record(links=LINKS | changes)
