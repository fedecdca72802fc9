"""The world: clusters, what ops cost on them, placements, and the step times that follow."""

from envs.cluster import Cluster, ClusterError, Device
from envs.cluster_files import read_cluster, write_cluster
from envs.costs import CostError, op_seconds
from envs.placement import Placement, PlacementError, check_placement, single_device
from envs.placement_files import read_placement, write_placement
from envs.presets import PRESETS, get_cluster

__all__ = [
    "PRESETS",
    "Cluster",
    "ClusterError",
    "CostError",
    "Device",
    "Placement",
    "PlacementError",
    "check_placement",
    "get_cluster",
    "op_seconds",
    "read_cluster",
    "read_placement",
    "single_device",
    "write_cluster",
    "write_placement",
]
