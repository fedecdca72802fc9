"""Instances of the benchmark by name: a graph, the cluster to place it on, and the objective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property

from agent.bounds.lower_bound import lower_bound_s
from agent.bounds.pipeline_bound import pipeline_bound_s
from agent.instances.profiles import DATA, EQUAL, profile_cluster, profile_graph, profile_paths
from agent.instances.tarnawski import workload_cluster, workload_graph, workloads
from envs.cluster.cluster import Cluster
from envs.cluster.files import read_cluster
from envs.cluster.presets import get_cluster
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import stages_of
from envs.placement.placement import Placement
from envs.problem import Problem
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.dataset import load_family
from graphs.io.graph_files import read_graphs
from graphs.op_graph import OpGraph
from graphs.system.errors import InputError

LIST = "see python evaluate.py --list-graphs"
DOPPLER = {
    "chain_mm": "chain_mm_112nodes",
    "ffnn": "ffnn_192nodes",
    "transformer_block": "transformer_block_215nodes",
    "transformer_layer": "full_transformer_layer_261nodes",
}
"""Names of instances, and of their graphs in the file."""
PLACETO = [f"{family}-{seed:02d}" for family in ("cifar10", "ptb", "nmt") for seed in (3, 7, 11, 19)]
"""Draws of the project's own families that the shipped policy was not trained on."""
SMALL = ("unet-4000", "dit-4000", "towers-4000", "recommender-4000", "conformer-4000", "mixer-4000")
LARGE = (*(f"large-{name}-4000" for name in ("nmt", "ptb", "gpt", "moe", "t5", "ssm")), "large-llama-4001")


class InstanceError(InputError):
    """An instance that does not exist; the message says which do."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A graph to place on a cluster.

    Attributes:
        graph: its name is that of the instance, such as `doppler:chain_mm`.
        pipeline: of which the step is timed; None = one batch at a time.
    """

    graph: OpGraph
    cluster: Cluster
    pipeline: Pipeline | None = None

    @property
    def name(self) -> str:
        """The name of the instance."""
        return self.graph.name

    @cached_property
    def problem(self) -> Problem:
        """The graph on the cluster."""
        return Problem(self.graph, self.cluster)

    @cached_property
    def pipelined(self) -> PipelinedProblem:
        """The pipeline of an instance that has one."""
        assert self.pipeline is not None, "an instance without pipeline"
        return PipelinedProblem(self.problem, self.pipeline)

    @cached_property
    def bound_s(self) -> float:
        """No placement has a shorter step, in seconds."""
        return lower_bound_s(self.problem) if self.pipeline is None else pipeline_bound_s(self.pipelined)

    def simulate(self, placement: Placement) -> StepTime | PipelineTime:
        """Times the objective under a placement.

        Raises:
            PipelineError: the schedule cannot run it.
        """
        if self.pipeline is None:
            return simulate_problem(self.problem, placement.device_of)
        return self.pipelined.simulate(stages_of(self.problem, placement))


@dataclass(frozen=True)
class Source:
    """Where instances come from.

    Attributes:
        title, licence: of the data.
        names: of the instances, without that of the source.
        load: makes the graph and the cluster of one of them.
        pipeline: the objective of all of them; None = the step of one batch.
    """

    title: str
    licence: str
    names: Callable[[], Iterable[str]]
    load: Callable[[str], tuple[OpGraph, Cluster]]
    pipeline: Pipeline | None = None


@cache
def _graphs_of(file: str) -> Mapping[str, OpGraph]:
    return {graph.name: graph for graph in read_graphs(DATA / file)}


@cache
def _family(name: str) -> Mapping[str, OpGraph]:
    return {graph.name: graph for graph in load_family(name)}


def _doppler(name: str) -> tuple[OpGraph, Cluster]:
    return _graphs_of("doppler.jsonl.gz")[DOPPLER[name]], read_cluster(DATA / "corgi4.json")


def _tarnawski(name: str) -> tuple[OpGraph, Cluster]:
    return workload_graph(name), workload_cluster(name)


def _throughput() -> list[str]:
    """Lists the workloads of layers whose authors maximize throughput."""
    return [name for name in workloads() if name.startswith("throughput-layers")]


def _placeto(name: str) -> tuple[OpGraph, Cluster]:
    return _family(name.partition("-")[0])[name], get_cluster("placeto-k80:4")


def _sealed(name: str) -> tuple[OpGraph, Cluster]:
    return _graphs_of("sealed.jsonl.gz")[name], get_cluster("4xa100-pcie")


def _profiles(source: str) -> Source:
    def names() -> list[str]:
        return [each.removeprefix(f"{source}_") for each in profile_paths() if each.startswith(source)]

    def load(name: str) -> tuple[OpGraph, Cluster]:
        graph = profile_graph(profile_paths()[f"{source}_{name}"])
        return graph, replace(profile_cluster(4, EQUAL), name="4-equal")

    title = {"pipedream": "PipeDream's profiles", "piper": "Piper's inputs"}[source]
    return Source(title, "MIT", names, load, Pipeline("1f1b", 8))


SOURCES = {
    "doppler": Source("Doppler's graphs and simulator", "CC BY 4.0", lambda: DOPPLER, _doppler),
    "tarnawski": Source("workloads of Tarnawski et al.", "MIT", workloads, _tarnawski),
    "tarnawski-pipelines": Source(
        "those of layers, pipelined", "MIT", _throughput, _tarnawski, Pipeline("1f1b", 8)
    ),
    "placeto": Source("our draws of Placeto's families", "Apache-2.0", lambda: PLACETO, _placeto),
    "sealed": Source("our sealed graphs", "Apache-2.0", lambda: (*SMALL, *LARGE), _sealed),
    "pipedream": _profiles("pipedream"),
    "piper": _profiles("piper"),
}
"""Sources of instances, by the first part of the names of these."""


def names_instance(text: str) -> bool:
    """Says whether a text names instances and no file."""
    return text.partition(":")[0] in SOURCES and ":" in text


def find_names(patterns: Iterable[str]) -> list[str]:
    """Lists the names that match patterns such as `doppler:*`, each once.

    Raises:
        InstanceError: none matches one of them.
    """
    found: list[str] = []
    for pattern in patterns:
        source = pattern.partition(":")[0]
        among = {source: SOURCES[source]} if source in SOURCES else SOURCES
        names = [f"{key}:{name}" for key, each in among.items() for name in each.names()]
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            raise InstanceError(f"no instance is named '{pattern}'; {LIST}")
        found += matching
    return list(dict.fromkeys(found))


def find_instances(patterns: Iterable[str]) -> list[Instance]:
    """Loads the instances that match patterns.

    Raises:
        InstanceError: none matches one of them.
    """
    return [_load(name) for name in find_names(patterns)]


@cache
def _load(full_name: str) -> Instance:
    source, _, name = full_name.partition(":")
    graph, cluster = SOURCES[source].load(name)
    return Instance(replace(graph, name=full_name), cluster, SOURCES[source].pipeline)
