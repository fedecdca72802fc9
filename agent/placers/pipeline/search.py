"""The interface of a placer of pipelines: its cuts, the state of its search, and the registry of placers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from agent.placers.base import Budget, PlacerError, SearchState
from agent.placers.pipeline.orders import anneal_orders, starts
from agent.placers.scores import OVER_BYTES, TOTAL_S
from envs.pipeline.pipeline import INTERLEAVED, SEARCHED, ZERO_BUBBLE, Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages, check_cluster
from graphs.system.errors import shortened
from graphs.system.registry import Registry

FOR_CUTS = 0.75
"""Share of the budget that the search of the cuts has, if that of the order of actions follows."""
DECAY = 0.98
"""Share of the longest evaluation that counts at the next one."""


class Cuts(NamedTuple):
    """A plan of a pipeline.

    Attributes:
        first: first piece of each stage, ascending from 0.
        ranks: devices in the order of their first stage; stage `s` is on `ranks[s % len(ranks)]`.
        recomputed: whether each stage runs forward again before its backward actions; empty = none does.
    """

    first: tuple[int, ...]
    ranks: tuple[int, ...]
    recomputed: tuple[bool, ...] = ()


@dataclass(frozen=True, eq=False)
class PipelineResult:
    """Outcome of one run of a placer of pipelines.

    Attributes:
        cuts: the best plan that it scored.
        stages: the same as a placement.
        step: the pipelined step.
        evaluations: plans that it simulated.
        wall_s, cpu_s: seconds that it took, and processor seconds.
    """

    cuts: Cuts
    stages: Stages
    step: PipelineTime
    evaluations: int
    wall_s: float
    cpu_s: float


def check_pipeline(pipelined: PipelinedProblem) -> None:
    """Checks that a graph can be placed on a cluster as a pipeline.

    Raises:
        PipelineError: the cluster cannot run it, or the graph has too few pieces.
    """
    check_cluster(pipelined.problem.cluster)
    pipeline, n_pieces = pipelined.pipeline, pipelined.chain.n_pieces
    if n_pieces < pipeline.stages_per_device:
        graph = shortened(pipelined.problem.graph.name)
        raise PipelineError(
            f"schedule '{pipeline.schedule}' needs {pipeline.stages_per_device} stages on a device, but "
            f"graph '{graph}' can be cut into {n_pieces} pieces at most"
        )


class PipelineSearch(SearchState):
    """State of one run of a placer of pipelines: the best plan so far, and what is left of the budget."""

    def __init__(self, pipelined: PipelinedProblem, budget: Budget) -> None:
        super().__init__(pipelined.problem, budget)
        check_pipeline(pipelined)
        self.pipelined, self.chain = pipelined, pipelined.chain
        self.cuts: Cuts | None = None
        self.actions: tuple[str, ...] = ()  # of the best plan; empty = those of the schedule
        self.memory_binds = False  # whether a plan was over the memory limits
        self._scores: dict[Cuts, tuple[float, float]] = {}
        self._most_s = 0.0  # wall seconds of an evaluation, at most, lately

    @property
    def pipeline(self) -> Pipeline:
        """Schedule and microbatches."""
        return self.pipelined.pipeline

    @property
    def left(self) -> int:
        """Evaluations that may be spent; 0 where one more and the simulation of the result end too late."""
        return super().left if self.cuts is None or self.seconds_left > 2 * self._most_s else 0

    @property
    def most_ranks(self) -> int:
        """The most devices that a plan can use."""
        return min(self.problem.n_devices, self.chain.n_pieces // self.pipeline.stages_per_device)

    @property
    def can_recompute(self) -> bool:
        """Says whether recomputation may help, as memory binds, and is allowed."""
        return self.memory_binds and self.pipeline.may_recompute

    def can_use(self, n_ranks: int) -> bool:
        """Says whether the schedule runs on so many devices."""
        rounds = max(1, self.pipeline.microbatches // n_ranks)
        in_rounds = self.pipeline.name not in (INTERLEAVED, ZERO_BUBBLE)
        return 1 <= n_ranks <= self.most_ranks and (in_rounds or self.pipeline.microbatches % rounds == 0)

    def stages(self, cuts: Cuts) -> Stages:
        """Makes the placement of a plan."""
        recomputed = tuple(stage for stage, again in enumerate(cuts.recomputed) if again)
        devices = np.array(cuts.ranks * (len(cuts.first) // len(cuts.ranks)))
        return self.chain.stages(np.array(cuts.first), devices, recomputed)

    def score_cuts(self, cuts: Cuts, *, until_s: float = np.inf) -> tuple[float, float]:
        """Simulates a plan, unless it was before; keeps it if it is the best, with the least recomputation.

        Args:
            until_s: longest step that is of interest; beyond it, the memory is not found.

        Returns:
            Bytes over the memory limits, infinite where they are not found, and step time in seconds,
            infinite where no step ends.
        """
        self.spend(1)
        known, began = self._scores.get(cuts), self.elapsed_s
        if known is not None and (known[OVER_BYTES] < np.inf or known[TOTAL_S] > until_s):
            return known
        stages = self.stages(cuts)
        score = self._scores[cuts] = self.pipelined.score(stages, until_s=until_s)
        self._most_s = max(DECAY * self._most_s, self.elapsed_s - began)
        if score[TOTAL_S] > until_s:
            return score
        over_bytes, total_s = score
        self.memory_binds |= over_bytes > 0
        again = sum(cuts.recomputed)
        if self.cuts is None or (score, again) < (self.best_score, sum(self.cuts.recomputed)):
            self.cuts = cuts
        self.keep(stages.device_of, total_s, over_bytes)
        return score

    def continued(self, budget: Budget) -> PipelineSearch:
        """Makes a search that goes on from here, within a budget for all that both of them spend."""
        search = copy(self)
        search.budget = budget
        return search

    def search_actions(self, rng: np.random.Generator) -> None:
        """Searches the order of the actions of the best plan with what is left of the budget."""
        assert self.cuts is not None, "a placer scores at least one plan"
        stages, began = self.stages(self.cuts), self.progress

        def score(actions: tuple[str, ...], until_s: float) -> tuple[float, float]:
            self.spend(1)
            found = self.pipelined.score(replace(stages, actions=actions), until_s=until_s)
            if found < self.best_score:
                self.actions = actions
                self.keep(stages.device_of, found[TOTAL_S], found[OVER_BYTES])
            return found

        def progress() -> float:
            return (self.progress - began) / (1 - began) if self.left else 1.0

        words = starts(len(stages.devices), self.pipeline.microbatches)
        anneal_orders(score, progress, words, self.problem.cluster.memory_bytes.mean(), rng)

    def pipeline_result(self) -> PipelineResult:
        """Makes the outcome of the run."""
        found = self.result()
        assert self.cuts is not None, "a placer scores at least one plan"
        stages = replace(self.stages(self.cuts), actions=self.actions)
        step = self.pipelined.simulate(stages)
        spent = (found.evaluations, found.wall_s, found.cpu_s)
        return PipelineResult(self.cuts, stages, step, *spent)


PipelineStrategy = Callable[[PipelineSearch, np.random.Generator], None]
"""Scores plans until it has no more to try or the budget ends."""

S = TypeVar("S", bound=PipelineStrategy)


@dataclass(frozen=True)
class PipelinePlacer:
    """A named strategy for pipelines.

    Attributes:
        uses_rng: whether another seed may give another plan.
    """

    name: str
    strategy: PipelineStrategy
    uses_rng: bool

    def place(self, pipelined: PipelinedProblem, budget: Budget, rng: np.random.Generator) -> PipelineResult:
        """Finds the best plan within a budget.

        Raises:
            PipelineError: the cluster or the graph cannot run the pipeline.
        """
        searches_actions = pipelined.pipeline.name == SEARCHED
        search = PipelineSearch(pipelined, budget.shared(1 / FOR_CUTS) if searches_actions else budget)
        self.strategy(search, rng)
        if searches_actions:
            search = search.continued(budget)
            search.search_actions(rng)
        return search.pipeline_result()


def place_pipeline(
    name: str, pipelined: PipelinedProblem, budget: Budget, rng: np.random.Generator | None = None
) -> PipelineResult:
    """Finds the best plan of a placer of pipelines, by its name."""
    return PIPELINE_PLACERS[name].place(pipelined, budget, rng or np.random.default_rng(0))


MODULES = ("annealing", "equal", "pipedream")
PIPELINE_PLACERS = Registry[PipelinePlacer](
    "placer of pipelines", PlacerError, [f"agent.placers.pipeline.{module}" for module in MODULES]
)
"""Every placer of pipelines, by name; a new module is added to `MODULES`."""


def pipeline_placer(name: str, *, uses_rng: bool = False) -> Callable[[S], S]:
    """Registers a strategy as the placer of pipelines `name`.

    Raises:
        PlacerError: the name is taken.
    """

    def register(strategy: S) -> S:
        PIPELINE_PLACERS.register(name, PipelinePlacer(name, strategy, uses_rng), strategy.__module__)
        return strategy

    return register
