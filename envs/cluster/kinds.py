"""Device kinds: what the datasheets of GPUs say; and links between GPUs as they were measured.

Peaks are dense (no sparsity). `fp16` is with fp32 accumulation, as PyTorch multiplies; GeForce boards have
half of the tensor rate there.

Capacities are what CUDA reports, in MiB, as nvidia-smi and (from RTX 3060 on, L4, H100, GH200) PyTorch's
out-of-memory errors print it in public logs; boards with GDDR and error correction (P4, T4, L4, L40S, A10G)
lack a sixteenth of what they are sold with.

Tensors cannot have all of that (PyTorch, "CUDA semantics", memory management). The CUDA context with
PyTorch's kernels takes 1,343 MiB on a V100 under CUDA 11.2 (Hugging Face, "Model training anatomy"); since
CUDA 11.7 kernels are loaded lazily, so it may be less. Nor does the caching allocator fill the rest. Eight
language models trained with recomputation, offloading or LoRA lost 15 % of it on average (Guo et al.,
"GMLake", ASPLOS 2024); a plain step allocates the same tensors every time and should lose less. The 5 % here
are a guess.

Sources:
    P4, P100: NVIDIA Tesla P4 and P100 PCIe datasheets (2016); Pascal architecture whitepaper.
    V100: NVIDIA Tesla V100 datasheet and architecture whitepaper WP-08608-001 (2017).
    T4, RTX 2080, Titan RTX: NVIDIA T4 datasheet; Turing architecture whitepaper WP-09183-001 (2018).
    A100: NVIDIA A100 datasheet (2020, 80 GB: 2021) and Ampere architecture whitepaper.
    RTX 3090: NVIDIA Ampere GA102 architecture whitepaper (2020).
    L4: NVIDIA L4 datasheet (2023), halved where it counts sparsity; Ada architecture whitepaper.
    H100, GH200: NVIDIA H100 and Grace Hopper (96 GB HBM3) datasheets (2023), Hopper architecture whitepaper.
    H200, B200: NVIDIA H200 (2024) and HGX B200 (2025) datasheets, halved where they count sparsity.
    A10, A10G, A40, A6000, RTX 3060, RTX 3080: NVIDIA datasheets (2021), Ampere GA102 whitepaper.
    L40, L40S, RTX 6000 Ada, RTX 4090: NVIDIA datasheets (2022, 2023), Ada architecture whitepaper.
    RTX 5090, RTX PRO 6000 (server): NVIDIA RTX Blackwell, RTX PRO Blackwell architecture whitepapers (2025).
    MI300X: AMD Instinct MI300X datasheet (2023).

`links.json`, format `placewalk.links/1`, was made from measurements of Vidur and Sailor (both MIT) by
`agent/calibration/links_fit.py`, which is in git at commit e46ed42, and from collectives of aiconfigurator
(Apache-2.0) as page `costs_of_links` says. Of each link it also says who measured it, how many transfers made
the fit (`rows`) and judged it, and with which errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any, cast

from envs.cluster.cluster import Cluster, Device
from graphs.step_settings import Gpu
from graphs.system.json_files import read_json

CPU_KINDS = ("cpu", "xeon")
"""Beginnings of the kinds of devices that are processors; all others are GPUs."""
CAPABILITIES = {"k80": 3.7, "p100": 6.0, "p4": 6.1, "v100": 7.0, "t4": 7.5, "rtx2080": 7.5, "titan": 7.5}
"""Compute capability by a word of the kind, of GPUs before Ampere (8.0); NVIDIA, "CUDA GPUs"."""
LAUNCH_S = 3e-6
"""Seconds between kernels of one stream that depend on each other; what the host needs is another matter."""
GIGA, TERA, MIB = 1e9, 1e12, 2.0**20
CONTEXT_BYTES = 1343 * MIB
"""Memory of the CUDA context and of PyTorch's kernels on every device."""
FRAGMENTED = 0.05
"""Share of the rest that the caching allocator cannot fill; a guess."""


