"""Clusters named as people say them: `8xh100-sxm5`, `2x8xa100-sxm4@200g`, `2xrtx4090`, `a100-pcie+l4`.

Devices are of `envs.cluster.kinds`. NVSwitch and PCIe links are fitted to collectives among 2, 4 and 8 GPUs,
those of 8 hold beyond; the copies of one GPU share its port. Networks reach 0.91 of their rate, as was
measured between nodes of GH200, in 14 us, as NCCL assumes. Presets keep their old links. Not expressed:

- GPUs of a node may share one adapter: copies to other nodes at the same time are then predicted too fast.
  Give each its part, as `@3g`.
- V100-SXM2, GH200 and MI300X have a link for each pair, and a collective uses all; it is predicted on one
  ring, too slow. With several nodes, the copies of such a GPU share a port too.
- In the measured box of L40S four and eight cards share a bridge, at 5.1e9 and 1.4e9 bytes a second; others
  may do better. Other cards are linked as two L40S or two RTX PRO 6000, without NVLink bridges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np

from envs.cluster.cluster import MAX_DEVICES, Cluster, ClusterError
from envs.cluster.host import EAGER_ISSUE_S
from envs.cluster.kinds import KINDS, Link, measured_links

GRAMMAR = "NxKIND, NODESxNxKIND@RATEg or NxKIND+NxKIND"
SHORT = {kind.rpartition("-")[0]: kind for kind in reversed(KINDS) if kind.endswith("gb")}
SHORT["a100-sxm4"] = "a100-sxm4-80gb"
"""Kinds by their names without memory: the least of several sizes, but of A100-SXM4, as presets mean it."""
NAMES = tuple({kind: short for short, kind in SHORT.items()}.get(kind, kind) for kind in KINDS)
"""One name of each kind, the short one if it has one."""
MEASURED_SIZES = (2, 4, 8)
"""Numbers of GPUs between which links of a box were measured."""
NETWORK, NETWORK_GBPS = "gh200-nodes", 200.0
"""The measured link between nodes, and its rate by the datasheet; others reach as large a share of theirs."""
NETWORK_LATENCY_S = 14e-6
"""One hop of a ring between nodes, by NCCL's `tuning.cc`; what was measured holds the host's call too."""
MEASURED_NVLINKS = 3
"""NVLinks between the two V100 whose link was measured."""


@dataclass(frozen=True)
class Box:
    """The links within and between the nodes in which a kind of GPU is sold.

    Attributes:
        link: a link, or the name of a measured one, perhaps without its `-2`, `-4` or `-8` for so many GPUs.
        gbps: gigabits a second that a GPU sends to another node, if the name of the cluster has no rate.
        sharing: rule of `Cluster`, within a node; `pair` if any two GPUs have a link of their own.
        said: links within a node and who measured them, in words.
        nvlinks: NVLinks of a GPU, divided evenly over the others of its node; 0 = they lead to a switch.
    """

    link: str | Link
    gbps: int
    sharing: str
    said: str
    nvlinks: int = 0

    def within(self, n_devices: int) -> Link:
        """Returns the link between two GPUs of a node of `n_devices`."""
        if isinstance(self.link, Link):
            return self.link
        links = measured_links()
        size = next((size for size in MEASURED_SIZES if n_devices <= size), MEASURED_SIZES[-1])
        link = links.get(f"{self.link}-{size}") or links[self.link]
        nvlinks = self.nvlinks / max(n_devices - 1, 1)
        return link.scaled(min(nvlinks / MEASURED_NVLINKS, 1.0)) if nvlinks else link


SWITCH = "NVSwitch, measured by aiconfigurator"
BOXES = {
    "pcie3": Box("pcie3", 25, "egress", "PCIe 3.0, measured by Sailor"),
    "pcie4": Box("l40s-2", 25, "egress", "PCIe 4.0, as measured between two L40S"),
    "pcie5": Box("rtx-pro-6000-2", 25, "egress", "PCIe 5.0, as measured between two RTX PRO 6000"),
    "l40s": Box("l40s", 25, "egress", "PCIe 4.0, measured by aiconfigurator"),
    "rtx-pro-6000": Box("rtx-pro-6000", 25, "egress", "PCIe 5.0, measured by aiconfigurator"),
    "nvlink2": Box("v100-nvlink", 100, "pair", "six NVLinks a GPU, measured by Sailor", 6),
    "a100-sxm4": Box("a100-sxm4", 200, "egress", SWITCH),
    "h100-sxm5": Box("h100-sxm5", 400, "egress", SWITCH),
    "h200": Box("h200", 400, "egress", SWITCH),
    "b200": Box("b200", 400, "egress", SWITCH),
    "gh200": Box("gh200-nvlink", 200, "pair", "NVLink, measured by Sailor"),
    "mi300x": Box(Link(64e9, 10e-6, 0.0), 400, "pair", "Infinity Fabric, by the datasheet"),
}
"""Boxes by name. A GPU of a DGX or HGX has an InfiniBand adapter of its own; cards have Ethernet."""


def kind_named(name: str) -> str:
    """Returns the name in `KINDS` that a full or short name of a kind stands for.

    Raises:
        ClusterError: there is no such kind.
    """
    kind = SHORT.get(name, name)
    if kind in KINDS:
        return kind
    near = [other for other in NAMES if name and name.lower() in other] or get_close_matches(name, NAMES)
    meant = f" (did you mean {' or '.join(near[:3])}?)" if near else ""
    raise ClusterError(f"there is no kind {name!r}{meant}")


def named_cluster(name: str) -> Cluster:
    """Builds the cluster that a name says.

    Raises:
        ClusterError: the name does not follow the grammar, names no kind, or says too many devices.
    """
    try:
        return _parsed(name)
    except ClusterError as error:
        raise ClusterError(
            f"unknown cluster {name!r}: {error}; write {GRAMMAR}, e.g. 2x8xa100-sxm4@200g, NAME:N for the "
            "first N devices of one, or the path of a cluster file (.json); `evaluate.py --list-clusters` "
            "lists kinds and presets"
        ) from None


def _parsed(name: str) -> Cluster:
    text, has_rate, rate = name.partition("@")
    terms, n_nodes, kinds = text.split("+"), 1, list[str]()
    for term in terms:
        *numbers, kind = re.fullmatch(r"(?:([0-9]+)x)?(?:([0-9]+)x)?(.*)", term, re.DOTALL).groups()  # type: ignore[union-attr]
        counts = [int(number[:5]) for number in numbers if number]
        if len(counts) == 2 and len(terms) > 1:
            raise ClusterError("kinds that differ stand in one node")
        if not 1 <= (count := math.prod(counts)) <= MAX_DEVICES - len(kinds):
            raise ClusterError(f"it has 1 to {MAX_DEVICES} devices")
        n_nodes = counts[0] if len(counts) == 2 else 1
        kinds += [kind_named(kind)] * count
    if has_rate and not (n_nodes > 1 and re.fullmatch(r"[1-9][0-9]{0,4}g", rate)):
        raise ClusterError("a rate is gigabits a second between nodes, as @200g in 2x8xa100-sxm4@200g")
    return _built(name, kinds, n_nodes, int(rate[:-1]) if has_rate else BOXES[KINDS[kinds[0]].box].gbps)


def _built(name: str, kinds: Sequence[str], n_nodes: int, gbps: int) -> Cluster:
    """Builds nodes of equally many devices, with the slower box; a network is no faster than a node."""
    boxes = [BOXES[box] for box in dict.fromkeys(KINDS[kind].box for kind in kinds)]
    if len(boxes) > 1 and not all(box.said.startswith("PCIe") for box in boxes):
        raise ClusterError("different kinds share a node only as PCIe cards")
    within = min((box.within(len(kinds) // n_nodes) for box in boxes), key=lambda link: link.bytes_per_s)
    one_node = linked(name, kinds, within, sharing=boxes[0].sharing)
    if n_nodes == 1:
        return one_node
    network = measured_links()[NETWORK]
    network = network.scaled(min(gbps / NETWORK_GBPS, within.bytes_per_s / network.bytes_per_s))
    between = linked(name, kinds, replace(network, latency_s=NETWORK_LATENCY_S))
    node = np.repeat(np.arange(n_nodes), len(kinds) // n_nodes)
    local = node[:, None] == node[None, :]
    return replace(
        between,
        bytes_per_s=np.where(local, one_node.bytes_per_s, between.bytes_per_s),
        latency_s=np.where(local, one_node.latency_s, between.latency_s),
        n_half_bytes=np.where(local, one_node.n_half_matrix, between.n_half_matrix),
    )


def linked(name: str, kinds: Sequence[str], link: Link, *, sharing: str = "egress") -> Cluster:
    """Builds a cluster of kinds with equal links, whose host issues ops as eager PyTorch does."""
    shape = (len(kinds), len(kinds))
    return Cluster(
        name,
        tuple(KINDS[kind].device(f"gpu{index}") for index, kind in enumerate(kinds)),
        np.full(shape, link.bytes_per_s),
        np.full(shape, link.latency_s),
        n_half_bytes=link.n_half_bytes,
        sharing=sharing,
        issue_s=EAGER_ISSUE_S,
    )
