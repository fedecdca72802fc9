"""The placers that plan by max-load; the simulated step scores the plan that each finds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from agent.pipelines.dynamic.ideals import families, windows
from agent.pipelines.dynamic.max_load import StageCosts
from agent.pipelines.dynamic.programme import Fleet, StageChoice, StageSplit, least_max_load
from agent.pipelines.search import Cuts, PipelineSearch, pipeline_placer
from agent.placers.scores import OVER_BYTES
from envs.pipeline.simulate import PipelinedProblem
from graphs.system.array_types import IntArray

MOST_NODES = 512
"""Nodes that the pieces of a graph are merged into, at most."""
MOST_WORK = 2e9
"""Combinations of two ideals, a row of traffic or a choice and a use, that a programme tries at most."""
MEMORY_SHARES = (1.0, 0.9, 0.8, 0.65, np.inf)
"""Shares of the memory that plans take in turn, until one fits; memory is an estimate until simulated."""


@dataclass(frozen=True)
class Rules:
    """The plans that a placer chooses from.

    Attributes:
        overlaps: whether devices compute while they send and receive.
        chain_only: whether stages are contiguous in program order.
        degrees: numbers of replicas of a stage.
        recomputes: whether stages may recompute.
    """

    overlaps: bool = False
    chain_only: bool = False
    degrees: tuple[int, ...] = (1,)
    recomputes: bool = False


@pipeline_placer("pipedream")
def pipedream(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Splits the chain in program order, with replicas of stages; transfers overlap with compute.

    Source: Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", section
    3.1, with one level of links.
    """
    degrees = tuple(range(1, min(search.problem.n_devices, search.pipeline.microbatches) + 1))
    _score(search, Rules(overlaps=True, chain_only=True, degrees=degrees))


@pipeline_placer("ideals")
def ideals(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Splits a graph with branches into stages that need not be contiguous in program order.

    Source: Tarnawski et al. 2020, "Efficient Algorithms for Device Placement of DNN Graph Operators",
    section 5.
    """
    _score(search, Rules())


@pipeline_placer("piper")
def piper(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Does what `ideals` does, with replicas of stages and recomputation of activations.

    Source: Tarnawski, Narayanan and Phanishayee 2021, "Piper: Multidimensional Planner for DNN
    Parallelization", without tensor parallelism. A stage recomputes as a whole, and the number of its
    replicas divides that of the microbatches.
    """
    count = search.pipeline.microbatches
    degrees = tuple(n for n in range(1, search.problem.n_devices + 1) if count % n == 0)
    _score(search, Rules(degrees=degrees, recomputes=True))


def _score(search: PipelineSearch, rules: Rules) -> None:
    """Scores the plan of least max-load, with ever less memory until one fits the simulated memory.

    It ends sooner where another split is likely to end too late.
    """
    counts = tuple(n for n in range(1, search.most_ranks + 1) if search.can_use(n))
    degrees = rules.degrees if search.pipeline.replicates else (1,)
    rules = replace(rules, degrees=degrees, recomputes=rules.recomputes and search.pipeline.may_recompute)
    costs = stage_costs(search.pipelined, overlaps=rules.overlaps)
    split_s = 0.0
    for share in MEMORY_SHARES:
        if search.cuts is not None and split_s > search.seconds_left:
            return
        began_s = search.elapsed_s
        split = best_split(costs, rules, counts, share)
        split_s = search.elapsed_s - began_s
        if split is None or (share == np.inf and search.cuts is not None):
            continue
        if search.score_cuts(cuts_of(split, costs.node_of))[OVER_BYTES] == 0 or not search.left:
            return


def stage_costs(pipelined: PipelinedProblem, *, overlaps: bool = False) -> StageCosts:
    """Makes the costs of at most `MOST_NODES` nodes."""
    chain = pipelined.chain
    seconds = chain.seconds[:2].sum(axis=0).mean(axis=1)
    return StageCosts(pipelined, windows(seconds, chain.cut_bytes.sum(axis=0), MOST_NODES), overlaps)


def best_split(
    costs: StageCosts, rules: Rules, counts: tuple[int, ...], memory_share: float = 1.0
) -> StageSplit | None:
    """Finds the split of least max-load; None where no split fits the memory.

    Args:
        counts: numbers of devices that a plan may use, ascending.
        memory_share: share of each device's memory that stages can take.
    """
    rounds = costs.pipelined.pipeline.stages_per_device
    whole = counts[-1] if rounds > 1 else costs.pipelined.problem.n_devices
    fleet = Fleet(costs, tuple(range(whole)), counts[-1:] if rounds > 1 else counts, rounds)
    most = np.bincount(fleet.kinds[1])
    choices = [
        StageChoice(kind, degree, again)
        for kind in range(len(most))
        for degree in rules.degrees
        if degree <= most[kind]
        for again in (False, True)[: 1 + rules.recomputes]
    ]
    tried = 8 * len(costs.traffic.maker) + 4 * len(choices) * len(fleet.uses)
    found, bound_s = None, np.inf
    for family in families(costs, max(2, int((MOST_WORK / tried) ** 0.5)), chain_only=rules.chain_only):
        found = least_max_load(fleet, choices, family, memory_share, bound_s) or found
        bound_s = found.max_load_s if found else np.inf
    return found


def max_load_s(pipelined: PipelinedProblem, cuts: Cuts) -> float:
    """Computes the load of the busiest stage of a plan, without overlap, in seconds per microbatch."""
    costs = StageCosts(pipelined, np.arange(pipelined.chain.n_pieces))
    stage_of = np.repeat(np.arange(len(cuts.first)), np.diff(cuts.first, append=costs.n_nodes))
    devices = [tuple(group) for group in cuts.groups] * (len(cuts.first) // len(cuts.groups))
    if cuts.order:
        stage_of = stage_of[np.argsort(cuts.order)]
    return float(costs.plan_loads_s(stage_of, devices, cuts.recomputed or (False,) * len(devices)).max())


def cuts_of(split: StageSplit, node_of: IntArray) -> Cuts:
    """Makes the plan of a split.

    Args:
        node_of: node of each piece, int64 (n_pieces,).
    """
    stage_of = split.stage_of[node_of]
    order = np.argsort(stage_of, kind="stable")
    first = np.searchsorted(stage_of[order], np.arange(len(split.devices)))
    ranks = dict.fromkeys(device for group in split.devices for device in group)
    plain = (np.diff(order) == 1).all()
    return Cuts(
        tuple(first.tolist()),
        tuple(ranks),
        tuple(map(len, split.devices)) if max(map(len, split.devices)) > 1 else (),
        split.recomputed if any(split.recomputed) else (),
        () if plain else tuple(order.tolist()),
    )
