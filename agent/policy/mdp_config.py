"""The decision process of a policy: it constructs a placement, or improves one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from agent.placers.base import PLACERS, Budget, SearchState
from envs.mdp.episodes import Start, on_fastest_device
from envs.problem import Problem
from graphs.op_graph import IntArray

SINGLE, BEST = "single", "best"
"""Starts of `improve`: everything on the device that is fastest alone, and the best that heuristics find."""


@dataclass(frozen=True)
class MdpConfig:
    """Settings of a decision process, as `EpisodeBatch` and the environments take them.

    Attributes:
        mdp: `construct` or `improve`; the other fields are for the latter.
        passes: how often every placement unit is visited.
        start: placer whose placement is improved, or `best`.
    """

    mdp: str = "construct"
    passes: int = 2
    start: str = SINGLE

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> MdpConfig:
        """Reads the fields from the settings of a training, which hold others too."""
        return cls(**{item.name: settings[item.name] for item in fields(cls) if item.name in settings})

    @property
    def improves(self) -> bool:
        """Whether a complete placement exists from the start."""
        return self.mdp == "improve"

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `EpisodeBatch` and the environments."""
        return {"mdp": self.mdp, "passes": self.passes, "start": start_of(self.start)}

    def evaluations(self, problem: Problem) -> int:
        """Counts the placements that an episode simulates: every other device of a unit, at each visit."""
        if not self.improves:
            return 0
        return self.passes * len(problem.graph.units) * (problem.n_devices - 1)

    def within(self, problem: Problem, evaluations: int | None) -> MdpConfig | None:
        """Makes a copy with as many passes as a budget allows; None if it allows none."""
        one = replace(self, passes=1).evaluations(problem)
        if evaluations is None or one == 0:
            return self
        passes = min(self.passes, max(evaluations, 0) // one)
        return replace(self, passes=passes) if passes else None


@cache
def start_of(placer: str) -> Start:
    """Makes a start from a placer without randomness, or from the best of them; a problem's is found once.

    Args:
        placer: name of the placer, or `best`.

    Raises:
        PlacerError: an unknown name.
    """
    if placer == SINGLE:
        return on_fastest_device
    names = [name for name, each in PLACERS.items() if not each.uses_rng] if placer == BEST else [placer]
    found: dict[int, tuple[Problem, IntArray]] = {}

    def place(problem: Problem) -> IntArray:
        if id(problem) not in found:
            search, rng = SearchState(problem, Budget(1_000)), np.random.default_rng(0)
            for name in names:
                PLACERS[name].strategy(search, rng)
            assert search.best is not None
            found[id(problem)] = (problem, search.best)
        return found[id(problem)][1]

    return place
