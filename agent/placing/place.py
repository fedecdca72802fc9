"""The front door in Python: `place` finds what `evaluate.py` finds and returns it as a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, overload

from agent.bounds.lower_bound import lower_bound_s
from agent.bounds.pipeline_bound import pipeline_bound_s
from agent.calibration.quick import get_or_measure_cluster
from agent.placers.base import Budget, Placer, PlacerError
from agent.placers.pipeline.search import PIPELINE_PLACERS
from agent.placing.choice import counts_to_try, try_pipelines
from agent.placing.handover.pipeline import pipeline_baselines
from agent.placing.pipeline_plan import PipelinePlan
from agent.placing.plan import Plan
from agent.placing.policies import make_placer, open_policy
from agent.placing.request import (
    DATA_PARALLEL,
    make_budget,
    make_pipeline,
    placer_names,
    prepared,
    unknown_placer,
)
from agent.placing.trial_runner import TrialRunner
from agent.policy.placers import LEARNED
from envs.cluster.cluster import Cluster
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.pipeline.pipeline import AUTO, Pipeline
from envs.pipeline.stages import stages_of
from envs.problem import Problem
from envs.simulator.fastest_single import fastest_single
from graphs.op_graph import OpGraph
from graphs.orders import ORDERS
from graphs.system.errors import InputError, each_line_once, print_notice

if TYPE_CHECKING:
    from torch import nn

    from graphs.capture.captured_step import CapturedStep
    from graphs.capture.loss import Loss


@overload
def place(
    model: nn.Module | OpGraph,
    inputs: Any = None,
    loss: Loss | None = None,
    *,
    pipeline: None = None,
    **settings: Any,
) -> Plan: ...


@overload
def place(
    model: nn.Module | OpGraph,
    inputs: Any = None,
    loss: Loss | None = None,
    *,
    pipeline: Pipeline | str,
    **settings: Any,
) -> PipelinePlan: ...


@each_line_once()  # type: ignore[misc]  # both plans take all settings
def place(
    model: nn.Module | OpGraph,
    inputs: Any = None,
    loss: Loss | None = None,
    *,
    cluster: str | Cluster = DEFAULT_CLUSTER,
    placer: str | None = None,
    pipeline: Pipeline | str | None = None,
    split: int | str | None = None,
    batch_dim: int = 0,
    split_inputs: Sequence[str | int] = (),
    budget: int | None = None,
    seconds: float | None = None,
    policy: str | os.PathLike[str] = "pretrained",
    order: str = "topo",
    seed: int = 0,
    optimizer: str | None = "adam",
    training: bool = True,
    name: str | None = None,
    precision: str | None = None,
    granularity: str = "op",
) -> Plan | PipelinePlan:
    """Places a model's training step on a cluster, as `evaluate.py` does with the same settings.

    Args:
        model: a module, which may be on the meta device, or a graph that was captured or read.
        inputs: example inputs of the module: a tensor, a sequence, or a mapping by keyword. For a pipeline,
            those of one microbatch, unless `split` is given.
        loss: of the module's outputs, as `graphs.capture.capture` takes it.
        cluster: a preset, a cluster file or a cluster.
        placer: name of a placer; by default `refine` for pipelines and `auto` otherwise.
        pipeline: places a pipeline of microbatches: `Pipeline("1f1b", 8)`, or the schedule alone, for
            `split` or 8 microbatches. The schedule `auto` is the one with the shortest simulated step. Stages
            may be recomputed if memory binds.
        split: number of microbatches into which the inputs, which are a whole batch, are cut. `auto` captures
            and tries at most 5 divisors of the batch. All that is tried shares the budget equally.
        batch_dim: dimension that `split` cuts, as `graphs.capture.structures.split_batch` does.
        split_inputs: inputs that `split` cuts, by keyword or position; by default those that have the most
            common size in this dimension, and offsets into it.
        budget: evaluations; by default 10,000, or any number where `seconds` are given.
        seconds: wall time.
        policy: folder of a trained run, or `pretrained`, which is the shipped policy for the granularity;
            matters to learned placers only.
        order: in which the policy visits ops.
        seed: of a placer that draws at random; the same seed gives the same plan, if `seconds` are not given.
        optimizer: of the module's training step, as `graphs.capture.capture` takes it.
        training: whether a module's backward pass and update are placed too.
        name: name of a module's graph, which placement files say; `--model` takes that of the function. The
            class of the module by default.
        precision: from `graphs.step_settings.PRECISIONS`, to cost a step in fp32 in; None leaves it as it is.
        granularity: from `graphs.step_settings.GRANULARITIES`: what one decision places.

    Returns:
        The best placement found; `plan.step_time.fits` says whether it is feasible.

    Raises:
        ValueError: an unknown name, a budget that allows nothing, a model that cannot be captured, a policy
            that cannot be loaded, a batch that cannot be split, a graph or cluster that cannot run the
            pipeline, or (`InfeasibleError`) a graph that no placement on the cluster has the memory for.

    Example:
        >>> from agent import place
        >>> from graphs.dataset import load_family
        >>> plan = place(load_family("gpt")[0], cluster="2xk80", placer="heft")
        >>> plan.step_time.fits
        True
    """
    chosen = get_or_measure_cluster(cluster) if isinstance(cluster, str) else cluster
    limits = make_budget(budget, seconds)
    ORDERS.check(order)
    _check_model(model, inputs, split)
    count = pipeline.microbatches if isinstance(pipeline, Pipeline) else None
    wanted = make_pipeline(pipeline, count, split)
    placer = placer or ("auto" if wanted is None else "refine")
    _check_placer(placer, placer_names() if wanted is None else tuple(PIPELINE_PLACERS))
    gpu = gpus_of([chosen], precision)
    settings = {"optimizer": optimizer, "training": training, "loss": loss, "name": name, "gpu": gpu}

    if split is not None:
        from graphs.capture.structures import batch_size, split_batch

    @cache
    def open_problem(count: int) -> tuple[CapturedStep | None, Problem]:
        first = inputs
        if split is not None:
            first = split_batch(inputs, count, batch_dim, split_inputs, notify=print_notice)[0]
        captured, graph = _graph(model, first, **settings)
        problem = Problem(prepared(graph, precision, granularity, [chosen]), chosen)
        problem.check_feasible(recomputes=wanted is not None and wanted.may_recompute)
        return captured, problem

    if wanted is None:
        captured, problem = open_problem(1)
        return _place_batch(problem, placer, str(policy), order, limits, seed, captured)
    counts = [wanted.microbatches]
    if split == AUTO:
        counts = counts_to_try(batch_size(inputs, batch_dim, split_inputs), chosen.n_devices)
    return _place_pipeline(
        wanted, counts, open_problem, placer, limits, seed, batch_dim, is_cut=split is not None
    )


def _check_model(model: nn.Module | OpGraph, inputs: Any, split: int | str | None) -> None:
    if isinstance(model, OpGraph):
        if split is not None:
            raise InputError("a graph is the step of one microbatch already; split cuts a module's inputs")
    elif inputs is None:
        raise InputError("a module is placed with its example inputs; call place(module, inputs)")


def _graph(model: nn.Module | OpGraph, inputs: Any, **settings: Any) -> tuple[CapturedStep | None, OpGraph]:
    """Captures a module on its inputs; returns a graph as it is."""
    if isinstance(model, OpGraph):
        return None, model
    from graphs.capture.capture import capture_step

    captured = capture_step(model, inputs, sources=True, **settings)
    return captured, captured.graph


def _place_batch(
    problem: Problem,
    placer: str,
    policy: str,
    order: str,
    budget: Budget,
    seed: int,
    captured: CapturedStep | None,
) -> Plan:
    found = _runner().place(
        _placer(placer, policy, order, problem.graph),
        problem,
        budget,
        order=order if placer in LEARNED else "",
        seed=seed,
    )
    return Plan(
        graph=problem.graph,
        cluster=problem.cluster,
        placer=placer,
        placement=found.placement,
        step_time=found.step_time,
        single=fastest_single(problem),
        lower_bound_s=lower_bound_s(problem),
        evaluations=found.evaluations,
        wall_s=found.wall_s,
        captured=captured,
    )


def _place_pipeline(
    wanted: Pipeline,
    counts: Sequence[int],
    open_problem: Callable[[int], tuple[CapturedStep | None, Problem]],
    placer: str,
    budget: Budget,
    seed: int,
    batch_dim: int,
    *,
    is_cut: bool,
) -> PipelinePlan:
    tried = try_pipelines(
        _runner(), wanted, counts, lambda count: open_problem(count)[1], placer, budget, seed
    )
    pipelined, found = tried[0]
    problem, pipeline = pipelined.problem, pipelined.pipeline
    assert found.placement is not None, "placers of pipelines place"
    stages = stages_of(problem, found.placement)
    whole: Problem | str = ""
    if is_cut:
        try:
            whole = open_problem(1)[1]
        except ValueError as error:  # it may not fit, or run with microbatches alone
            whole = str(error)
    return PipelinePlan(
        graph=problem.graph,
        cluster=problem.cluster,
        placer=placer,
        pipeline=pipeline,
        placement=found.placement,
        stages=stages,
        step_time=pipelined.simulate(stages),
        baselines=pipeline_baselines(pipelined, whole),
        lower_bound_s=pipeline_bound_s(pipelined),
        evaluations=sum(each.run.evaluations for each in tried),
        wall_s=sum(each.run.wall_s for each in tried),
        captured=open_problem(pipeline.microbatches)[0],
        batch_dim=batch_dim,
        tried=tuple(map(str, tried)),
    )


@cache
def _runner() -> TrialRunner:
    return TrialRunner()


def _placer(name: str, policy: str, order: str, graph: OpGraph) -> Placer:
    opened = open_policy(policy, [graph]) if name in LEARNED else None
    return make_placer(name, opened, order)


def _check_placer(name: str, known: Sequence[str]) -> None:
    if name == DATA_PARALLEL:
        raise PlacerError(f"'{name}' is no placement; place with another placer and read plan.data_parallel")
    if name not in known:
        raise PlacerError(unknown_placer(name, known))
