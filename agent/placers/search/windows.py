"""Windows: parts of a placement that the rule of `rollout` decides again, kept if the step gets shorter."""

from __future__ import annotations

from functools import partial

import numpy as np

from agent.placers.base import Leader, SearchState
from agent.placers.search.annealing import PLANNING
from agent.placers.search.rollout import RolloutRule
from agent.placers.search.walks import TAKE_BEST
from envs.objective import OVER_BYTES, TOTAL_S
from envs.placement.episodes import EpisodeBatch
from envs.placement.generator import MdpError
from envs.problem import InfeasibleError
from graphs.system.array_types import IntArray

WINDOW, STRIDE = 64, 32
"""Visits that are decided again at a time, and visits from one window to the next."""
SHARE = 0.3
"""Share of the budget that is left for windows, before annealing. Tuned on large graphs that no test uses."""
LEAST_GAIN = 1e-3
"""Share of the step that a sweep over all windows gains, else it is the last."""


def decide_windows(search: SearchState, rng: np.random.Generator) -> None:
    """Decides windows of the best placement again, if that is within the memory, in a share of the budget.

    In a large graph with fast links, a shorter step needs many ops moved at once, which annealing seldom
    draws: a window moves them together.
    """
    if search.is_feasible and search.problem.n_devices > 1 and search.has_time(PLANNING):
        evaluations = max(int(SHARE * search.left), 1)
        strategy = partial(_sweep, leader=search.leaders[0])
        search.run_alone(strategy, rng, within=evaluations, within_s=SHARE * search.seconds_left)


def _sweep(search: SearchState, rng: np.random.Generator, leader: Leader) -> None:
    """Sweeps over all windows of a placement, again while that gains enough."""
    search.keep(leader.device_of, leader.score[TOTAL_S], leader.score[OVER_BYTES])
    try:
        windows = Windows(search, rng)
    except (InfeasibleError, MdpError):  # nothing to decide, or no memory for it
        return
    before_s = np.inf
    while search.left and search.best_score[TOTAL_S] < (1.0 - LEAST_GAIN) * before_s:
        before_s = search.best_score[TOTAL_S]
        windows.sweep()


class Windows:
    """Episodes that decide windows of the best placement of a search.

    The first follows the placement to the beginning of a window. The second goes on with the best device at
    each op, the third with drawn ones. What they did not come to stays as it was.
    """

    def __init__(self, search: SearchState, rng: np.random.Generator) -> None:
        self._search, self._rng = search, rng
        self._batch = EpisodeBatch([search.problem], 3)
        self._rule = RolloutRule(self._batch)

    def sweep(self) -> None:
        """Decides all windows again, from the first visit on, until the budget ends."""
        self._batch.begin(0, 0, 0, self._rng)
        visit, n_visits = 0, self._batch.n_visits(0)
        while visit < n_visits and self._search.left:
            candidates = self._decided()
            is_new = (candidates != self._search.best).any(axis=1)
            self._search.score(candidates[is_new])
            assert self._search.best is not None
            visit = self._batch.follow(0, self._search.best, visit + STRIDE)

    def _decided(self) -> IntArray:
        """Decides the window at hand; returns complete placements, int64 (2, n_ops)."""
        for episode in (1, 2):
            self._batch.fork(0, episode)
        draws = np.full((3, 1, WINDOW), TAKE_BEST)
        draws[2] = self._rng.random((1, WINDOW))
        self._rule.decide(np.array([0, WINDOW, WINDOW]), draws)
        devices_of = np.stack([self._batch.device_of(episode) for episode in (1, 2)])
        return np.where(devices_of < 0, self._search.best, devices_of)
