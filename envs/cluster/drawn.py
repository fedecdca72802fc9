"""Clusters drawn at random: 2 to 16 devices, equal or of two kinds, with links and memory of many sorts.

Devices are those of the presets and of `envs.cluster.kinds`, with costs from datasheets or calibrated ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from envs.cluster import presets
from envs.cluster.cluster import Cluster, Device
from envs.cluster.kinds import KINDS
from envs.cluster.links import measured_links

T = TypeVar("T")

DATASHEET_DEVICES = (presets.K80, presets.V100, presets.A100, presets.RTX3060, presets.H100)
N_DEVICES = (2, 16)
"""Least and greatest number of devices, the host included."""
P_TWO_KINDS = 0.3
"""Probability that the GPUs are of two kinds."""
P_SCARCE = 0.3
"""Probability that every GPU has but a share of its memory."""
SCARCE_SHARE = (0.1, 0.5)
ETHERNET_BYTES_PER_S, ETHERNET_LATENCY_S = 1.25e9, 50e-6
"""10 Gb/s; a guess at the latency of TCP."""


class Wire(NamedTuple):
    """A kind of links; the fields are those of `Cluster`."""

    bytes_per_s: float
    latency_s: float = presets.LATENCY_S
    n_half_bytes: float = 0.0
    sharing: str = "egress"


def wires() -> dict[str, tuple[Wire, ...]]:
    """Returns the kinds of links by class, from datasheets and measured: `nvlink`, `pcie` and `nodes`."""
    found = measured_links()

    def measured(name: str, sharing: str = "egress") -> Wire:
        link = found[name]
        return Wire(link.bytes_per_s, link.latency_s, link.n_half_bytes, sharing)

    return {
        "nvlink": (
            Wire(2 * presets.NVLINK2_BYTES_PER_S, sharing="pair"),
            Wire(presets.NVLINK3_BYTES_PER_S),
            Wire(presets.NVLINK4_BYTES_PER_S),
            measured("v100-nvlink", "pair"),
            measured("a100-nvswitch"),
        ),
        "pcie": (
            Wire(presets.PCIE3_BYTES_PER_S),
            Wire(presets.PCIE4_BYTES_PER_S),
            measured("pcie3"),
            measured("a40-pcie4"),
        ),
        "nodes": (
            Wire(ETHERNET_BYTES_PER_S, ETHERNET_LATENCY_S),
            Wire(presets.INFINIBAND_BYTES_PER_S, presets.NODE_LATENCY_S),
            measured("a100-nodes"),
        ),
    }


LAYOUTS = ("nvlink", "pcie", "nodes", "host")
"""One host with NVLink or PCIe, two nodes with a network between, GPUs and their host over PCIe."""


def draw_cluster(rng: np.random.Generator) -> Cluster:
    """Draws a cluster; its name says the layout, one of `LAYOUTS`, and the number of devices."""
    layout = _pick(rng, LAYOUTS)
    least, most = N_DEVICES
    n_devices = int(rng.integers(least, most + 1))
    devices = _gpus(rng, n_devices - (layout == "host"))
    if layout == "host":
        devices.append(replace(presets.XEON, name="cpu0"))
    of_class = wires()
    inside = {"nodes": _pick(rng, ("nvlink", "pcie")), "host": "pcie"}.get(layout, layout)
    within, between = _pick(rng, of_class[inside]), _pick(rng, of_class["nodes"])
    in_second = np.arange(n_devices) >= (int(rng.integers(1, n_devices)) if layout == "nodes" else n_devices)
    local = in_second[:, None] == in_second[None, :]
    return Cluster(
        f"random-{layout}-{n_devices}",
        tuple(devices),
        np.where(local, within.bytes_per_s, between.bytes_per_s),
        np.where(local, within.latency_s, between.latency_s),
        sharing=within.sharing,
        n_half_bytes=np.where(local, within.n_half_bytes, between.n_half_bytes),
    )


def _gpus(rng: np.random.Generator, count: int) -> list[Device]:
    """Draws the GPUs `gpu0`, `gpu1`, ...: equal or of two kinds, at times with scarce memory."""
    kinds = (*DATASHEET_DEVICES, *(kind.device() for kind in KINDS.values()))
    one, other = (kinds[index] for index in rng.choice(len(kinds), 2, replace=False))
    n_first = int(rng.integers(1, count)) if count > 1 and rng.random() < P_TWO_KINDS else count
    share = rng.uniform(*SCARCE_SHARE) if rng.random() < P_SCARCE else 1.0
    return [
        replace(device, name=f"gpu{index}", memory_bytes=share * device.memory_bytes)
        for index, device in enumerate([one] * n_first + [other] * (count - n_first))
    ]


def _pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]
