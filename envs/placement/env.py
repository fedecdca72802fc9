"""The gymnasium environment: one op a step, one device an action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.placement.episodes import EpisodeBatch, Start, on_fastest_device
from envs.placement.names import EVERY_DEVICE, FREE_MEMORY
from envs.placement.observation.features import FEATURE_BOUND, N_DEVICE_FEATURES
from envs.problem import Problem
from graphs.system.array_types import IntArray

Observations = dict[str, NDArray[Any]]


def observation_space(n_problems: int, max_ops: int, max_devices: int) -> spaces.Dict:
    """Returns the space of what a policy sees of the op at hand, of one size for all problems.

    `problem` and `op` are indices, `devices` holds `N_DEVICE_FEATURES` numbers for each device in turn, and
    `mask` marks the devices with free memory for the op's unit. Devices that a problem lacks are zeros.
    """
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

    The return of an episode is -step_time / scale in `construct`, and (first - last) / scale in `improve`;
    the scale is the fastest single device's step time. A placement that overflows a device costs
    `OVERFLOW_PENALTY` and the overflow more, and an op that no device has free memory for ends the episode.
    It is an `EpisodeBatch` of one episode, whose candidates are always simulated in full. `gymnasium.make`
    knows it as `placewalk/Placement-v0`, once `envs` is imported.

    Args:
        problems: graphs on clusters; one is drawn per episode unless `reset` names it.
        orders: names of traversal orders; one is drawn per episode.
        mdp: `construct` or `improve`; `passes` and `start` are for the latter.
        mask, memory_penalty: as of `EpisodeBatch`.

    Raises:
        MdpError, InfeasibleError, OrderError: as `EpisodeBatch`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - the type gymnasium declares

    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        orders: Sequence[str] = ("topo",),
        mdp: str = "construct",
        passes: int = 2,
        start: Start = on_fastest_device,
        mask: str = FREE_MEMORY,
        memory_penalty: float = 1.0,
    ) -> None:
        self._batch = EpisodeBatch(
            problems,
            1,
            orders=orders,
            mdp=mdp,
            passes=passes,
            start=start,
            mask=mask,
            memory_penalty=memory_penalty,
            incremental=False,
        )
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

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begins an episode.

        Args:
            seed: seed of the draws of problems and orders.
            options: `problem` and `order`, indices, where they are not to be drawn.
        """
        super().reset(seed=seed)
        named = options or {}
        counts = {"problem": len(self._batch.problems), "order": len(self._batch.orders)}
        drawn = {
            key: int(named[key] if key in named else self.np_random.integers(n)) for key, n in counts.items()
        }
        self._batch.begin(0, drawn["problem"], drawn["order"], self.np_random)
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        """Puts the op at hand, and what is colocated with it, on device `action`.

        Returns:
            Observation, reward, whether the episode is done, False, and an `info` that holds `result` (an
            `EpisodeResult`) where it is done.

        Raises:
            ValueError: a device without free memory for the op, or that the cluster lacks.
        """
        if int(action) not in np.flatnonzero(self.action_masks()):
            raise ValueError(
                f"device {action} has no free memory for the op at hand; use one that action_masks() marks, "
                f"or mask='{EVERY_DEVICE}' for algorithms that take no masks"
            )
        reward, done = self._batch.step(np.array([action]))
        info = {"result": self._batch.result(0)} if done[0] else {}
        return self._observation(), float(reward[0]), bool(done[0]), False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns which devices have free memory for the op at hand, bool (max_devices,)."""
        return np.asarray(self._batch.observation.mask[0] > 0)

    def _observation(self) -> Observations:
        batch = self._batch.observation
        return {
            "problem": batch.problem[0].copy(),
            "op": batch.op[0].copy(),
            "devices": batch.devices[0].ravel().copy(),
            "mask": batch.mask[0].copy(),
        }
