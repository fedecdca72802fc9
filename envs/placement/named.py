"""The environment that `gymnasium.make` makes: its problems may be names, so that its spec is JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.cluster.presets import DEFAULT_CLUSTER, get_cluster
from envs.placement.env import PlacementEnv
from envs.placement.episodes import MdpError
from envs.problem import Problem
from graphs.dataset import load_graphs
from graphs.granularity import with_granularity
from graphs.io.graph_files import read_graphs

DEFAULT_FAMILY = "cifar10"


class NamedPlacementEnv(PlacementEnv):
    """Makes a `PlacementEnv` of graphs and clusters by name.

    Plain SB3 learns from it at about 340 decisions per second; train on `PlacementVecEnv`, which steps many
    episodes over the same problems (`env.unwrapped.problems`) together.

    Its problems are all graphs on all clusters, without the pairs that have no feasible placement.

    Args:
        problems: graphs on clusters, in place of the names.
        families: a family of the benchmark set, or several; `cifar10` if neither they nor `graphs` are given.
        graphs: path of a graph file, or several.
        cluster: a preset or the path of a cluster file, or several.
        granularity: what one decision places.
        settings: further arguments of `PlacementEnv`, such as `orders=("topo",)` and `mdp="improve"`.

    Raises:
        MdpError: both problems and graphs by name, or what `PlacementEnv` raises.
        FamilyError, FileFormatError, ClusterError, GranularityError: a name or a file that is not right.
    """

    def __init__(
        self,
        problems: Sequence[Problem] | None = None,
        *,
        families: str | Sequence[str] = (),
        graphs: str | Sequence[str] = (),
        cluster: str | Sequence[str] = DEFAULT_CLUSTER,
        granularity: str = "op",
        **settings: Any,
    ) -> None:
        if problems is None:
            loaded = load_graphs(_several(families or (() if graphs else DEFAULT_FAMILY)))
            loaded += [graph for path in _several(graphs) for graph in read_graphs(path)]
            named = [with_granularity(graph, granularity) for graph in loaded]
            clusters = [get_cluster(name) for name in _several(cluster)]
            every = [Problem(graph, placed_on) for placed_on in clusters for graph in named]
            problems = [problem for problem in every if problem.is_feasible] or every
        elif families or graphs:
            raise MdpError("problems are given; leave out families and graphs")
        super().__init__(problems, **settings)


def _several(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names
