"""What the command line of an evaluation says, and how it becomes a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.evaluation.graph_sources import gather_graphs
from agent.evaluation.spec import EvaluationError, EvaluationSpec
from agent.placers.base import PLACERS, Budget
from agent.policy.placers import LEARNED
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.placement.files import read_named_placement
from graphs.op_graph import IntArray, OpGraph
from graphs.orders import ORDERS

ALL = "all"
BUDGET = 10_000


@dataclass(frozen=True)
class EvaluationConfig:
    """The flags of `evaluate.py` that decide what is found.

    Attributes:
        policy: folder of the policy, or `pretrained`; matters to the learned placers only.
        families, graphs, model: where the graphs come from; at least one.
        cluster: presets or files.
        orders: names of traversal orders, or `all`.
        placers: names, or `all`; by default all, or none where `placements` are given.
        seeds: how many.
        budget: evaluations per trial; by default `BUDGET`, or no limit where `seconds` are given.
        seconds: wall time per trial.
        placements: files of placements to score.
        include_seen: whether to keep graphs that the policy was trained on.
        coarsen: groups that graphs of more decision units are placed by; by default none is.
    """

    policy: str = "pretrained"
    families: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    model: str | None = None
    cluster: tuple[str, ...] = ("4xv100",)
    orders: tuple[str, ...] = ("topo",)
    placers: tuple[str, ...] | None = None
    seeds: int = 3
    budget: int | None = None
    seconds: float | None = None
    placements: tuple[str, ...] = ()
    include_seen: bool = False
    coarsen: int | None = None

    def study(self) -> tuple[EvaluationSpec, list[str]]:
        """Read everything the configuration names.

        Returns:
            The study, and the names of the graphs left out because the policy was trained on them.

        Raises:
            ValueError: anything that is wrong with the input, in one line.
        """
        graphs = gather_graphs(self.families, self.graphs, self.model)
        clusters = tuple(get_cluster(spec) for spec in self.cluster)
        placers = self._placers()
        given = read_given(self.placements, graphs, clusters)
        policy_hash, seen = "", frozenset[str]()
        if any(name in LEARNED for name in placers):
            policy_hash, seen = inspect_policy(self.policy, graphs)
        kept = tuple(graph for graph in graphs if self.include_seen or graph.name not in seen)
        study = EvaluationSpec(
            graphs=kept,
            clusters=clusters,
            placers=placers,
            orders=_all_or(self.orders, tuple(ORDERS)),
            seeds=self.seeds,
            budget=self._budget(),
            policy=self.policy if policy_hash else "",
            policy_hash=policy_hash,
            seen=seen,
            given=given,
            coarsen=self.coarsen,
        )
        study.check_feasible()
        return study, [] if self.include_seen else [graph.name for graph in graphs if graph.name in seen]

    def _budget(self) -> Budget:
        unlimited = self.budget is None and self.seconds is not None
        return Budget(BUDGET if self.budget is None and not unlimited else self.budget, self.seconds)

    def _placers(self) -> tuple[str, ...]:
        if self.placers is None:
            return () if self.placements else (*PLACERS, *LEARNED)
        return _all_or(self.placers, (*PLACERS, *LEARNED))


def _all_or(names: tuple[str, ...], every: tuple[str, ...]) -> tuple[str, ...]:
    return every if names == (ALL,) else names


def read_given(
    paths: Sequence[str], graphs: Sequence[OpGraph], clusters: Sequence[Cluster]
) -> dict[tuple[str, str, str], IntArray]:
    """Read placement files; each must be for a graph and a cluster at hand.

    Returns:
        Device of each op, by (graph, cluster, stem of the file).

    Raises:
        EvaluationError: a file is for another graph or cluster, or two for one have the same stem.
        ValueError: what the reader raises.
    """
    graph_of, cluster_of = (
        {graph.name: graph for graph in graphs},
        {cluster.name: cluster for cluster in clusters},
    )
    given: dict[tuple[str, str, str], IntArray] = {}
    for path in paths:
        named = read_named_placement(path)
        if named.graph not in graph_of:
            raise EvaluationError(f"{path}: is for graph '{named.graph}', which is not among those given")
        if named.cluster not in cluster_of:
            raise EvaluationError(
                f"{path}: is for cluster '{named.cluster}'; name that cluster with --cluster"
            )
        key = (named.graph, named.cluster, Path(path).stem)
        if key in given:
            raise EvaluationError(
                f"{path}: another placement of graph '{named.graph}' has that file name; rename one"
            )
        given[key] = named.resolve(graph_of[named.graph], cluster_of[named.cluster]).device_of
    return given


def inspect_policy(path: str, graphs: Sequence[OpGraph]) -> tuple[str, frozenset[str]]:
    """Check that a policy can be loaded.

    Returns:
        A hash of its files, and the names of the graphs that it was trained on.

    Raises:
        PolicyFileError: it cannot.
        ValueError: a graph is too large for it.
    """
    from agent.policy.encoders.base import check_size
    from agent.policy.serialization import read_policy

    stored = read_policy(path)
    stored.policy()
    check_size(stored.card.shape.encoder, graphs)
    return stored.digest, frozenset(graph.name for graph in graphs if stored.card.has_seen(graph))


def config_from_flags(flags: Mapping[str, object]) -> EvaluationConfig:
    """The configuration of parsed flags; lists become tuples, flags not given keep their defaults."""
    cleaned = {key: tuple(value) if isinstance(value, list) else value for key, value in flags.items()}
    return EvaluationConfig(**cleaned)  # type: ignore[arg-type]
