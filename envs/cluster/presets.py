"""Preset clusters.

In those without calibrated costs every speed is a peak from a datasheet. Captured graphs count 32-bit
tensors, so the arithmetic peak is that for 32-bit tensors: fp32 without TF32 tensor cores (K80, V100),
dense TF32 with them (A100, H100). Capacities are decimal, as datasheets print them, which leaves room for
the CUDA context. No datasheet states launch times and latencies: 6 us to launch a kernel and 10 us to begin
a copy are usual for PyTorch on CUDA.

Those of `presets.json` have devices and links of `envs.cluster.kinds`; each says what of its links was not
measured. They count the host of eager PyTorch (`envs.cluster.host`), the others none.

Sources:
    K80: NVIDIA Tesla K80 board specification BD-07317-001, one of the board's two GK210.
    V100: NVIDIA Tesla V100 architecture whitepaper WP-08608-001, SXM2 16 GB.
    A100: NVIDIA A100 Tensor Core GPU datasheet and architecture whitepaper (2020), SXM4 40 GB.
    H100: NVIDIA H100 Tensor Core GPU datasheet (2023), SXM5 80 GB; TF32 without sparsity.
    RTX 3060: NVIDIA Ampere GA10x architecture and the board's specifications (2021), 12 GB.
    Xeon: NVIDIA DGX-1 datasheet (two E5-2698 v4, 512 GB DDR4-2133) and Intel ARK.
    PCIe: PCI Express base specifications 3.0 and 4.0, 16 lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any, cast

import numpy as np

from envs.cluster.cluster import MAX_DEVICES, Cluster, ClusterError, Device
from envs.cluster.files import how_to_measure, is_own_cluster, own_cluster_file, read_cluster
from envs.cluster.kinds import measured_links
from envs.cluster.named import linked, named_cluster
from graphs.system.json_files import read_json
from graphs.system.registry import Registry

K80 = Device("gpu", "k80", 12e9, flops_per_s=2.8e12, bytes_per_s=240e9, launch_s=6e-6)
"""GK210: 2,496 cores at 560 MHz, two flops each; 12 GB GDDR5."""
V100 = Device("gpu", "v100", 16e9, flops_per_s=15.7e12, bytes_per_s=900e9, launch_s=6e-6)
A100 = Device("gpu", "a100", 40e9, flops_per_s=156e12, bytes_per_s=1555e9, launch_s=6e-6)
RTX3060 = Device("gpu", "rtx3060", 12e9, flops_per_s=12.7e12, bytes_per_s=360e9, launch_s=6e-6)
"""12 GB: 3,584 cores at 1.777 GHz, two flops each; 192 bits of GDDR6 at 15 Gb/s."""
H100 = Device("gpu", "h100", 80e9, flops_per_s=494.5e12, bytes_per_s=3350e9, launch_s=6e-6)
XEON = Device("cpu", "xeon", 512e9, flops_per_s=2.8e12, bytes_per_s=136.5e9, launch_s=5e-6)
"""Two sockets: 40 cores at 2.2 GHz, 32 flops each (two AVX2 FMA units); eight channels of 17.06e9 B/s."""

PCIE3_BYTES_PER_S = 15.75e9
PCIE4_BYTES_PER_S = 31.5e9
NVLINK2_BYTES_PER_S = 25e9
"""One NVLink 2.0 link, one direction; a V100 has six."""
NVLINK3_BYTES_PER_S = 300e9
"""Half of the 600 GB/s (both directions) of an A100 into its NVSwitch."""
NVLINK4_BYTES_PER_S = 450e9
"""Half of the 900 GB/s (both directions) of an H100 into its NVSwitch."""
INFINIBAND_BYTES_PER_S = 25e9
"""HDR, 200 Gb/s: one adapter a GPU, as in the NVIDIA DGX A100 datasheet."""
LATENCY_S = 10e-6
NODE_LATENCY_S = 20e-6

Builder = Callable[..., Cluster]

PRESETS = Registry[Builder]("cluster", ClusterError)
"""Builders of the preset clusters by name; those in `SIZED` take a number of devices."""
SIZED: set[str] = set()


def preset(name: str, *, sized: bool = False) -> Callable[[Builder], Builder]:
    """Registers a cluster builder under a name; a `sized` one takes the number of devices.

    Raises:
        ClusterError: the name is taken.
    """

    def register(build: Builder) -> Builder:
        if sized:
            SIZED.add(name)
        return PRESETS.register(name, build)

    return register


def uniform(
    name: str,
    device: Device,
    n_devices: int,
    bytes_per_s: float,
    *,
    latency_s: float = LATENCY_S,
    **rules: object,
) -> Cluster:
    """Builds a cluster of equal devices with equal links.

    Args:
        device: copied `n_devices` times; copies are named `<name>0`, `<name>1`, ...
        bytes_per_s, latency_s: bandwidth and latency of every link.
        rules: further fields of `Cluster`.
    """
    shape = (n_devices, n_devices)
    devices = tuple(replace(device, name=f"{device.name}{index}") for index in range(n_devices))
    return Cluster(name, devices, np.full(shape, bytes_per_s), np.full(shape, latency_s), **rules)  # type: ignore[arg-type]


@preset("2xk80")
def two_k80() -> Cluster:
    """Builds the two GPUs of one K80 board, each behind the board's PCIe 3.0 switch."""
    return uniform("2xk80", K80, 2, PCIE3_BYTES_PER_S)