@dataclass(frozen=True)
class Kind:
    """The datasheet of a GPU.

    Attributes:
        name: e.g. `a100-pcie-40gb`.
        box: links of such boards, a key of `envs.cluster.named.BOXES`; empty is not known.
        memory_bytes, bytes_per_s: capacity and bandwidth of its memory.
        peaks: floating-point operations a second by dtype.
        multiprocessors: number of streaming multiprocessors.
        context_bytes: memory that is taken before the first tensor.
        fragmented: share of the rest that no tensor can have.
    """

    name: str
    memory_bytes: float
    bytes_per_s: float
    peaks: dict[str, float]
    multiprocessors: int
    l2_bytes: float
    box: str = ""
    context_bytes: float = 0.0
    fragmented: float = 0.0

    def device(self, name: str = "gpu") -> Device:
        """Returns a device of this kind, with the memory that tensors can have and the peak in fp32."""
        return Device(
            name,
            self.name,
            (self.memory_bytes - self.context_bytes) * (1 - self.fragmented),
            self.peaks["fp32"],
            self.bytes_per_s,
            LAUNCH_S,
            peaks=dict(self.peaks),
        )


def _kind(
    name: str,
    memory_mib: float,
    gb_per_s: float,
    tflops: dict[str, float],
    n_sms: int,
    l2_mib: float,
    box: str,
) -> Kind:
    """Builds a kind; `tflops` is by dtype, `n_sms` the number of multiprocessors."""
    peaks = {dtype: rate * TERA for dtype, rate in tflops.items()}
    chip = n_sms, l2_mib * MIB, box
    return Kind(name, memory_mib * MIB, gb_per_s * GIGA, peaks, *chip, CONTEXT_BYTES, FRAGMENTED)


def _with_bytes(tflops: float) -> dict[str, float]:
    return {"fp16": tflops, "bf16": tflops, "fp8": 2 * tflops, "int8": 2 * tflops}


def _board(
    fp32: float, tf32: float, fp16: float, *, int8: float = 2.0, has_fp8: bool = False
) -> dict[str, float]:
    """Returns the peaks of a board with GDDR from Ampere on; `int8` is over `fp16`, fp8 is twice that."""
    halves = {"fp16": fp16, "bf16": fp16, "int8": int8 * fp16} | ({"fp8": 2 * fp16} if has_fp8 else {})
    return {"fp64": fp32 / 64, "fp32": fp32, "tf32": tf32} | halves


