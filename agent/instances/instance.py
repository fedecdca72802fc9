"""Instances of the benchmark by name: a graph, its cluster, its objective, and the best known placement."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import numpy as np

from agent.bounds.lower_bound import bound_s
from envs.cluster.cluster import Cluster
from envs.cluster.files import read_cluster
from envs.cluster.host import NONE, with_host
from envs.cluster.presets import get_cluster
from envs.figures import save_figure, step_figure
from envs.objective import Objective, objective_of
from envs.pipeline.pipeline import Pipeline
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.io.graph_files import read_graphs
from graphs.op_graph import OpGraph
from graphs.system.command_line import as_typed
from graphs.system.errors import InputError, in_ms
from graphs.system.json_files import read_json, read_json_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIST = f"see {as_typed('evaluate.py')} --list-graphs"
PIPELINE = Pipeline("1f1b", 8)
OBJECTIVES = {False: (None, "one step"), True: (PIPELINE, "1f1b x 8")}
"""The pipeline of instances that are pipelined, and of all others, with its name."""
FAMILIES = "families"
"""In place of the file of graphs of a source: families of the benchmark set."""


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

    @property
    def problem(self) -> Problem:
        """The graph on the cluster."""
        return self.objective.problem

    @cached_property
    def objective(self) -> Objective:
        """The step that a placement is to make short."""
        return objective_of(self.graph, self.cluster, self.pipeline)

    @cached_property
    def bound_s(self) -> float:
        """No placement has a shorter step, in seconds."""
        return bound_s(self.objective)

    @property
    def best_known(self) -> BestKnown:
        """The best known answer: its step in seconds, and who found it, how and when."""
        return read_best_known()[self.name]

    @cached_property
    def best_placement(self) -> Placement:
        """The placement of the best known answer."""
        return read_placements()[self.name]

    @property
    def source(self) -> Source:
        """The origin of the graph: title and licence."""
        return sources()[self.name.partition(":")[0]]

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the step of the best known placement: the timeline and the memory of each device.

        Args:
            path: file to save it in, such as `step.svg` or `step.png`.

        Raises:
            ValueError: a format that matplotlib lacks; the message lists those that it has.
        """
        step = self.objective.simulate(self.best_placement)
        title = f"{self.name} on {self.cluster.name} by {self.best_known.method}: {in_ms(step.total_s)}"
        return save_figure(step_figure(self.objective, self.best_placement, step, title), path)


@dataclass(frozen=True)
class Source:
    """Origin of instances.

    Attributes:
        title, licence: of the data.
        graphs: file of the graphs, or `FAMILIES`.
        clusters: preset or file of the cluster of each instance, by names without that of the source.
        pipelined: whether the objective is the step of `PIPELINE`, not that of one batch.
    """

    title: str
    licence: str
    graphs: str
    clusters: Mapping[str, str]
    pipelined: bool


@cache
def sources() -> dict[str, Source]:
    """Reads the sources, by the first part of the names of their instances."""
    records = cast("Mapping[str, Mapping[str, Any]]", read_json(DATA / "sources.json"))
    return {name: Source(**record) for name, record in records.items()}


def names_instance(text: str) -> bool:
    """Says whether a text names instances and no file."""
    return ":" in text and text.partition(":")[0] in sources()


def pipeline_of(name: str) -> Pipeline | None:
    """Returns the pipeline of an instance; None = its objective is the step of one batch."""
    return OBJECTIVES[sources()[name.partition(":")[0]].pipelined][0]


def find_names(patterns: Iterable[str]) -> list[str]:
    """Lists the names that match patterns such as `doppler:*`, each once.

    Raises:
        InstanceError: none matches one of them.
    """
    names = [f"{key}:{name}" for key, source in sources().items() for name in source.clusters]
    chosen = list[str]()
    for pattern in patterns:
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            raise InstanceError(f"no instance is named '{pattern}'; {LIST}")
        chosen += matching
    return list(dict.fromkeys(chosen))


