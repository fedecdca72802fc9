"""Specification of an evaluation: placers over graphs x clusters x orders x seeds."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

from agent.evaluation.config import EvaluationError
from agent.evaluation.results import Key
from agent.placers.base import PLACERS_OF, Budget
from agent.placing.request import DATA_PARALLEL, check_placers, row_names
from agent.policy.serialization import StoredPolicy
from envs.cluster.cluster import Cluster
from envs.cluster.files import cluster_to_json
from envs.costs.op_seconds import calibration_note
from envs.objective import Objective, kind_of, objective_of
from envs.pipeline.pipeline import Pipeline
from envs.placements.placement import Placement
from envs.problem import InfeasibleError
from graphs.identity import content_hash
from graphs.op_graph import OpGraph
from graphs.orders import ORDERS

FORMAT = "placewalk.evaluation/3"


@dataclass(frozen=True)
class Task:
    """One trial to make; graph and cluster by index."""

    graph: int
    cluster: int
    placer: str
    order: str
    seed: int


@dataclass(frozen=True, eq=False)
class EvaluationSpec:
    """Everything that decides what an evaluation finds.

    Attributes:
        placers: names from `row_names`.
        orders: names of traversal orders; only learned placers take one.
        seeds: seeds 0 to seeds - 1 for placers that draw at random, 0 for the others.
        policy: of the learned placers; None where there are none.
        seen: what the policy was shown of each graph in training, by name; nothing of one that is missing.
        given: placements to score as well: (graph, cluster, name) -> device of each op.
        granularity: what one decision places, as the graphs were given it.
        pipeline: schedule and microbatches of the pipelines to place; None = one batch at a time.
        home: the only cluster of graphs that have one, by names; the others are placed on each cluster.
        whole: step of the whole batch, or why there is none, of graphs whose microbatches were cut from one.

    Raises:
        EvaluationError: on construction, if a name is unknown or given twice, or there is nothing to do.
        PipelineError: on construction, if a policy is to place several stages on each device.
    """

    graphs: tuple[OpGraph, ...]
    clusters: tuple[Cluster, ...]
    placers: tuple[str, ...]
    orders: tuple[str, ...] = ("topo",)
    seeds: int = 1
    budget: Budget = field(default_factory=Budget)
    policy: StoredPolicy | None = None
    seen: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[tuple[str, str, str], Placement] = field(default_factory=dict)
    granularity: str = "op"
    pipeline: Pipeline | None = None
    home: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, OpGraph | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def uncalibrated(self) -> Mapping[str, str]:
        """Notes of the clusters on which op times of some graph are not calibrated, or only in part."""
        pairs = ((self.graphs[graph], self.clusters[cluster]) for graph, cluster in self._pairs())
        notes = sorted((cluster.name, calibration_note(graph, cluster)) for graph, cluster in pairs)
        return {name: note for name, note in notes if note}

    @property
    def untrained_orders(self) -> str:
        """Says which of the orders the policy was not trained in; empty if none."""
        return self.policy.card.about_orders(self.orders) if self.policy else ""

    def tasks(self) -> list[Task]:
        """Every trial of the evaluation, in the order of the results."""
        return [
            Task(graph, cluster, placer, order, seed)
            for graph, cluster in self._pairs()
            for placer, order, seeds in self._runs(self.graphs[graph].name, self.clusters[cluster].name)
            for seed in range(seeds)
        ]

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yields the graphs and clusters that meet, by index."""
        for graph, own in enumerate(self.graphs):
            for cluster, each in enumerate(self.clusters):
                if self.home.get(own.name, each.name) == each.name:
                    yield graph, cluster

    def _runs(self, graph: str, cluster: str) -> Iterator[tuple[str, str, int]]:
        """(placer, order, number of seeds) for one graph and cluster."""
        for of_graph, of_cluster, name in self.given:
            if (of_graph, of_cluster) == (graph, cluster):
                yield name, "", 1
        for name in self.placers:
            placer = None if name == DATA_PARALLEL else PLACERS_OF[kind_of(self.pipeline)][name]
            for order in self.orders if placer and placer.is_learned else ("",):
                yield name, order, self.seeds if placer and placer.draws(order) else 1

    def objective(self, graph: OpGraph, cluster: Cluster) -> Objective:
        """Makes the objective of a graph on a cluster."""
        return objective_of(graph, cluster, self.pipeline, self.whole.get(graph.name, ""))

    def key(self, task: Task) -> Key:
        """Identity of the trial of a task."""
        graph, cluster = self.graphs[task.graph].name, self.clusters[task.cluster].name
        return (graph, cluster, task.placer, task.order, task.seed)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Hash of each graph, by name."""
        return {graph.name: content_hash(graph) for graph in self.graphs}

    def to_json(self) -> dict[str, object]:
        """The settings: equal settings make an evaluation resumable."""
        settings: dict[str, object] = {
            "format": FORMAT,
            "graphs": self.hashes,
            "clusters": [cluster_to_json(cluster) for cluster in self.clusters],
            "placers": list(self.placers),
            "orders": list(self.orders),
            "seeds": self.seeds,
            "budget": self.budget.to_json(),
            "policy": self.policy.digest if self.policy else "",
            "granularity": self.granularity,
            "pipeline": asdict(self.pipeline) if self.pipeline else None,
            "placements": sorted(
                [*names, hashlib.sha256(placement.device_of.tobytes()).hexdigest()]
                for names, placement in self.given.items()
            ),
            "whole": {
                name: content_hash(graph) for name, graph in self.whole.items() if isinstance(graph, OpGraph)
            },
            "home": dict(self.home),
        }
        return {name: value for name, value in settings.items() if value or name not in ("home", "whole")}

    def check_feasible(self) -> None:
        """Checks that there is something to place on each cluster.

        Raises:
            InfeasibleError: none of the graphs is feasible on one of the clusters.
            PipelineError: a graph or a cluster cannot run the pipeline.
        """
        errors: dict[int, list[InfeasibleError | None]] = {}
        for graph, cluster in self._pairs():
            objective = self.objective(self.graphs[graph], self.clusters[cluster])
            errors.setdefault(cluster, []).append(objective.infeasibility())
        for first, *others in errors.values():
            if first is not None and None not in others:
                raise first


def _check(spec: EvaluationSpec) -> None:
    kind = kind_of(spec.pipeline)
    check_placers(spec.placers, kind)
    for order in spec.orders:
        ORDERS.check(order)
    _check_names("placer", spec.placers)
    _check_names("order", spec.orders)
    _check_names("cluster", [cluster.name for cluster in spec.clusters])
    _check_names("graph", [graph.name for graph in spec.graphs])
    files = {name for _, _, name in spec.given}
    _check_names("placement", files)
    for name in files:
        if name in row_names(kind):
            raise EvaluationError(f"a placement file is named as the placer '{name}'; rename it")
    if spec.seeds < 1:
        raise EvaluationError(f"{spec.seeds} seeds; give at least 1")
    if not spec.tasks():
        raise EvaluationError("nothing to evaluate: no graph is left; see --include-seen")


def _check_names(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise EvaluationError(f"{what} '{name}' is given twice; name it once")
        if not name.isprintable():
            raise EvaluationError(f"{what} '{name}' has a name that cannot be printed; rename it")