P100 = {"fp64": 4.7, "fp32": 9.3, "fp16": 18.7}
V100_SXM = {"fp64": 7.8, "fp32": 15.7, "fp16": 125.0}
V100_PCIE = {"fp64": 7.0, "fp32": 14.0, "fp16": 112.0}
A100 = {"fp64": 9.7, "fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0, "int8": 624.0}
H100_SXM = {"fp64": 33.5, "fp32": 66.9, "tf32": 494.7} | _with_bytes(989.4)
H100_PCIE = {"fp64": 25.6, "fp32": 51.2, "tf32": 378.0} | _with_bytes(756.0)
H100_NVL = {"fp64": 30.0, "fp32": 60.0, "tf32": 417.5} | _with_bytes(835.5)
B200 = {"fp64": 37.0, "fp32": 75.0, "tf32": 1125.0} | _with_bytes(2250.0)
MI300X = {"fp64": 81.7, "fp32": 163.4, "tf32": 653.7} | _with_bytes(1307.4)
L4 = {"fp64": 0.47, "fp32": 30.3, "tf32": 60.0} | _with_bytes(121.0)
RTX3090 = {"fp64": 0.56, "fp32": 35.6, "tf32": 35.6, "fp16": 71.0, "bf16": 71.0, "int8": 284.0}

KINDS = {
    kind.name: kind
    for kind in (
        _kind("p4", 7611, 192, {"fp64": 0.17, "fp32": 5.5, "fp16": 5.5, "int8": 22.0}, 20, 2, "pcie3"),
        _kind("p100-pcie-16gb", 16280, 732, P100, 56, 4, "pcie3"),
        _kind("v100-pcie-16gb", 16160, 900, V100_PCIE, 80, 6, "pcie3"),
        _kind("v100-pcie-32gb", 32510, 900, V100_PCIE, 80, 6, "pcie3"),
        _kind("v100-sxm2-16gb", 16160, 900, V100_SXM, 80, 6, "nvlink2"),
        _kind("v100-sxm2-32gb", 32510, 900, V100_SXM, 80, 6, "nvlink2"),
        _kind("t4", 15109, 320, {"fp64": 0.25, "fp32": 8.1, "fp16": 65.0, "int8": 130.0}, 40, 4, "pcie3"),
        _kind("rtx2080", 7982, 448, {"fp64": 0.31, "fp32": 10.1, "fp16": 40.3}, 46, 4, "pcie3"),
        _kind("titan-rtx", 24220, 672, {"fp64": 0.51, "fp32": 16.3, "fp16": 130.5}, 72, 6, "pcie3"),
        _kind("a100-pcie-40gb", 40536, 1555, A100, 108, 40, "pcie4"),
        _kind("a100-pcie-80gb", 80994, 1935, A100, 108, 40, "pcie4"),
        _kind("a100-sxm4-40gb", 40536, 1555, A100, 108, 40, "a100-sxm4"),
        _kind("a100-sxm4-80gb", 81251, 2039, A100, 108, 40, "a100-sxm4"),
        _kind("rtx3090", 24268, 936, RTX3090, 82, 6, "pcie4"),
        _kind("l4", 22590, 300, L4, 58, 48, "pcie4"),
        _kind("h100-pcie-80gb", 80998, 2000, H100_PCIE, 114, 50, "pcie5"),
        _kind("h100-sxm5-80gb", 80998, 3350, H100_SXM, 132, 50, "h100-sxm5"),
        _kind("gh200", 96768, 4000, H100_SXM, 132, 50, "gh200"),
        _kind("h100-nvl", 95334, 3938, H100_NVL, 132, 50, "pcie5"),
        _kind("h200", 143155, 4800, H100_SXM, 132, 50, "h200"),
        _kind("b200", 182630, 8000, B200, 148, 126, "b200"),
        _kind("mi300x", 196588, 5300, MI300X, 304, 256, "mi300x"),
        _kind("a10", 22589, 600, _board(31.2, 62.5, 125.0), 72, 6, "pcie4"),
        _kind("a10g", 22589, 600, _board(31.5, 35.0, 70.0), 80, 6, "pcie4"),
        _kind("a40", 45404, 696, _board(37.4, 74.8, 149.7), 84, 6, "pcie4"),
        _kind("a6000", 48538, 768, _board(38.7, 77.4, 154.8), 84, 6, "pcie4"),
        _kind("rtx3060", 12032, 360, _board(12.7, 12.7, 25.5, int8=4.0), 28, 3, "pcie4"),
        _kind("rtx3080", 10005, 760, _board(29.8, 29.8, 59.5, int8=4.0), 68, 5, "pcie4"),
        _kind("l40", 45466, 864, _board(90.5, 90.5, 181.0, has_fp8=True), 142, 96, "pcie4"),
        _kind("l40s", 45466, 864, _board(91.6, 183.0, 362.0, has_fp8=True), 142, 96, "l40s"),
        _kind("rtx6000-ada", 48538, 960, _board(91.1, 182.1, 364.2, has_fp8=True), 142, 96, "pcie4"),
        _kind("rtx4090", 24207, 1008, _board(82.6, 82.6, 165.2, int8=4.0, has_fp8=True), 128, 72, "pcie4"),
        _kind("rtx5090", 32113, 1792, _board(104.8, 104.8, 209.5, int8=4.0, has_fp8=True), 170, 96, "pcie5"),
        _kind(
            "rtx-pro-6000", 97249, 1597, _board(120.0, 251.9, 503.8, has_fp8=True), 188, 128, "rtx-pro-6000"
        ),
    )
}
"""Kinds by name."""


def gpus_of(clusters: Iterable[Cluster], precision: str | None = None) -> Gpu | None:
    """Returns the GPUs of clusters, unknown kinds as Ampere; None if all devices are processors."""
    kinds = {device.kind for cluster in clusters for device in cluster.devices}
    words = [word for kind in kinds if not kind.startswith(CPU_KINDS) for word in re.split(r"\W+", kind)]
    return Gpu(min(CAPABILITIES.get(word, 8.0) for word in words), precision) if words else None


@dataclass(frozen=True)
class Link:
    """A link between two GPUs, fitted to measured transfers.

    A transfer of n bytes occupies the link for (n + `n_half_bytes`) / `bytes_per_s` and arrives `latency_s`
    later.

    Attributes:
        bytes_per_s: bandwidth of an endless transfer, bytes a second.
        latency_s: seconds that do not occupy the link.
        n_half_bytes: size at which a transfer reaches half of the bandwidth.
    """

    bytes_per_s: float
    latency_s: float
    n_half_bytes: float

    def scaled(self, share: float) -> Link:
        """Returns a link of `share` times the bandwidth with the same constants in seconds."""
        return replace(self, bytes_per_s=share * self.bytes_per_s, n_half_bytes=share * self.n_half_bytes)


@cache
def measured_links() -> Mapping[str, Link]:
    """Returns the links that come with the package, by name."""
    file = cast("dict[str, Any]", read_json(str(resources.files("envs.cluster").joinpath("links.json"))))
    names = [field.name for field in fields(Link)]
    return {
        link: Link(**{name: float(values[name]) for name in names}) for link, values in file["links"].items()
    }
