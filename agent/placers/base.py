"""The interface of a placer, and the registries of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, TypeVar

import numpy as np

from agent.placers.state import BATCH, Budget, Leader, PlacementResult, PlacerError, SearchState, Strategy
from envs.objective import PIPELINE, STEP, Objective
from envs.problem import Problem
from graphs.system.registry import Registry

__all__ = [
    "BATCH",
    "PIPELINE_PLACERS",
    "PLACERS",
    "PLACERS_OF",
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
SEARCHES = {STEP: "agent.placers.state:SearchState", PIPELINE: "agent.pipeline.search:PipelineSearch"}
"""Class of the searches of each kind of objective, which is loaded when one begins."""


@dataclass(frozen=True)
class Placer:
    """A named strategy for a kind of objective; `place` may be called any number of times.

    Attributes:
        uses_rng: another seed may give another placement.
        stands_alone: searches that begin with the placements of heuristics leave it out.
        needs: package of an extra, which has the name of the placer; empty = none.
        guided: makes its strategy of a policy and an order to visit the ops in; None = it learned nothing.
        is_hybrid: heuristics and annealing place too, beside the policy.
        kind: kind of the objective, `step` or `pipeline`.
    """

    name: str
    strategy: Strategy
    uses_rng: bool = False
    stands_alone: bool = False
    needs: str = ""
    guided: Callable[[Any, str], Strategy] | None = None
    is_hybrid: bool = False
    kind: str = STEP

    @property
    def is_search(self) -> bool:
        """Says whether it is no heuristic: it draws, learned, or takes long."""
        return self.uses_rng or self.stands_alone

    @property
    def is_start(self) -> bool:
        """Says whether searches begin with what it finds."""
        return not self.is_search

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
        return replace(self, strategy=self.guided(policy, order), uses_rng=self.draws(order))

    def place(
        self, objective: Objective | Problem, budget: Budget, rng: np.random.Generator
    ) -> PlacementResult:
        """Finds the best placement within a budget; keeps colocation and, if possible, memory limits.

        Args:
            objective: time to be made short; of a problem, its step.

        Raises:
            PlacerError: the placer needs a package that is not installed, or a policy, or is for another
                kind of objective.
            PipelineError: the cluster or the graph cannot run the pipeline.
        """
        self.check_installed()
        objective = Objective(objective) if isinstance(objective, Problem) else objective
        if objective.kind != self.kind:
            raise PlacerError(f"placer '{self.name}' is for a {self.kind}, not for a {objective.kind}")
        search: type[SearchState] = resolve_name(SEARCHES[self.kind])
        try:
            return search.place(self.strategy, objective, budget, rng)
        except ModuleNotFoundError as error:
            lacking = f"placer '{self.name}' needs the package {error.name}, which is not installed here"
            raise PlacerError(f"{lacking}; install it, or use another placer") from None


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
)
LEARNED = ("agent.policy.placers", "agent.policy.auto")
PIPELINE_MODULES = ("annealing", "equal", "pipedream")


def _registry(modules: Iterable[str]) -> Registry[Placer]:
    return Registry[Placer]("placer", PlacerError, tuple(modules), group="placewalk.placers")


PLACERS = _registry([*(f"agent.placers.{module}" for module in MODULES), *LEARNED])
"""Every placer of steps by name; a new module is added to `MODULES`."""
PIPELINE_PLACERS = _registry(f"agent.pipeline.{module}" for module in PIPELINE_MODULES)
"""Every placer of pipelines by name; they are loaded when one is asked for."""
PLACERS_OF = {STEP: PLACERS, PIPELINE: PIPELINE_PLACERS}


def names_of(kind: str, *, learned: bool | None = None) -> list[str]:
    """Lists the placers of a kind of objective: all, or those that need a policy or none."""
    return [name for name, placer in PLACERS_OF[kind].items() if learned in (None, placer.is_learned)]


def placer(
    name: str,
    *,
    places: Iterable[str] = (STEP,),
    uses_rng: bool = False,
    stands_alone: bool = False,
    needs: str = "",
) -> Callable[[S], S]:
    """Registers a strategy as the placer `name`.

    Args:
        places: kinds of objectives that the strategy is for.
        uses_rng, stands_alone, needs: see `Placer`.

    Raises:
        PlacerError: the name is taken.
    """

    def register(strategy: S) -> S:
        for kind in places:
            entry = Placer(name, strategy, uses_rng, stands_alone, needs, kind=kind)
            PLACERS_OF[kind].register(name, entry, strategy.__module__)
        return strategy

    return register
