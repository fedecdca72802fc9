"""The environment as training uses it: many episodes stepped by one numba loop, as an SB3 VecEnv."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from envs.mdp.env_share import EnvShare
from envs.mdp.episodes import EpisodeBatch, EpisodeResult, MdpError, Start, on_fastest_device
from envs.mdp.names import CONSTRUCT, FREE_MEMORY
from envs.mdp.placement_env import observation_space
from envs.mdp.transition import INFEASIBLE_PENALTY
from envs.problem import Problem
from graphs.system.array_types import IntArray

StepTimer: TypeAlias = Callable[[Problem, IntArray], float]
"""Gives the seconds of the step under a placement, int (n_ops,); infinite where it cannot be run."""


class BatchedPlacementEnv(VecEnv):
    """Runs `n_envs` episodes of `PlacementEnv` in step; after each that is done, one on another problem.

    Problems are drawn in rounds: each comes up, in a random sequence, before any comes up again. So larger
    graphs get more decisions, but no more episodes. The `info` of a last step holds `result` (an
    `EpisodeResult`), `episode` and `terminal_observation`.

    Args:
        problems, orders, mdp, passes, start: as `PlacementEnv`.
        n_envs: number of episodes side by side.
        repeats: how often in a row a problem comes up in a round. Episodes over one problem that begin
            together stay together, so fewer graphs have to be encoded at a time.
        seed: seed of the draws of problems and orders.
        threads: number of threads that share the episodes of a step.
        step_timer: measures the step under a complete placement; the return of an episode is minus that, in
            single-device step times. Without it the simulated step time counts.
        share: which episodes of a larger set these are, if other processes run the rest. All together are
            those of one environment that runs the whole set.

    Raises:
        MdpError, InfeasibleError, OrderError: as `EpisodeBatch`; and a `step_timer` in another process than
            `construct`.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        n_envs: int,
        *,
        orders: Sequence[str] = ("topo",),
        mdp: str = "construct",
        passes: int = 2,
        start: Start = on_fastest_device,
        mask: str = FREE_MEMORY,
        memory_penalty: float = 1.0,
        repeats: int = 1,
        seed: int = 0,
        threads: int = 1,
        step_timer: StepTimer | None = None,
        share: EnvShare | None = None,
    ) -> None:
        if step_timer is not None and mdp != CONSTRUCT:
            raise MdpError(f"measured step times need the mdp {CONSTRUCT}, not {mdp}")
        self._step_timer, self._penalty = step_timer, memory_penalty * INFEASIBLE_PENALTY
        self._share = share or EnvShare.whole(n_envs)
        self._batch = EpisodeBatch(
            problems,
            n_envs,
            orders=orders,
            mdp=mdp,
            passes=passes,
            start=start,
            mask=mask,
            memory_penalty=memory_penalty,
            threads=threads,
        )
        self._rng = np.random.default_rng(seed)
        self._repeats = repeats
        self._round: list[int] = []
        self._actions = np.zeros(n_envs, dtype=np.int64)
        self._started_s = time.time()
        self.render_mode = None
        super().__init__(
            n_envs,
            observation_space(len(problems), self._batch.max_ops, self._batch.max_devices),
            spaces.Discrete(self._batch.max_devices),
        )

    @property
    def problems(self) -> list[Problem]:
        """The problems that episodes are over."""
        return self._batch.problems

    def reset(self) -> VecEnvObs:
        """Restarts every episode."""
        for number in range(self._share.total):
            self._begin(number)
        return self._observation()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Stores the decisions, a device per episode, int (n_envs,)."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Takes the stored decisions."""
        rewards, done = self._batch.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for number in np.flatnonzero(self._share.gather(done)):
            episode = self._own(int(number))
            if episode is not None:
                infos[episode], correction = self._ended(episode)
                rewards[episode] += correction
            self._begin(int(number))
        return self._observation(), rewards.astype(np.float32), done, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns the devices with free memory for the op at hand, bool (n_envs, max_devices)."""
        return self._batch.observation.mask.astype(bool)

    def state_dict(self) -> dict[str, Any]:
        """Returns what the next draws depend on, as JSON; episodes under way are not part of it."""
        return {"rng": self._rng.bit_generator.state, "round": list(self._round)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues the draws where `state_dict` left them; call `reset` afterwards."""
        self._rng.bit_generator.state = state["rng"]
        self._round = list(state["round"])

    def _ended(self, episode: int) -> tuple[dict[str, Any], float]:
        """The `info` of an episode's last step, and what its return changes by if it is measured."""
        result, correction = self._batch.result(episode), 0.0
        if self._step_timer is not None and result.fits:
            result, correction = self._measured(result, self._step_timer)
        seen = {name: rows[episode] for name, rows in self._observation().items()}
        returned = {"r": result.episode_return, "l": result.decisions, "t": time.time() - self._started_s}
        info = {"result": result, "episode": returned}
        return info | {"terminal_observation": seen, "TimeLimit.truncated": False}, correction

    def _measured(self, result: EpisodeResult, timer: StepTimer) -> tuple[EpisodeResult, float]:
        """Times the placement of an episode; returns its result, and what its return changes by."""
        problem = self.problems[result.problem]
        measured_s = timer(problem, result.device_of)
        if not math.isfinite(measured_s):
            failed = replace(
                result,
                step_time_s=math.nan,
                ratio_to_single=math.nan,
                fits=False,
                infeasible=True,
                episode_return=result.episode_return - self._penalty,
            )
            return failed, -self._penalty
        ratio = measured_s / problem.scale_s
        correction = result.ratio_to_single - ratio
        timed = replace(
            result,
            step_time_s=measured_s,
            ratio_to_single=ratio,
            episode_return=result.episode_return + correction,
        )
        return timed, correction

    def _own(self, number: int) -> int | None:
        """The index here of an episode of the whole set; None if another process runs it."""
        episode = number - self._share.first
        return episode if 0 <= episode < self.num_envs else None

    def _begin(self, number: int) -> None:
        """Begins an episode of the whole set; of one that another process runs, makes the draws alone."""
        if not self._round:
            self._round = self._rng.permutation(len(self.problems)).repeat(self._repeats).tolist()
        order = int(self._rng.integers(len(self._batch.orders)))
        problem, episode = self._round.pop(), self._own(number)
        if episode is None:
            self._batch.skip(problem, order, self._rng)
        else:
            self._batch.begin(episode, problem, order, self._rng)

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
        chosen: Iterable[int] = self._get_indices(indices)
        method: Callable[..., Any] = getattr(self, method_name)
        result = method(*args, **kwargs)
        return [result[index] for index in chosen]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Returns False for each environment: none is wrapped."""
        return [False] * len(list(self._get_indices(indices)))