def list_instances(pattern: str = "*") -> list[str]:
    """Lists the names of the instances that match a pattern, such as `doppler:*`.

    Raises:
        InstanceError: none does.
    """
    return find_names([pattern])


def load_instance(name: str) -> Instance:
    """Loads an instance of the benchmark: a graph, the cluster to place it on, and the best known answer.

    Raises:
        InstanceError: no instance has this name; the message has names like it.

    Example:
        >>> from agent import load_instance
        >>> instance = load_instance("doppler:chain_mm")
        >>> instance.graph.n_ops, instance.best_known.step_time_s >= instance.bound_s
        (76, True)
    """
    if name not in (names := list_instances()):
        close = ", ".join(get_close_matches(name, names))
        hint = f"close to it: {close}" if close else "list_instances() lists all names"
        raise InstanceError(f"no instance is named '{name}'; {hint}")
    return _load(name)


def find_instances(patterns: Iterable[str]) -> list[Instance]:
    """Loads the instances that match patterns.

    Raises:
        InstanceError: none matches one of them.
    """
    return [_load(name) for name in find_names(patterns)]


@cache
def _load(full_name: str) -> Instance:
    key, _, name = full_name.partition(":")
    source = sources()[key]
    graph = _graphs(name.partition("-")[0] if source.graphs == FAMILIES else source.graphs)[name]
    file = source.clusters[name]
    cluster = read_cluster(DATA / file) if file.endswith(".json") else with_host(get_cluster(file), NONE)
    return Instance(replace(graph, name=full_name), cluster, pipeline_of(full_name))


@cache
def _graphs(of: str) -> Mapping[str, OpGraph]:
    """Reads the graphs of a file, or of a family of the benchmark set, by name."""
    graphs = read_graphs(DATA / of) if of.endswith(".gz") else load_family(of)
    return {graph.name: graph for graph in graphs}


def listing() -> Iterator[str]:
    """Yields a line for each source, and for each of its instances the best known step."""
    best_known = read_best_known()
    for key, source in sources().items():
        _, objective = OBJECTIVES[source.pipelined]
        yield f"{source.title} ({source.licence}), {objective}: best ms, over the bound"
        for name in (f"{key}:{name}" for name in source.clusters):
            best = best_known[name]
            over = "optimal" if best.is_optimal else f"{best.step_time_s / best.bound_s:.3f}"
            yield f"  {name:<59} {best.step_time_s * 1e3:>9.6g} {over:>8}"


DATA = Path(__file__).parent / "data"
"""Graphs, clusters and best known answers; `agent/instances/README.md` says whose they are."""
TABLE, PLACEMENTS = "best_known.csv", "best_placements.jsonl.gz"
SAME = 1e-9
"""Step times that differ by less, as a share, are equal."""


@dataclass(frozen=True)
class BestKnown:
    """The best known answer to an instance.

    Attributes:
        bound_s: no placement has a shorter step.
        method, found_by, commit, date: how, by whom, with which code and when it was found.
        seconds: processor seconds that it took.
    """

    instance: str
    step_time_s: float
    bound_s: float
    method: str
    found_by: str
    commit: str
    date: str
    seconds: float

    @property
    def is_optimal(self) -> bool:
        """Says whether the bound proves that nothing is better."""
        return self.step_time_s <= self.bound_s * (1 + SAME)


def read_best_known() -> dict[str, BestKnown]:
    """Reads the table of the best known answers by instance."""
    kinds = get_type_hints(BestKnown)
    with (DATA / TABLE).open(newline="", encoding="utf-8") as lines:
        rows = [{name: kinds[name](cell) for name, cell in line.items()} for line in csv.DictReader(lines)]
    return {row["instance"]: BestKnown(**row) for row in rows}


def read_placements() -> dict[str, Placement]:
    """Reads the best known placements by instance."""
    records = [cast("Mapping[str, Any]", value) for _, value in read_json_lines(DATA / PLACEMENTS)]
    return {
        record["instance"]: Placement(
            np.array(record["device_of"]),
            None if record["stage_of"] is None else np.array(record["stage_of"]),
            tuple(record["recompute"]),
        )
        for record in records
    }
