"""The placements that `improve` starts from: a placer's, or the best of several placers'."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from agent.placers.base import PLACERS, Budget, SearchState
from agent.policy.mdp_config import BEST, SINGLE, MdpConfig
from envs.placement.generator import Start, on_fastest_device
from envs.problem import Problem
from graphs.system.array_types import IntArray


def episode_arguments(config: MdpConfig) -> dict[str, Any]:
    """Makes the fields of `EpisodeSettings` that a decision process decides, by name.

    Raises:
        PlacerError: `start` is no placer without randomness.
    """
    return asdict(config) | {"start": start_of(config.start)}


def start_names() -> list[str]:
    """Names of all starts: `best`, and the heuristics."""
    return [BEST, *(name for name, placer in PLACERS.items() if placer.is_start)]


@cache
def start_of(placer: str) -> Start:
    """Makes a start from a heuristic, or from the best of them; found once for each problem that is alive.

    Args:
        placer: one of `start_names`.

    Raises:
        PlacerError: an unknown name.
    """
    if placer == SINGLE:
        return on_fastest_device
    names = start_names()[1:] if placer == BEST else [placer]
    placements: WeakKeyDictionary[Problem, IntArray] = WeakKeyDictionary()

    def place(problem: Problem) -> IntArray:
        if problem not in placements:
            search, rng = SearchState(problem, Budget(1_000)), np.random.default_rng(0)
            for name in names:
                PLACERS[name].strategy(search, rng)
            assert search.best is not None
            placements[problem] = search.best
        return placements[problem]

    return place
