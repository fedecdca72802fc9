"""The gymnasium environment: one op a step, one device an action.

`tests/specification/episode.py` and `observation.py` define it in plain Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType, NoneType
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.placement.episodes import ENDED, EpisodeBatch, EpisodeSettings
from envs.placement.generator import Beginning, MdpError, Uniform
from envs.placement.observation.features import FEATURE_BOUND, N_DEVICE_FEATURES
from envs.placement.render import RENDER_MODES, draw
from graphs.system.array_types import IntArray
from graphs.system.errors import checked

if TYPE_CHECKING:
    from envs.problem import Problem

Observations = dict[str, NDArray[Any]]


def observation_space(n_problems: int, max_ops: int, max_devices: int) -> spaces.Dict:
    """Returns the space of the observations of `PlacementEnv`, of one size for all problems."""
    last_problem, last_op = max(n_problems - 1, 1), max(max_ops - 1, 1)  # equal bounds make gymnasium warn
    return spaces.Dict(
        {
            "problem": spaces.Box(0, last_problem, (1,), np.int64),
            "op": spaces.Box(0, last_op, (1,), np.int64),
            "devices": spaces.Box(
                -FEATURE_BOUND, FEATURE_BOUND, (max_devices * N_DEVICE_FEATURES,), np.float32
            ),
            "mask": spaces.MultiBinary(max_devices),
        }
    )


class PlacementEnv(gym.Env[Observations, np.int64]):
    """Asks for a device for one op after the other, in one episode at a time.

    Plain SB3 learns from it at about 340 decisions per second; train on `PlacementVecEnv`, which steps many
    episodes together.

    Observation, a dictionary:

    - `problem`, `op`: indices of the problem and of the op at hand, int64 (1,).
    - `devices`: features of each device in turn, float32 (max_devices * N_DEVICE_FEATURES,). Their names and
      units are in `observation/features.py`. Devices that the problem lacks are zeros.
    - `mask`: 1 = the device may be chosen, int8 (max_devices,).

    Action: index of the device of the op at hand, and of all that is colocated with it, int.

    Reward: minus the growth of the step time of what is placed, in step times of the fastest single device.
    The return is -step_time in `construct` and first - last step_time in `improve`. Out of memory, an episode
    loses `OVERFLOW_PENALTY` and the share of memory that is lacking, or `INFEASIBLE_PENALTY`, at its end.

    Termination: all ops are visited, or no device has free memory for the op at hand. It never truncates.

    Info: `result`, an `EpisodeResult`, after the last step; nothing before.

    It is an `EpisodeBatch` of one episode. `NamedPlacementEnv` says how `gymnasium.make` makes it from names.

    Args:
        problems: graphs on clusters.
        generator: draws the problem and the order of each episode; by default, whatever came before.
        render_mode: "ansi" or "rgb_array".
        settings: fields of `EpisodeSettings`.

    Raises:
        MdpError, InfeasibleError, OrderError: as `EpisodeBatch`.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        generator: Uniform | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        if render_mode not in (None, *RENDER_MODES):
            raise MdpError(f"unknown render_mode '{render_mode}'; use one of {', '.join(RENDER_MODES)}")
        self._batch = EpisodeBatch(problems, 1, EpisodeSettings.of(settings), incremental=False)
        self._generator, self.render_mode = generator or Uniform(), render_mode
        checked(MdpError, "generator.draw", getattr(self._generator, "draw", None), MethodType)
        space = observation_space(len(problems), self._batch.max_ops, self._batch.max_devices)
        self.observation_space = cast("gym.Space[Observations]", space)
        self.action_space = spaces.Discrete(self._batch.max_devices)

    @property
    def problem(self) -> Problem:
        """The problem that the episode is over."""
        return self._batch.problem_of(0)

    @property
    def device_of(self) -> IntArray:
        """Devices decided so far, int (n_ops,); -1 = not yet."""
        return self._batch.device_of(0)

    @property
    def problems(self) -> list[Problem]:
        """The problems that episodes are over."""
        return self._batch.problems

    @property
    def orders(self) -> list[str]:
        """The orders that episodes may visit the ops in."""
        return self._batch.orders

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begins an episode.

        Args:
            seed: seed of the draws of problems and orders.
            options: fields of `Beginning` that are not to be drawn: `problem`, `order`, `seed`.

        Raises:
            MdpError: an unknown option, or one that is no index or seed.
        """
        super().reset(seed=checked(MdpError, "seed", seed, int, NoneType, least=0))
        options = checked(MdpError, "options", options or {}, Mapping)
        drawn = self._generator.draw(len(self.problems), len(self._batch.orders), self.np_random)
        if unknown := [key for key in options if key not in Beginning._fields]:
            raise MdpError(f"unknown option '{unknown[0]}' of reset; use {', '.join(Beginning._fields)}")
        problem, order, order_seed = drawn._replace(**options)
        rng = np.random.default_rng(checked(MdpError, "option seed", order_seed, int, least=0))
        self._batch.begin(0, problem, order, rng)
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        """Puts the op at hand, and what is colocated with it, on device `action`.

        Returns:
            Observation, reward, whether the episode is done, False, and an `info` that holds `result` (an
            `EpisodeResult`) where it is done.

        Raises:
            MdpError: a device that is not offered, or no episode under way.
        """
        if self._batch.done[0]:
            raise MdpError(ENDED)
        reward, done = self._batch.step(np.asarray(action).ravel())
        info = {"result": self._batch.result(0)} if done[0] else {}
        return self._observation(), float(reward[0]), bool(done[0]), False, info

    def render(self) -> Any:
        """Draws the partial placement, as `render_mode` says; returns None without one."""
        return draw(self._batch, 0, self.render_mode) if self.render_mode else None

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns which devices have free memory for the op at hand, bool (max_devices,)."""
        return np.asarray(self._batch.observation.mask[0] > 0)

    def _observation(self) -> Observations:
        seen = self._batch.observation._asdict()
        return {name: rows[0].flatten() for name, rows in seen.items()}
