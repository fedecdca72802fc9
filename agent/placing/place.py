"""The front door in Python: `place` finds what `evaluate.py` finds and returns it as a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pkgutil import resolve_name
from types import NoneType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from agent.bounds.lower_bound import bound_s
from agent.calibration.quick import get_or_measure_cluster
from agent.placers.base import PLACERS_OF, Budget, PlacementResult, PlacerError, names_of
from agent.placing.plan import PipelinePlan, Plan
from agent.placing.request import CHOICE, DATA_PARALLEL, Request, check_placers
from agent.placing.trial_runner import TrialRunner, compile_jobs, make_placer, open_policy
from envs.cluster.cluster import Cluster
from envs.cluster.host import with_host
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.objective import PIPELINE, STEP, Objective, objective_of
from envs.problem import Problem
from graphs.op_graph import OpGraph
from graphs.orders import ORDERS
from graphs.system.compiling import compile_ahead
from graphs.system.errors import InputError, checked, each_line_once, print_notice

if TYPE_CHECKING:
    import torch
    from torch import nn

    from envs.pipeline.pipeline import Pipeline
    from graphs.capture.captured_step import CapturedStep
    from graphs.capture.loss import Loss

DEFAULT_PLACER = {STEP: "auto", PIPELINE: "refine"}
PLANS: Mapping[str, Callable[..., Plan]] = {STEP: Plan, PIPELINE: PipelinePlan}


@overload
def place(*model: Any, pipeline: None = None, **settings: Any) -> Plan: ...


@overload
def place(*model: Any, pipeline: Pipeline | str, **settings: Any) -> PipelinePlan: ...


@each_line_once()  # type: ignore[misc]  # both plans take all settings
def place(
    model: nn.Module | OpGraph,
    inputs: Any = None,
    loss: Loss | None = None,
    *,
    cluster: str | os.PathLike[str] | Cluster = DEFAULT_CLUSTER,
    host: str | None = None,
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
    optimizer: Any = "adam",
    master_weights: str | torch.dtype | None = None,
    gradient_dtype: str | torch.dtype | None = None,
    training: bool = True,
    name: str | None = None,
    precision: str | None = None,
    granularity: str = "op",
) -> Plan:
    """Places a model's training step on a cluster, as `evaluate.py` does with the same settings.

    Args:
        model: a module, which may be on the meta device, or a graph that was captured or read.
        inputs: example inputs of the module: a tensor, a sequence, or a mapping by keyword. For a pipeline,
            those of one microbatch, unless `split` is given.
        loss: of the module's outputs, as `graphs.capture.capture` takes it.
        cluster: a name, e.g. `8xh100-sxm5`, a cluster file or a cluster.
        host: how the host issues a step to GPUs: `eager`, op by op, as a captured CUDA `graph`, or in no time
            (`none`). None = as the cluster says; calibrated presets count an eager host.
        placer: name of a placer; by default `refine` for pipelines and `auto` otherwise.
        pipeline: places a pipeline of microbatches: `Pipeline("1f1b", 8)`, or the schedule alone, for
            `split` or 8 microbatches. The schedule `auto` is the one with the shortest simulated step, and so
            is the number of `replicas` that divide devices and microbatches. Stages may be recomputed if
            memory binds.
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
        optimizer, master_weights, gradient_dtype: of the module's training step, as
            `graphs.capture.capture` takes them.
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
    checked(InputError, "cluster", cluster, str, os.PathLike, Cluster)
    checked(InputError, "placer", placer, str, NoneType)
    checked(InputError, "policy", policy, str, os.PathLike)
    checked(InputError, "seed", seed, int, least=0)
    checked(InputError, "training", training, bool)
    checked(InputError, "name", name, str, NoneType)
    ORDERS.check(checked(InputError, "order", order, str))
    chosen = cluster if isinstance(cluster, Cluster) else get_or_measure_cluster(os.fspath(cluster))
    chosen = with_host(chosen, checked(InputError, "host", host, str, NoneType))
    request = Request(
        pipeline=pipeline,
        split=split,
        batch_dim=batch_dim,
        split_inputs=split_inputs,
        budget=budget,
        seconds=seconds,
        precision=precision,
        granularity=granularity,
    )
    settings = {
        "optimizer": optimizer,
        "master_weights": master_weights,
        "gradient_dtype": gradient_dtype,
        "training": training,
        "loss": loss,
        "name": name,
        "gpu": gpus_of([chosen], precision),
    }
    step = _Step(model, inputs, request, chosen, settings)
    step.check()
    kind = request.kind
    placer = placer or DEFAULT_PLACER[kind]
    if placer == DATA_PARALLEL:
        raise PlacerError(f"'{placer}' is no placement; use another placer and read plan.data_parallel")
    check_placers([placer], kind, names_of(kind))
    find = partial(_find, placer=placer, policy=str(policy), order=order, seed=seed)
    count, told = 1, dict[str, Any]()
    if kind == STEP:
        compile_ahead(compile_jobs([placer], [chosen]))
        objective = objective_of(step.graph(count), chosen)
        objective.check_feasible()
        tried = [find(objective, request.limits)]
    else:
        choice = resolve_name(CHOICE)
        tried = choice.try_each(request, inputs, step.graph, chosen, find)
        objective, count, told = choice.compared(request, tried, step.graph)
    best = tried[0]
    return PLANS[kind](
        objective=objective,
        placer=placer,
        placement=best.placement,
        step_time=best.step_time,
        lower_bound_s=bound_s(objective),
        evaluations=sum(result.evaluations for result in tried),
        wall_s=sum(result.wall_s for result in tried),
        captured=step.captured(count),
        batch_dim=batch_dim,
        **told,
    )


