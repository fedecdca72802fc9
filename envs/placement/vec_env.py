"""Many episodes in step with one another, as a VecEnv of stable-baselines3."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from envs.placement.env import observation_space
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem


class PlacementVecEnv(VecEnv):
    """Runs `n_envs` episodes of `PlacementEnv`; after each that is done, one on another problem.

    Problems are drawn in rounds: each comes up, in a random sequence, before any comes up again. The `info`
    of a last step holds `result` (an `EpisodeResult`), `episode` and `terminal_observation`.
    `train_agent.py` does without it: it decides in compiled loops. It serves other learners.

    Args:
        orders: names of traversal orders; one is drawn per episode.
        seed: seed of the draws of problems and orders.
        settings: further arguments of `EpisodeBatch`.

    Raises:
        MdpError, InfeasibleError, OrderError: as `PlacementEnv`.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        n_envs: int,
        *,
        orders: Sequence[str] = ("topo",),
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self._batch = EpisodeBatch(problems, n_envs, orders=orders, **settings)
        self._rng = np.random.default_rng(seed)
        self._round: list[int] = []
        self._actions = np.zeros(n_envs, dtype=np.int64)
        self._started_s = time.time()
        self.render_mode = None
        space = observation_space(len(problems), self._batch.max_ops, self._batch.max_devices)
        super().__init__(n_envs, space, spaces.Discrete(self._batch.max_devices))

    def reset(self) -> VecEnvObs:
        """Begins every episode anew."""
        for episode in range(self.num_envs):
            self._begin(episode)
        return self._observation()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Stores the decisions, a device per episode, int (n_envs,)."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Takes the stored decisions."""
        rewards, done = self._batch.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for episode in np.flatnonzero(done).tolist():
            infos[episode] = self._ended(episode)
            self._begin(episode)
        return self._observation(), rewards.astype(np.float32), done, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns the devices that each episode may choose, bool (n_envs, max_devices)."""
        return self._batch.observation.mask.astype(bool)

    def _ended(self, episode: int) -> dict[str, Any]:
        result = self._batch.result(episode)
        seen = {name: rows[episode] for name, rows in self._observation().items()}
        returned = {"r": result.episode_return, "l": result.decisions, "t": time.time() - self._started_s}
        return {
            "result": result,
            "episode": returned,
            "terminal_observation": seen,
            "TimeLimit.truncated": False,
        }

    def _begin(self, episode: int) -> None:
        if not self._round:
            self._round = self._rng.permutation(len(self._batch.problems)).tolist()
        order = int(self._rng.integers(len(self._batch.orders)))
        self._batch.begin(episode, self._round.pop(), order, self._rng)

    def _observation(self) -> dict[str, NDArray[Any]]:
        batch = self._batch.observation
        return {
            "problem": batch.problem.copy(),
            "op": batch.op.copy(),
            "devices": batch.devices.reshape(self.num_envs, -1).copy(),
            "mask": batch.mask.copy(),
        }

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Returns the attribute, which all environments share, once per environment."""
        return [getattr(self, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets the attribute for all environments, whatever the indices."""
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Returns the result of a method per environment; `action_masks` gives one mask each."""
        method: Callable[..., Any] = getattr(self, method_name)
        result = method(*args, **kwargs)
        return [result[index] for index in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Returns False for each environment: none is wrapped."""
        return [False] * len(list(self._get_indices(indices)))
