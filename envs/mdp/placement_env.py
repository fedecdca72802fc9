"""The gymnasium environment: one op a step, one device an action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.mdp.episodes import EpisodeBatch, Start, on_fastest_device
from envs.mdp.features import N_DEVICE_FEATURES
from envs.problem import Problem

FEATURE_BOUND = 1000.0
"""No device feature is larger: times are squashed by a logarithm, the rest are shares."""

Observations = dict[str, NDArray[Any]]


def observation_space(n_problems: int, max_ops: int, max_devices: int) -> spaces.Dict:
    """What the policy sees of the op at hand; small, and of one size for all problems.

    `problem` and `op` are indices, `devices` holds `N_DEVICE_FEATURES` numbers for each device in turn,
    `mask` marks the devices with room for the op. Devices a problem lacks are zeros.
    """
    return spaces.Dict(
        {
            "problem": spaces.Box(0, n_problems - 1, (1,), np.int64),
            "op": spaces.Box(0, max_ops - 1, (1,), np.int64),
            "devices": spaces.Box(
                -FEATURE_BOUND, FEATURE_BOUND, (max_devices * N_DEVICE_FEATURES,), np.float32
            ),
            "mask": spaces.MultiBinary(max_devices),
        }
    )


class PlacementEnv(gym.Env[Observations, np.int64]):
    """MdpConfig one graph at a time and asks for a device per op.

    The return of an episode is -step_time / scale in `construct`, and (first - last) / scale in `improve`;
    the scale is the fastest single device's step time. A placement that overflows a device costs
    `OVERFLOW_PENALTY` more, and an op without room ends the episode. This environment simulates every
    candidate in full: it is the specification that `BatchedPlacementEnv` is tested against.

    Args:
        problems: graphs on clusters; one is drawn per episode unless `reset` names it.
        orders: names of traversal orders; one is drawn per episode.
        mdp: `construct` or `improve`; `passes` and `start` are for the latter.

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
    ) -> None:
        self._batch = EpisodeBatch(
            problems, 1, orders=orders, mdp=mdp, passes=passes, start=start, incremental=False
        )
        space = observation_space(len(problems), self._batch.max_ops, self._batch.max_devices)
        self.observation_space = cast("gym.Space[Observations]", space)
        self.action_space = spaces.Discrete(self._batch.max_devices)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin an episode.

        Args:
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
        """Put the op at hand on device `action`.

        Raises:
            ValueError: a device without room or that the cluster lacks.
        """
        if int(action) not in np.flatnonzero(self.action_masks()):
            raise ValueError(
                f"device {action} has no room for the op at hand; use one that action_masks() marks"
            )
        reward, over = self._batch.step(np.array([action]))
        info = {"result": self._batch.result(0)} if over[0] else {}
        return self._observation(), float(reward[0]), bool(over[0]), False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which devices have room for the op at hand, bool (max_devices,)."""
        return np.asarray(self._batch.observation.mask[0] > 0)

    def _observation(self) -> Observations:
        seen = self._batch.observation
        return {
            "problem": seen.problem[0].copy(),
            "op": seen.op[0].copy(),
            "devices": seen.devices[0].ravel().copy(),
            "mask": seen.mask[0].copy(),
        }


gym.register(id="placewalk/Placement-v0", entry_point="envs.mdp.placement_env:PlacementEnv")
