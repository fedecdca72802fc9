"""Clusters, what ops cost on them, placements, the simulated step, and the environments for RL.

Importing this package makes `gymnasium.make("placewalk/Placement-v1")` work.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envs.cluster.cluster import Cluster, ClusterError, Device
    from envs.cluster.files import read_cluster, write_cluster
    from envs.cluster.presets import PRESETS, get_cluster
    from envs.costs.op_seconds import CostError, op_seconds
    from envs.objective import simulate
    from envs.placements.files import read_placement, write_placement
    from envs.placements.placement import Placement, PlacementError, check_placement, single_device

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
    "simulate",
    "single_device",
    "write_cluster",
    "write_placement",
]

_MODULES = (
    "envs.cluster.cluster",
    "envs.cluster.files",
    "envs.cluster.presets",
    "envs.costs.op_seconds",
    "envs.placements.placement",
    "envs.placements.files",
    "envs.objective",
)

with suppress(ModuleNotFoundError):  # nothing but the environment needs it
    import gymnasium

    gymnasium.register(id="placewalk/Placement-v1", entry_point="envs.placement.named:NamedPlacementEnv")


def __getattr__(name: str) -> object:
    """Loads a name at its first use, so that a module that needs none of them starts fast."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module 'envs' has no attribute '{name}'; it has {', '.join(__all__)}")
