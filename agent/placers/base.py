"""The interface of a placer, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

from agent.placers.state import (
    BATCH,
    Budget,
    Leader,
    PlacementResult,
    PlacerError,
    SearchState,
    Strategy,
    best_of,
)
from envs.objective import PIPELINE, STEP, Objective
from envs.problem import Problem
from graphs.system.registry import Registry

__all__ = [
    "BATCH",
    "PLACERS",
    "Budget",
    "Leader",
    "PlacementResult",
    "Placer",
    "PlacerError",
    "SearchState",
    "Strategy",
    "names_of",
    "placer",
]

S = TypeVar("S", bound=Strategy)


@dataclass(frozen=True)
class Placer:
    """A named strategy for each kind of objective; `place` may be called any number of times.

    Attributes:
        strategies: strategy for each kind of objective that it places, `step` or `pipeline`.
        uses_rng: whether another seed may give another placement.
        stands_alone: whether searches that begin with what heuristics find leave it out.
        needs: package of an extra, which has the name of the placer; empty = none.
        guided: makes its strategy of a policy and an order to visit the ops in; None = it learned nothing.
        is_hybrid: whether heuristics and annealing place too, beside the policy.
    """

    name: str
    strategies: Mapping[str, Strategy]
    uses_rng: bool = False
    stands_alone: bool = False
    needs: str = ""
    guided: Callable[[Any, str], Strategy] | None = None
    is_hybrid: bool = False

    @property
    def is_search(self) -> bool:
        """Says whether it is no heuristic: it draws, learned, or takes long."""
        return self.uses_rng or self.stands_alone

    @property
    def is_start(self) -> bool:
        """Says whether searches begin with what it finds."""
        return STEP in self.strategies and not self.is_search

    @property
    def is_learned(self) -> bool:
        """Says whether it needs a policy."""
        return self.guided is not None

    @property
    def is_installed(self) -> bool:
        """Says whether the package that it needs is there."""
        return not self.needs or find_spec(self.needs) is not None

    def draws(self, order: str) -> bool:
        """Says whether another seed may give another placement, if a policy visits the ops in an order."""
        return self.uses_rng or order == "random"

    def check_installed(self) -> None:
        """Checks that the package that it needs is there; else it is a PlacerError."""
        if not self.is_installed:
            install = f"run pip install 'placewalk[{self.name}]'"
            raise PlacerError(f"placer '{self.name}' needs {self.needs}; {install}, or use another")

    def with_policy(self, policy: Any, order: str) -> Placer:
        """Makes the placer that decides with a policy, which visits the ops in an order."""
        assert self.guided is not None, "a placer that needs a policy"
        return replace(self, strategies={STEP: self.guided(policy, order)}, uses_rng=self.draws(order))

    def place(
        self, objective: Objective | Problem, budget: Budget, rng: np.random.Generator
    ) -> PlacementResult:
        """Finds the best placement within a budget; keeps colocation and, if possible, memory limits.

        Args:
            objective: what is to be made short; of a problem, its step.

        Raises:
            PlacerError: the placer needs a package that is not installed, or a policy.
            PipelineError: the cluster or the graph cannot run the pipeline.
        """
        self.check_installed()
        layouts = (Objective(objective) if isinstance(objective, Problem) else objective).layouts()
        results = [self._place(each, budget.shared(len(layouts)), rng) for each in layouts]
        return results[0] if len(results) == 1 else best_of(results)

    def _place(self, objective: Objective, budget: Budget, rng: np.random.Generator) -> PlacementResult:
        search = SearchState(objective, budget)
        try:
            self.strategies[search.objective.kind](search, rng)
        except ModuleNotFoundError as error:
            lacking = f"placer '{self.name}' needs the package {error.name}, which is not installed here"
            raise PlacerError(f"{lacking}; install it, or use another placer") from None
        return search.result()


MODULES = (
    "heuristics.fill",
    "heuristics.list_scheduling",
    "heuristics.single",
    "search.annealing",
    "heuristics.contiguous",
    "exact.solver",
    "heuristics.m_sct",
    "heuristics.metis",
    "search.refine",
    "search.rollout",
    "heuristics.by_rule",
    "pipeline.equal",
    "pipeline.pipedream",
)
LEARNED = ("agent.policy.placers", "agent.policy.auto")
PLACERS = Registry[Placer](
    "placer",
    PlacerError,
    [*(f"agent.placers.{module}" for module in MODULES), *LEARNED],
    group="placewalk.placers",
)
"""Every placer by name; a new module is added to `MODULES`."""


def names_of(kind: str, *, learned: bool | None = None) -> list[str]:
    """Lists the placers of a kind of objective: all, or those that need a policy or none."""
    return [
        name
        for name, each in PLACERS.items()
        if kind in each.strategies and learned in (None, each.is_learned)
    ]


def placer(
    name: str,
    *,
    places: Iterable[str] = (STEP,),
    pipeline: Strategy | None = None,
    uses_rng: bool = False,
    stands_alone: bool = False,
    needs: str = "",
) -> Callable[[S], S]:
    """Registers a strategy as the placer `name`.

    Args:
        places: kinds of objectives that the strategy is for.
        pipeline: strategy for pipelines, if it is another one.
        uses_rng, stands_alone, needs: as of `Placer`.

    Raises:
        PlacerError: the name is taken.
    """

    def register(strategy: S) -> S:
        strategies: dict[str, Strategy] = dict.fromkeys(places, strategy)
        strategies |= {PIPELINE: pipeline} if pipeline else {}
        entry = Placer(name, strategies, uses_rng, stands_alone, needs)
        PLACERS.register(name, entry, strategy.__module__)
        return strategy

    return register