@preset("2xrtx3060")
def two_rtx3060() -> Cluster:
    """Builds two consumer GPUs in one PCIe 3.0 host, with the bandwidth that was measured between such."""
    return uniform("2xrtx3060", RTX3060, 2, measured_links()["pcie3"].bytes_per_s)


@preset("4xv100")
def four_v100() -> Cluster:
    """Builds four V100 on one board, two of the six NVLinks of each to every other."""
    return uniform("4xv100", V100, 4, 2 * NVLINK2_BYTES_PER_S, sharing="pair")


@preset("8xa100")
def eight_a100() -> Cluster:
    """Builds one DGX A100: eight GPUs on NVSwitch."""
    return uniform("8xa100", A100, 8, NVLINK3_BYTES_PER_S)


@preset("4xh100")
def four_h100() -> Cluster:
    """Builds four H100 on NVSwitch."""
    return uniform("4xh100", H100, 4, NVLINK4_BYTES_PER_S)


@preset("2x4xa100")
def two_nodes_of_a100() -> Cluster:
    """Builds two nodes of four A100: NVSwitch within a node, InfiniBand between nodes."""
    node = np.arange(8) // 4
    local = node[:, None] == node[None, :]
    within = uniform("2x4xa100", A100, 8, NVLINK3_BYTES_PER_S)
    return replace(
        within,
        bytes_per_s=np.where(local, NVLINK3_BYTES_PER_S, INFINIBAND_BYTES_PER_S),
        latency_s=np.where(local, LATENCY_S, NODE_LATENCY_S),
    )


@preset("gpu+cpu")
def gpu_and_cpu() -> Cluster:
    """Builds one V100 and its host, a DGX-1's pair of Xeons with far more memory, over PCIe 3.0."""
    devices = (replace(V100, name="gpu0"), replace(XEON, name="cpu0"))
    return replace(uniform("gpu+cpu", V100, 2, PCIE3_BYTES_PER_S), devices=devices)


def _of_kinds(name: str, kinds: str, link: str, share: float) -> Cluster:
    devices, measured = named_cluster(kinds), measured_links()[link].scaled(share)
    return linked(name, [device.kind for device in devices.devices], measured, sharing=devices.sharing)


_FILE = cast("dict[str, Any]", read_json(str(resources.files("envs.cluster").joinpath("presets.json"))))
for _name, _row in _FILE["presets"].items():
    _build = partial(_of_kinds, _name, _row["kinds"], _row["link"], _row["share"])
    _build.__doc__ = _row["what"]
    preset(_name)(_build)


@preset("placeto-k80", sized=True)
def placeto_k80(n_devices: int = 2) -> Cluster:
    """Builds K80s as the published Placeto simulator schedules them; by default two.

    Source: Addanki et al. 2019 (arXiv 1906.08879), the simulator published with it.
    """
    return uniform(
        "placeto-k80",
        K80,
        n_devices,
        7.6e9,
        latency_s=0.0,
        schedule="fifo",
        sharing="egress",
        transfer_per="tensor",
        op_gap_s=5.7e-6,
        transfer_gap_s=25e-6,
    )


DEFAULT_CLUSTER = "4xv100-sxm2"
"""The preset that stands where none is named: its devices are calibrated, and such links were measured."""
RANDOM = "random"
"""Stands for clusters that a training draws."""


def get_cluster(spec: str) -> Cluster:
    """Finds a cluster: of this machine (`this`, `2xcpu`, ...), a preset, one of named kinds, or of a file.

    Raises:
        ClusterError: this machine was not measured, `spec` is `RANDOM` or names no preset and ends in no
            `.json`, or the cluster breaks a rule.
        FileFormatError: the path is no readable cluster file.
    """
    if spec == RANDOM:
        raise ClusterError(
            f"cluster '{RANDOM}': only trainings on simulated steps draw clusters; name one of "
            f"{', '.join(PRESETS)}, or the path of a cluster file (.json)"
        )
    if is_own_cluster(spec):
        file = own_cluster_file(spec)
        if not file.is_file():
            raise ClusterError(f"cluster '{spec}': not measured yet; run {how_to_measure(spec)}")
        return read_cluster(file)
    return read_cluster(spec) if spec.endswith((".json", ".json.gz")) else get_preset(spec)


def get_preset(spec: str) -> Cluster:
    """Builds the preset or the named cluster of `spec`: `NAME`, or `NAME:N` for N devices (the first N).

    Raises:
        ClusterError: an unknown name, or a count that is no number from 1 to the most that the cluster has.
    """
    name, colon, count = spec.partition(":")
    whole = PRESETS[name]() if name in PRESETS else named_cluster(name)
    if not colon:
        return whole
    most = MAX_DEVICES if name in SIZED else whole.n_devices
    if not (count.isascii() and count.isdigit() and len(count) < 6 and 1 <= int(count) <= most):
        raise ClusterError(f"cluster '{spec}': write '{name}:N' with N devices, 1 to {most}")
    return replace(PRESETS[name](int(count)) if name in SIZED else whole.first(int(count)), name=spec)
