"""Many episodes in step with one another, as a VecEnv of stable-baselines3."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import MethodType, NoneType
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from envs.placement.env import observation_space
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.placement.generator import Beginning, MdpError, Rounds, Uniform
from envs.placement.render import RGB_ARRAY, draw
from envs.problem import Problem
from graphs.system.errors import checked


class PlacementVecEnv(VecEnv):
    """Runs `n_envs` episodes of `PlacementEnv` side by side; after each that ends, another one begins.

    Observations, actions and rewards are those of `PlacementEnv`, one row per place. The `info` of a last
    step holds `result` (an `EpisodeResult`), `episode` (as of SB3's `Monitor`) and `terminal_observation`.

    `step` takes one decision in every place. A learner with a compiled policy takes many decisions at a time:
    it calls `begin_rollout`, then `begin_episodes`, `batch.loop` and `end_episode` until it has them all.

    The n-th episodes of all places are drawn together, so that the episodes of a place do not depend on when
    the others end.

    Args:
        generator: draws problem and order of each episode; by default problems come up in rounds.
        render_mode: "rgb_array" for `get_images` and `render`.
        seed: seed of the draws.
        threads: number of threads that share the episodes of a step; results do not depend on it.
        settings: fields of `EpisodeSettings`, as `orders`, `mdp`, `mask` and `reward`.

    Attributes:
        batch: the episodes.
        problems, orders: problems and orders of the episodes; an observation has the index of its problem.
        waits: places whose episode has ended, and where none has begun since, bool (n_envs,).

    Raises:
        MdpError, InfeasibleError, OrderError: as `PlacementEnv`.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        n_envs: int,
        *,
        generator: Uniform | None = None,
        render_mode: str | None = None,
        seed: int | None = 0,
        threads: int = 1,
        **settings: Any,
    ) -> None:
        if render_mode not in (None, RGB_ARRAY):
            raise MdpError(f"unknown render_mode '{render_mode}'; use {RGB_ARRAY}")
        self.batch = EpisodeBatch(problems, n_envs, EpisodeSettings.of(settings), threads=threads)
        self.problems, self.orders = self.batch.problems, self.batch.orders
        self.render_mode = render_mode
        self._generator, self._began_s = generator or Rounds(), time.time()
        for method in ("draw", "restart"):
            checked(MdpError, f"generator.{method}", getattr(self._generator, method, None), MethodType)
        self._actions = np.zeros(n_envs, dtype=np.int64)
        space = observation_space(len(problems), self.batch.max_ops, self.batch.max_devices)
        super().__init__(n_envs, space, spaces.Discrete(self.batch.max_devices))
        self.seed(seed)
        self.restart()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds the draws of the episodes that begin from now on, which are those of a new environment."""
        rng = np.random.default_rng(checked(MdpError, "seed", seed, int, NoneType, least=0))
        self._rng, self._decision_rng = rng.spawn(2)
        self._generator.restart()
        return [seed] * self.num_envs

    def restart(self) -> None:
        """Gives all episodes up; others begin in their places."""
        self.beginnings: list[list[Beginning]] = []
        self._n_begun = np.zeros(self.num_envs, dtype=np.int64)
        self.waits = np.ones(self.num_envs, dtype=np.bool_)

    def reset(self) -> VecEnvObs:
        """Begins every episode anew."""
        self.restart()
        self.begin_episodes()
        return self._observation()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Stores the decisions, a device per episode, int (n_envs,)."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Takes the stored decisions."""
        rewards, done = self.batch.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for place in np.flatnonzero(done).tolist():
            seen = {name: rows[place] for name, rows in self._observation().items()}
            infos[place] = {**self.end_episode(place), "terminal_observation": seen}
        self.begin_episodes()
        return self._observation(), rewards.astype(np.float32), done, infos

    def begin_rollout(self, n_steps: int) -> NDArray[np.float64]:
        """Draws numbers from 0 to 1 that decide `n_steps` times in every place, (n_envs, n_steps)."""
        return np.ascontiguousarray(self._decision_rng.random((n_steps, self.num_envs)).T)

    def begin_episodes(self, among: NDArray[np.bool_] | None = None) -> list[int]:
        """Begins episodes in the places that wait, or in those among them, bool (n_envs,); returns these."""
        places: list[int] = np.flatnonzero(self.waits if among is None else self.waits & among).tolist()
        for place in places:
            number = int(self._n_begun[place])
            self._draw_beginnings(number + 1)
            drawn = self.beginnings[number][place]
            self.batch.begin(place, drawn.problem, drawn.order, np.random.default_rng(drawn.seed))
            self._n_begun[place] += 1
        self.waits[places] = False
        return places

    def end_episode(self, place: int) -> dict[str, Any]:
        """Marks a place whose episode is done as waiting; returns the `info` of the last step."""
        self.waits[place] = True
        result = self.batch.result(place)
        told = {"r": result.episode_return, "l": result.decisions, "t": time.time() - self._began_s}
        told["infeasible"] = not result.fits
        return {"result": result, "episode": told, "TimeLimit.truncated": False}

    def _draw_beginnings(self, n: int) -> None:
        """Draws until each place has `n` episodes since the last restart."""
        sizes = len(self.problems), len(self.batch.orders)
        while len(self.beginnings) < n:
            row = [self._generator.draw(*sizes, self._rng) for _ in range(self.num_envs)]
            self.beginnings.append(row)

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns the devices that each episode may choose, bool (n_envs, max_devices)."""
        return self.batch.observation.mask.astype(bool)

    def _observation(self) -> dict[str, NDArray[Any]]:
        seen = self.batch.observation._asdict()
        return {name: rows.reshape(self.num_envs, -1).copy() for name, rows in seen.items()}

    def get_images(self) -> Sequence[NDArray[np.uint8]]:
        """Draws the partial placement of every place, uint8 (height, width, 3)."""
        return [np.asarray(draw(self.batch, place, RGB_ARRAY)) for place in range(self.num_envs)]

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Returns the attribute, which all environments share, once per environment."""
        return [getattr(self, attr_name)] * len(self._places(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets the attribute for all environments, whatever the indices."""
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Returns the result of a method per environment; `action_masks` gives one mask each."""
        method: Callable[..., Any] = getattr(self, method_name)
        result = method(*args, **kwargs)
        return [result[place] for place in self._places(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Says that SB3's `Monitor` is there, as this environment gives its `info`, and no other wrapper."""
        return [issubclass(Monitor, wrapper_class)] * len(self._places(indices))

    def _places(self, indices: Any) -> list[int]:
        return np.atleast_1d(range(self.num_envs) if indices is None else indices).tolist()
