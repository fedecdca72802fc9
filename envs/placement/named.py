"""The environment that `gymnasium.make` makes: with names for problems, its spec is JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.cluster.presets import DEFAULT_CLUSTER, get_cluster
from envs.placement.env import PlacementEnv
from envs.placement.generator import MdpError
from envs.problem import Problem
from graphs.dataset import load_graphs
from graphs.granularity import with_granularity
from graphs.io.graph_files import read_graphs
from graphs.system.errors import checked


class NamedPlacementEnv(PlacementEnv):
    """Makes a `PlacementEnv` of all graphs on all clusters that are named, where a placement is feasible.

    Plain SB3 learns from it at about 340 decisions per second; train on `PlacementVecEnv`, which steps many
    episodes over the same problems (`env.unwrapped.problems`) together.

    Args:
        problems: graphs on clusters, in place of the names.
        families, graphs: families of the benchmark set and paths of graph files; by default `cifar10`.
        cluster: presets, or paths of cluster files.
        granularity: unit that one decision places.
        settings: further arguments of `PlacementEnv`, such as `orders=("topo",)` and `mdp="improve"`.

    Raises:
        InputError: a wrong name, file or setting, or problems besides families or graphs.
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
            lists = families or ("cifar10" if not graphs else ()), graphs, cluster
            families, paths, clusters = (
                [names] if isinstance(names, str) else checked(MdpError, "a name", names, Sequence)
                for names in lists
            )
            loaded = [*load_graphs(families), *(graph for path in paths for graph in read_graphs(path))]
            named = [with_granularity(graph, granularity) for graph in loaded]
            every = [Problem(graph, get_cluster(name)) for name in clusters for graph in named]
            problems = [problem for problem in every if problem.is_feasible] or every
        elif families or graphs:
            raise MdpError("problems are given; leave out families and graphs")
        super().__init__(problems, **settings)
