"""The devices of this machine that stand for those of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence

from envs.cluster.cluster import Cluster
from envs.cluster.kinds import CPU_KINDS
from envs.runtime.device_program import ExecutionError

CPU = "cpu"


def torch_devices(cluster: Cluster) -> list[str]:
    """Names the torch device that each device of a cluster runs on: `cpu`, or the next of `cuda:0`, ...

    Raises:
        ExecutionError: this machine lacks one.
    """
    import torch

    names: list[str] = []
    n_gpus, n_there = 0, torch.cuda.device_count()
    for device in cluster.devices:
        if device.kind.startswith(CPU_KINDS):
            names.append(CPU)
            continue
        if n_gpus == n_there:
            raise ExecutionError(
                f"cluster '{cluster.name}': '{device.name}' is a {device.kind}, and this machine has only "
                f"{n_there} CUDA devices; place on a cluster of this machine, such as 2xcpu"
            )
        names.append(f"cuda:{n_gpus}")
        n_gpus += 1
    return names


def check_devices(names: Sequence[str], n_there: int) -> None:
    """Checks the names of torch devices.

    Args:
        n_there: number of CUDA devices that this machine has.

    Raises:
        ExecutionError: a name is unknown, is given twice, or is that of a device that is not there.
    """
    for index, name in enumerate(names):
        kind, _, number = name.partition(":")
        if name == CPU:
            continue
        if kind != "cuda" or not number.isdecimal() or number != str(int(number)):
            raise ExecutionError(f"device {index} is '{name}'; use cpu, or cuda:0 and so on")
        if name in names[:index]:
            raise ExecutionError(f"device {index} is '{name}' again; name each CUDA device once")
        if int(number) >= n_there:
            raise ExecutionError(
                f"device {index} is '{name}', and this machine has {n_there} CUDA devices; use others, or cpu"
            )


def n_cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