@dataclass(frozen=True, eq=False)
class _Step:
    """The step to place: that of a graph, or of a module, captured once for each number of microbatches.

    Attributes:
        settings: keyword arguments of `capture_step`.
    """

    model: nn.Module | OpGraph
    inputs: Any
    request: Request
    cluster: Cluster
    settings: Mapping[str, Any]
    _made: dict[int, tuple[CapturedStep | None, OpGraph]] = field(default_factory=dict)

    def check(self) -> None:
        """Checks that model, inputs and settings fit together, before anything is captured."""
        if isinstance(self.model, Problem):
            raise InputError("model is a Problem; call place(problem.graph, cluster=problem.cluster)")
        if isinstance(self.model, OpGraph):
            if self.request.split is not None:
                raise InputError(
                    "a graph is the step of one microbatch already; split cuts a module's inputs"
                )
            if self.inputs is not None:
                raise InputError(
                    "inputs are a module's, and a graph has none; call place(graph, cluster=...)"
                )
            if self.settings["master_weights"] or self.settings["gradient_dtype"]:
                raise InputError("master_weights and gradient_dtype: a graph keeps what it was captured with")
            return
        if self.inputs is None:
            raise InputError("a module is placed with its example inputs; call place(module, inputs)")
        from torch.utils._pytree import tree_leaves

        has_arrays = any(isinstance(leaf, np.ndarray) for leaf in tree_leaves(self.inputs))
        if isinstance(self.inputs, str) or has_arrays:
            raise InputError(
                "inputs are a string or hold NumPy arrays; use tensors, as torch.as_tensor(array)"
            )

    def captured(self, count: int) -> CapturedStep | None:
        """Returns the captured step of the first of `count` microbatches; None of a graph."""
        return self._of(count)[0]

    def graph(self, count: int) -> OpGraph:
        """Returns the graph of the first of `count` microbatches, as the request wants it."""
        return self._of(count)[1]

    def _of(self, count: int) -> tuple[CapturedStep | None, OpGraph]:
        if count not in self._made:
            captured, graph = self._read(count)
            self._made[count] = captured, self.request.prepared(graph, [self.cluster])
        return self._made[count]

    def _read(self, count: int) -> tuple[CapturedStep | None, OpGraph]:
        if isinstance(self.model, OpGraph):
            return None, self.model
        from graphs.capture import capture, structures

        inputs = self.inputs
        if self.request.split is not None:
            cut = self.request.batch_dim, self.request.split_inputs
            inputs = structures.split_batch(inputs, count, *cut, notify=print_notice)[0]
        captured = capture.capture_step(self.model, inputs, **self.settings)
        return captured, captured.graph


def _find(
    objective: Objective, budget: Budget, *, placer: str, policy: str, order: str, seed: int
) -> PlacementResult:
    """Makes an objective short by a placer, which takes the policy and the order if it is learned."""
    is_learned = PLACERS_OF[objective.kind][placer].is_learned
    opened = open_policy(policy) if is_learned else None
    if opened and (line := opened.card.about_orders([order])):
        print_notice(line)
    made = make_placer(placer, opened, order, objective.kind)
    return _runner().place(made, objective, budget, order=order if is_learned else "", seed=seed)


@cache
def _runner() -> TrialRunner:
    return TrialRunner()
