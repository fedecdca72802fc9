"""Reads what the settings of an evaluation name: graphs, clusters, placements and the policy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from agent.calibration.quick import get_or_measure_cluster
from agent.evaluation.config import ALL, EvaluationConfig, EvaluationError
from agent.evaluation.spec import EvaluationSpec
from agent.instances.instance import Instance, find_instances, names_instance
from agent.pipeline.choice import pipeline_tried, try_each
from agent.placers.base import PIPELINE_PLACERS, PLACERS, Budget
from agent.placing.request import Request, check_placers, row_names
from agent.placing.trial_runner import TrialRunner, open_policy
from agent.policy.serialization import SEEN
from envs.cluster.cluster import Cluster
from envs.cluster.host import with_host
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.objective import Objective, objective_of
from envs.pipeline.pipeline import AUTO, Pipeline, PipelineError
from envs.placements.files import NamedPlacement, read_named_placement
from envs.placements.placement import Placement
from graphs.capture.user_model import MODEL, SourceError, capture_model, make_model
from graphs.dataset import load_graphs
from graphs.io.graph_files import read_graphs
from graphs.op_graph import OpGraph
from graphs.orders import ORDERS
from graphs.step_settings import Gpu
from graphs.system.errors import each_line_once, print_notice, printable
from graphs.system.json_files import first_repeated
from graphs.system.registry import load_plugins

LARGE_BYTES = 2e7
"""Size from which a graph file takes seconds to read."""
CHOICE = 2_000
"""Evaluations that the choice of a pipeline may use, at most."""


@each_line_once()
def make_spec(config: EvaluationConfig) -> tuple[EvaluationSpec, list[str]]:
    """Read everything that the settings of an evaluation name.

    Returns:
        The specification, and the names of the graphs left out because the policy was trained on them.

    Raises:
        ValueError: anything that is wrong with the input, in one line.
    """
    load_plugins(config.plugin)
    _check_flags(config)
    instances = find_instances(filter(names_instance, config.graphs))
    clusters, home = _clusters(config, instances)
    clusters = tuple(with_host(cluster, config.host) for cluster in clusters)
    request = _request(config, instances)
    placers = _placers(config, request.kind)

    # The model is captured once for each number of microbatches: a choice of pipelines tries several.
    read = cache(partial(_read_graphs, config, instances, _gpu(config, clusters)))
    pipeline = _chosen(config, request, clusters, read) if request.is_open else request.wanted
    as_read = read(request.n_parts(pipeline))
    graphs = [request.prepared(graph, clusters) for graph in as_read]
    whole = {} if config.split is None else {graphs[-1].name: _whole_batch(read, request, clusters)}
    placements = read_given(config.placements, graphs, clusters, pipeline)

    needs_policy = any(name in PLACERS and PLACERS[name].is_learned for name in placers)
    policy = open_policy(config.policy) if needs_policy else None
    seen = policy.how_seen(as_read) if policy else {}
    dropped = {name for name, how in seen.items() if how == SEEN and not config.include_seen}
    spec = EvaluationSpec(
        graphs=tuple(graph for graph in graphs if graph.name not in dropped),
        clusters=clusters,
        placers=placers,
        orders=tuple(ORDERS) if config.orders == (ALL,) else config.orders,
        seeds=config.seeds,
        budget=request.limits,
        policy=policy,
        seen=seen,
        given=placements,
        granularity=config.granularity,
        pipeline=pipeline,
        home={graph.name: home.get(graph.name, DEFAULT_CLUSTER) for graph in graphs} if home else {},
        whole=whole,
    )
    spec.check_feasible()
    if spec.untrained_orders:
        print_notice(spec.untrained_orders)
    return spec, [graph.name for graph in graphs if graph.name in dropped]


def _check_flags(config: EvaluationConfig) -> None:
    """Checks that the flags about a model or its split have one."""
    if config.model is None and (
        config.prompt or config.capture_settings != EvaluationConfig().capture_settings
    ):
        raise EvaluationError(
            "--optimizer, --master-weights, --gradient-dtype, --inference and --prompt decide how a --model "
            "is captured; give --model"
        )
    if config.model is None and config.split is not None:
        raise EvaluationError("--split cuts the inputs of a --model; give --model")
    if config.split is None and (config.batch_dim or config.split_inputs):
        raise EvaluationError("--batch-dim and --split-inputs say what --split cuts; give --split")


def _clusters(
    config: EvaluationConfig, instances: Sequence[Instance]
) -> tuple[tuple[Cluster, ...], Mapping[str, str]]:
    """Finds the clusters, and the name of that of each instance where the settings name none."""
    others = config.families or config.model or not all(map(names_instance, config.graphs))
    if config.cluster or not instances:
        return tuple(map(get_or_measure_cluster, config.cluster or (DEFAULT_CLUSTER,))), {}
    clusters = {instance.cluster.name: instance.cluster for instance in instances}
    if others:
        clusters[DEFAULT_CLUSTER] = get_or_measure_cluster(DEFAULT_CLUSTER)
    return tuple(clusters.values()), {instance.name: instance.cluster.name for instance in instances}


def _request(config: EvaluationConfig, instances: Sequence[Instance]) -> Request:
    """Makes the request of the settings; without a pipeline of theirs, that of the instances is placed.

    Raises:
        EvaluationError: the instances have several.
        PipelineError: what `Request.wanted` raises.
    """
    first_of = {instance.pipeline: instance.name for instance in reversed(instances)}
    if config.pipeline or first_of.keys() <= {None}:
        return Request.of(config)
    if len(first_of) > 1:
        one, other, *_ = first_of.values()
        raise EvaluationError(f"'{one}' and '{other}' have different objectives; evaluate them one by one")
    (shared,) = filter(None, first_of)
    microbatches = config.microbatches or shared.microbatches
    return Request.of(config, pipeline=shared.schedule, microbatches=microbatches)


def _chosen(
    config: EvaluationConfig,
    request: Request,
    clusters: Sequence[Cluster],
    read: Callable[[int | None], list[OpGraph]],
) -> Pipeline:
    """Chooses the schedule and the number of microbatches with the shortest step that `refine` finds."""

    def graph_of(count: int) -> OpGraph:
        graphs = read(count if config.split else None)
        if (sizes := (len(graphs), len(clusters))) != (1, 1):
            several = "{} graphs on {} clusters".format(*sizes)
            raise EvaluationError(f"{AUTO} chooses for one graph on one cluster, not for {several}")
        return request.prepared(graphs[0])

    place = partial(TrialRunner().place, PIPELINE_PLACERS["refine"], order="", seed=0)
    inputs = make_model(config.model).inputs if config.split == AUTO and config.model is not None else None
    budget = Budget(min(CHOICE, config.budget or CHOICE), config.seconds)
    return pipeline_tried(try_each(request, inputs, graph_of, clusters[0], place, budget)[0])


def _gpu(config: EvaluationConfig, clusters: Sequence[Cluster]) -> Gpu | None:
    """Returns the GPUs whose kernels the model takes; tells of clusters that have none."""
    gpu = gpus_of(clusters, config.precision)
    for cluster in clusters if config.model and gpu else ():
        if not gpus_of([cluster]):
            line = f"cluster '{cluster.name}' has no GPU, but gets the kernels that GPUs of the others take; "
            print_notice(line + "evaluate it alone to capture those of processors")
    return gpu


def _whole_batch(
    read: Callable[[int], list[OpGraph]], request: Request, clusters: Sequence[Cluster]
) -> OpGraph | str:
    """Returns the step of the whole batch of a split model, or why there is none."""
    try:
        return request.prepared(read(1)[-1], clusters)
    except ValueError as error:  # the model may run with microbatches alone
        return str(error)


def _read_graphs(
    config: EvaluationConfig, instances: Sequence[Instance], gpu: Gpu | None, split: int | None
) -> list[OpGraph]:
    """Reads every graph that the settings name: families first, then instances, files and the model.

    Args:
        gpu: GPUs whose kernels the model takes.
        split: microbatches that the inputs of the model are cut into; None = they are one.
    """
    if not config.families and not config.graphs and config.model is None:
        raise SourceError("no graphs; give --families, --graphs or --model")
    graphs = [*load_graphs(dict.fromkeys(config.families)), *(instance.graph for instance in instances)]
    for path in dict.fromkeys(path for path in config.graphs if not names_instance(path)):
        size = os.stat(path).st_size if os.path.isfile(path) else 0
        if size > LARGE_BYTES:
            print(f"reading {printable(path)}, {size / 1e6:.0f} MB ...", file=sys.stderr)
        graphs += read_graphs(path, limit_bytes=config.max_decompressed_bytes)
    if config.model is not None:
        made = make_model(config.model, split=split, batch_dim=config.batch_dim, names=config.split_inputs)
        captured = capture_model(config.model, made, prompt=config.prompt, gpu=gpu, **config.capture_settings)
        graphs.append(captured.graph)
    twice = first_repeated(graph.name for graph in graphs)
    if twice is not None:
        raise SourceError(f"two graphs are named '{twice}'; results are stored by name; rename one")
    return graphs


def _placers(config: EvaluationConfig, kind: str) -> tuple[str, ...]:
    """Lists the placers that the settings name; by default, and of all, those that are installed.

    Raises:
        PlacerError: what `check_placers` raises.
    """
    names = config.placers or ()
    if (config.placers is None and not config.placements) or config.placers == (ALL,):
        names = _installed(row_names(kind))
    check_placers(names, kind)
    return names


def _installed(names: tuple[str, ...]) -> tuple[str, ...]:
    """Leaves out the placers whose package is not installed, and says so."""
    missing = [name for name in names if name in PLACERS and not PLACERS[name].is_installed]
    for name in missing:
        print(f"{name} is left out: run pip install 'placewalk[{name}]' for it", file=sys.stderr)
    return tuple(name for name in names if name not in missing)


def read_given(
    paths: Sequence[str],
    graphs: Sequence[OpGraph],
    clusters: Sequence[Cluster],
    pipeline: Pipeline | None = None,
) -> dict[tuple[str, str, str], Placement]:
    """Read placement files; each must be for a graph and a cluster at hand.

    Returns:
        Placements by (graph, cluster, stem of the file).

    Raises:
        EvaluationError: a file is for another graph or cluster, or two for one have the same stem.
        PipelineError: the pipeline cannot run a placement.
        ValueError: what the reader raises.
    """
    graph_of = {graph.name: graph for graph in graphs}
    cluster_of = {cluster.name: cluster for cluster in clusters}
    placements: dict[tuple[str, str, str], Placement] = {}
    for path in paths:
        named = _read_placement(path, graph_of)
        if named.graph not in graph_of:
            raise EvaluationError(
                f"{path}: is for graph '{named.graph}', which is not one of the given graphs"
            )
        if named.cluster not in cluster_of:
            raise EvaluationError(
                f"{path}: is for cluster '{named.cluster}'; name that cluster with --cluster"
            )
        key = (named.graph, named.cluster, Path(path).stem)
        if key in placements:
            raise EvaluationError(
                f"{path}: another placement of graph '{named.graph}' has that file name; rename one"
            )
        graph, cluster = graph_of[named.graph], cluster_of[named.cluster]
        placements[key] = named.resolve(graph, cluster)
        _check_given(path, objective_of(graph, cluster, pipeline), placements[key])
    return placements


def _read_placement(path: str, graph_of: Mapping[str, OpGraph]) -> NamedPlacement:
    """Reads a placement; one of the model under another name gets that of the graph.

    `place` names a model by its class, `evaluate.py` by its function.
    """
    named = read_named_placement(path)
    if named.graph not in graph_of:
        for name, graph in graph_of.items():
            if graph.family == MODEL and named.device_of.keys() == set(graph.op_names):
                print(f"{printable(path)}: is for graph '{named.graph}', here '{name}'", file=sys.stderr)
                return replace(named, graph=name)
    return named


def _check_given(path: str, objective: Objective, placement: Placement) -> None:
    """Simulates a placement that was read once; says which of a pipeline's stages mean nothing."""
    if ignored := objective.ignored(placement):
        print(f"{path}: {ignored}", file=sys.stderr)
    try:
        objective.simulate(placement)
    except PipelineError as error:
        raise PipelineError(f"{path}: {error}") from None
