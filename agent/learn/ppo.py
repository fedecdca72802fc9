"""Maskable PPO of stable-baselines3 that learns to place, with rollouts in a compiled loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import HParam
from stable_baselines3.common.vec_env import VecEnv

from agent.learn.actor_critic import PlacementPolicy
from agent.learn.checkpoints import (
    Checkpoint,
    Stateful,
    capture,
    check_policy,
    content_of,
    read_checkpoint,
    restore,
    restore_callbacks,
    restoring,
)
from agent.learn.config import ConfigError, TrainConfig
from agent.learn.metrics import ENTROPY_WEIGHT, HPARAM_METRICS, INFEASIBLE, PROGRESS, SPEED, UPDATES
from agent.learn.rollout import Ended, collect, critic_arrays
from agent.learn.rollout_buffer import PerGraphRolloutBuffer
from agent.learn.workers import SOLO, WorkerGroup, average_gradients
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.serialization import PolicyCard, describe_seen, load_policy, policy_files
from agent.policy.shape import current_shape
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from graphs.system.errors import checked
from graphs.system.json_files import first_repeated, write_all_atomic
from graphs.system.performance import bf16_matmul

DEFAULTS = TrainConfig()
TRAINING = "training.safetensors"
"""File beside those of the policy that `PlacementPPO.save` writes, to continue its training from."""


FIELDS = {name: name for name in ("learning_rate", "n_steps", "batch_size", "gae_lambda", "max_grad_norm")}
FIELDS |= {"n_epochs": "epochs", "clip_range": "clip", "ent_coef": "entropy", "vf_coef": "value_weight"}
"""Fields of `TrainConfig` by the names that they have as arguments of `MaskablePPO`."""


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """Returns the arguments of `MaskablePPO` that a configuration has."""
    fixed = {"gamma": 1.0, "normalize_advantage": False}
    return {name: getattr(config, field) for name, field in FIELDS.items()} | fixed


class PlacementPPO(MaskablePPO):  # type: ignore[misc]
    """Maskable PPO over undiscounted returns: a return is minus the step time, however long the episode.

    ```
    model = PlacementPPO("PlacementPolicy", PlacementVecEnv(problems, 64))
    model.learn(1_000_000, callback=[...])
    ```

    An update learns from a share of the decisions. On a `PlacementVecEnv`, it collects a rollout in one
    compiled loop. It then calls the callbacks once for each step, as SB3 does: with `num_timesteps`, and
    `actions`, `rewards`, `dones` and `infos` in `locals`. On another environment that has `problems`, as a
    `PlacementEnv` or a `VecMonitor`, it uses SB3's own loop, which is slower.

    The numbers of an update are logged as one row, after the callbacks' `on_rollout_start`, so that what they
    measure of the policy after the update is in it.

    `learn` begins with new episodes. With a seed they depend on it and on the number of updates alone, so
    that `load` and `learn(..., reset_num_timesteps=False)` continue as the saved model would have.

    Args:
        policy: "PlacementPolicy"; `policy_kwargs` are those of the class of that name.
        advantage, share: see `PerGraphRolloutBuffer`.
        group: workers that train the policy together, each on minibatches of its own; gradients are averaged,
            and clipped then.
        arguments: see `MaskablePPO`, and `ent_coef` may be a schedule. The defaults are those of
            `train_agent.py`, without its schedules.

    Attributes:
        updates: number of updates made.
        ending: reason for which a callback ends the training before the next rollout, which it sets in
            `on_rollout_start`; empty = it does not.
        time_remaining: fraction of the time limit that remains, 0 to 1; schedules follow it where it is less
            than that of the decisions.

    Raises:
        ConfigError: an unknown argument, one of another type or out of range, or an `env` without problems.
    """

    policy_aliases: ClassVar[dict[str, type[PlacementPolicy]]] = {"PlacementPolicy": PlacementPolicy}

    def __init__(
        self,
        policy: str | type[PlacementPolicy],
        env: Any,
        *,
        advantage: str = DEFAULTS.advantage,
        share: float = DEFAULTS.share,
        group: WorkerGroup = SOLO,
        policy_kwargs: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        if not isinstance(env, str):
            _problems_of(env)
        checked(ConfigError, "policy", policy, str, type)
        checked(ConfigError, "policy_kwargs", policy_kwargs, Mapping, NoneType)
        checked(ConfigError, "seed", arguments.get("seed"), int, NoneType, least=0, most=2**32 - 1)
        if unknown := arguments.keys() - signature(MaskablePPO).parameters.keys():
            raise ConfigError(f"unknown argument '{min(unknown)}'; use those of MaskablePPO, or advantage")
        settings = settings_of(DEFAULTS) | arguments
        self._entropy_schedule = settings["ent_coef"] if callable(settings["ent_coef"]) else None
        numbers = {field: settings[name] for name, field in FIELDS.items() if not callable(settings[name])}
        replace(DEFAULTS, **numbers, advantage=advantage, share=share)  # checks them
        if self._entropy_schedule:
            settings["ent_coef"] = self._entropy_schedule(1.0)
        plain = {name: value for name, value in settings.items() if isinstance(value, int | float | str)}
        self._plain = {**plain, "advantage": advantage, "share": share}
        self.group, self._norm = group, settings["max_grad_norm"]
        self.updates, self.ending, self.time_remaining = 0, "", 1.0
        self.stateful_callbacks: list[Stateful] = []
        self._saved: Checkpoint | None = None
        self._has_row = False
        if group.size > 1:
            settings["max_grad_norm"] = math.inf
        super().__init__(
            policy,
            env,
            rollout_buffer_class=PerGraphRolloutBuffer,
            rollout_buffer_kwargs={"advantage": advantage, "share": share},
            policy_kwargs=dict(policy_kwargs or {}),
            **settings,
        )
        self._show_problems()

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Replaces the environment by one of the same spaces, maybe over other problems."""
        _problems_of(env)
        super().set_env(env, force_reset)
        self._show_problems()

    def _show_problems(self) -> None:
        self.policy.placer.set_problems(_problems_of(self.env))

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = 1,
        tb_log_name: str = "PlacementPPO",
        reset_num_timesteps: bool = True,
        use_masking: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Learns from decisions, as `MaskablePPO.learn` does."""
        self.ending, self.time_remaining = "", 1.0
        how = tb_log_name, reset_num_timesteps, use_masking, progress_bar
        super().learn(total_timesteps, callback, log_interval, *how)
        self.log_row()
        return self

    def _setup_learn(
        self, total_timesteps: int, callback: Any = None, reset_num_timesteps: bool = True, *others: Any
    ) -> Any:
        checked(ConfigError, "total_timesteps", total_timesteps, float, least=0)
        self._seed_anew()
        self._last_obs = None
        total, callbacks = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *others)
        flat = callbacks.callbacks if isinstance(callbacks, CallbackList) else [callbacks]
        self.stateful_callbacks = [listed for listed in flat if isinstance(listed, Stateful)]
        names = [type(listed).__name__ for listed in self.stateful_callbacks]
        if (repeated := first_repeated(names)) is not None:
            raise ConfigError(f"callback has two {repeated}, whose names and states are the same; use one")
        if self._saved is not None and not reset_num_timesteps:
            with restoring(self._saved):
                restore_callbacks(self.stateful_callbacks, self._saved)
        self._saved = None
        excluded = ("stdout", "log", "json", "csv")
        self.logger.record("hparams", HParam(self._hparams(), dict(HPARAM_METRICS)), exclude=excluded)
        return total, callbacks

    def _seed_anew(self) -> None:
        """Seeds all that is drawn from now on by the seed, the worker and the number of updates."""
        if self.seed is not None:
            numbers = np.random.SeedSequence((self.seed, self.group.rank, self.updates))
            self.set_random_seed(int(numbers.generate_state(1)[0]))

    def restart(self) -> None:
        """Gives unfinished episodes up, as a model that is saved now and read later does."""
        self._seed_anew()
        assert self.env is not None
        self._last_obs = self.env.reset()
        self._last_episode_starts = np.ones(self.n_envs, dtype=np.bool_)
        if self.ep_info_buffer is not None:
            self.ep_info_buffer.clear()

    def _hparams(self) -> dict[str, Any]:
        """Returns what people vary, and the other arguments that are not the defaults."""
        shape, arguments = self.policy.placer.network.shape, self._plain
        default = settings_of(DEFAULTS) | {"advantage": DEFAULTS.advantage, "share": DEFAULTS.share}
        others = {name: value for name, value in arguments.items() if value != default.get(name, value)}
        varied = {
            "learning_rate": float(self.lr_schedule(1.0)),
            "hidden": shape.hidden,
            "encoder": shape.encoder,
            "feature_set": shape.feature_set,
            "order": ", ".join(self.env.get_attr("orders")[0]),
            "seed": self.seed if self.seed is not None else "",
        }
        return others | varied

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        self._current_progress_remaining: float = min(
            1 - num_timesteps / max(total_timesteps, 1), self.time_remaining
        )

    def dump_logs(self, iteration: int = 0) -> None:
        """Records what SB3 records of a rollout; `log_row` writes it with the numbers of the update."""
        elapsed_s = max((time.time_ns() - self.start_time) / 1e9, 1e-9)
        fps = int((self.num_timesteps - self._num_timesteps_at_start) / elapsed_s)
        episodes = [info for info in self.ep_info_buffer or () if info]
        means = {"rollout/ep_rew_mean": "r", "rollout/ep_len_mean": "l", INFEASIBLE: "infeasible"}
        for name, key in means.items():
            values = [info[key] for info in episodes if key in info]
            self.record({name: float(np.mean(values))} if values else {})
        self.record({SPEED: fps})
        counts = {"time/iterations": iteration, "time/time_elapsed": int(elapsed_s)}
        self.record({**counts, "time/total_timesteps": self.num_timesteps}, "tensorboard")

    def record(self, metrics: Mapping[str, Any], *exclude: str) -> None:
        """Records numbers for the row of the update that was made last."""
        for name, value in metrics.items():
            self.logger.record(name, value, exclude=exclude or None)
        self._has_row = True

    def log_row(self) -> None:
        """Writes the row of the update that was made last, if it is not written."""
        if self._has_row:
            self.logger.record(UPDATES, self.updates, exclude="tensorboard")
            self.logger.record(PROGRESS, 1 - self._current_progress_remaining, exclude="tensorboard")
            self.logger.dump(self.num_timesteps)
        self._has_row = False

    def set_parameters(self, load_path_or_dict: Any, *others: Any, **named: Any) -> None:
        """Sets the weights that `get_parameters` returned; refuses a file, which SB3 would read otherwise."""
        use = "what get_parameters returns; PlacementPPO.load(folder, env=env) reads a folder"
        if not isinstance(load_path_or_dict, Mapping):
            raise ConfigError(f"parameters are a {type(load_path_or_dict).__name__}; use {use}")
        super().set_parameters(load_path_or_dict, *others, **named)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
        use_masking: bool = True,
    ) -> bool:
        """Fills the buffer with a rollout; returns whether the callbacks want to go on.

        Raises:
            FloatingPointError: a score of the policy is not finite.
        """
        if not isinstance(env, PlacementVecEnv):
            self.log_row()
            rollout_buffer.buffer_size = n_rollout_steps  # a time limit shortens the last ones
            arguments = env, callback, rollout_buffer, n_rollout_steps, use_masking
            return not self.ending and bool(super().collect_rollouts(*arguments))
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        self.log_row()
        if self.ending:
            return False
        goes_on = self._tell(callback, self._roll_out(env, self.n_steps))
        if goes_on:
            callback.on_rollout_end()
        return goes_on

    def _roll_out(self, env: PlacementVecEnv, n_steps: int) -> list[Ended]:
        """Fills the buffer with a rollout; returns the ends of own episodes."""
        policy, buffer = self.policy.placer, self.rollout_buffer
        compiled, decisions = policy.compiled(), buffer.begin(n_steps)
        decisions.starts[0] = self._last_episode_starts
        self._last_episode_starts = np.zeros(self.n_envs, dtype=np.bool_)
        with np.errstate(over="ignore", invalid="ignore"):
            ended = collect(
                env,
                lambda problems: compiled.head_over(policy.embeddings.arrays(problems)),
                critic_arrays(compiled.weights),
                decisions,
            )
            _check_finite(value=float(decisions.value.sum()))
            buffer.finish(self._values(env), env.waits)
        return ended

    def _tell(self, callback: BaseCallback, ended: Sequence[Ended]) -> bool:
        """Tells the callbacks of each step of a rollout; returns whether they want to go on."""
        buffer, n_told = self.rollout_buffer, 0
        in_time = sorted(ended, key=lambda end: end.row)
        for row in range(buffer.buffer_size):
            self.num_timesteps += self.n_envs * self.group.size
            infos, dones = [dict[str, Any]()] * self.n_envs, np.zeros(self.n_envs, dtype=np.bool_)
            while n_told < len(in_time) and in_time[n_told].row == row:
                infos[in_time[n_told].place], dones[in_time[n_told].place] = in_time[n_told].info, True
                n_told += 1
            actions, rewards = buffer.actions[row].reshape(-1), buffer.rewards[row]
            callback.update_locals(
                {"self": self, "actions": actions, "rewards": rewards, "dones": dones, "infos": infos}
            )
            if not callback.on_step():
                return False
            if self.ep_info_buffer is not None:
                self.ep_info_buffer.extend(info["episode"] for info in infos if info)
        return True

    def _values(self, env: PlacementVecEnv) -> torch.Tensor:
        """Computes the value of what each place observes."""
        seen = env.batch.observation._asdict()
        obs = {name: torch.tensor(rows, device=self.device) for name, rows in seen.items()}
        return self.policy.predict_values(obs)

    def train(self) -> None:
        """Updates the policy from the rollout.

        Raises:
            FloatingPointError: a loss, or a score of the policy afterwards, is not finite.
        """
        if self._entropy_schedule:
            self.ent_coef = self._entropy_schedule(self._current_progress_remaining)
        with np.errstate(over="ignore", invalid="ignore"), bf16_matmul(), self._averaged_gradients():
            super().train()
        self.logger.record(ENTROPY_WEIGHT, self.ent_coef)
        recorded = self.logger.name_to_value
        _check_finite(
            policy_loss=recorded["train/policy_gradient_loss"],
            value_loss=recorded["train/value_loss"],
            loss=recorded["train/loss"],
        )
        if isinstance(self.env, PlacementVecEnv):
            self._values(self.env)
        self.updates += 1

    @contextmanager
    def _averaged_gradients(self) -> Iterator[None]:
        """Replaces the gradients of every optimizer step by the clipped average over all workers."""
        if self.group.size == 1:
            yield
            return
        weights = self.policy.learned

        def average(*_: object) -> None:
            average_gradients(self.group, weights)
            torch.nn.utils.clip_grad_norm_(weights, self._norm)

        hook = self.policy.optimizer.register_step_pre_hook(average)
        try:
            yield
        finally:
            hook.remove()

    def to_bytes(self) -> bytes:
        """Returns the content of a file that `load` continues the training from; nothing is pickled."""
        saved, policy = capture(self), self.policy.placer
        shape = policy.network.shape
        names = ("encoder", "hidden", "rounds", "feature_set")
        state = {
            **saved.state,
            "arguments": self._plain,
            "policy_kwargs": {name: getattr(self.policy, name) for name in ("freeze_encoder", "threads")},
            "shape": {name: getattr(shape, name) for name in names},
            "mdp": policy.mdp_config.to_json(),
        }
        return content_of(Checkpoint(saved.tensors, state))

    def save(self, path: str | Path, exclude: object = None, include: object = None) -> None:
        """Writes a folder, nothing of which is pickled: a policy and what continues its training.

        The folder is one for `evaluate.py --policy`, `train_agent.py --init` and `load_policy`, too.

        Args:
            path: folder; an ending `.zip` is left out.
            exclude, include: no effect; SB3 passes them.
        """
        folder, placer = _folder(path), self.policy.placer
        folder.mkdir(parents=True, exist_ok=True)
        seen = describe_seen(problem.graph for problem in _problems_of(self.env))
        card = PolicyCard(placer.network.shape, seen, placer.mdp_config.to_json())
        files = policy_files(folder, placer.network, card)
        write_all_atomic({**files, folder / TRAINING: self.to_bytes()})

    @classmethod
    def load(cls, path: str | Path, env: Any = None, **arguments: Any) -> Self:
        """Reads what `save` wrote, or a file of `Checkpoints`.

        `learn(..., reset_num_timesteps=False)` continues the training, and callbacks of the same classes.

        Args:
            env: environment over any problems.
            arguments: replace those of the saved model; also functions, as schedules.

        Raises:
            CheckpointError, PolicyFileError: a file that is missing, damaged, foreign or of another save.
            ValueError: no environment; `load_policy` reads a policy without one.
        """
        if env is None:
            raise ConfigError("PlacementPPO.load needs env=; load_policy(path) reads the policy alone")
        arguments |= arguments.pop("custom_objects", None) or {}
        for of_sb3 in ("print_system_info", "force_reset"):
            arguments.pop(of_sb3, None)
        is_file = _folder(path).suffix == ".safetensors"
        saved = read_checkpoint(_folder(path) if is_file else _folder(path) / TRAINING)
        with restoring(saved):
            if not is_file:
                check_policy(load_policy(_folder(path)).network, saved)
            settings = {**saved.state["arguments"], **arguments}
            shape, mdp = current_shape(**saved.state["shape"]), MdpConfig(**saved.state["mdp"])
            policy_kwargs = {"make_policy": lambda: Policy(PlacementNetwork(shape), mdp)}
            policy_kwargs |= saved.state["policy_kwargs"]
            settings["policy_kwargs"] = {**policy_kwargs, **arguments.get("policy_kwargs", {})}
            model = cls("PlacementPolicy", env, **settings)
            restore(model, saved)
        model._saved = saved
        return model


def _check_finite(**numbers: float) -> None:
    """Checks numbers, by what they are called with underscores for spaces.

    Raises:
        FloatingPointError: one is NaN or infinite.
    """
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise FloatingPointError(f"the {name.replace('_', ' ')} is {number}")


def _problems_of(env: Any) -> list[Problem]:
    """Returns the problems of an environment; a `ConfigError` if it is no environment of placements."""
    try:
        problems: list[Problem] = (
            env.get_attr("problems")[0] if isinstance(env, VecEnv) else env.unwrapped.problems
        )
    except AttributeError:
        raise ConfigError("env has no problems to place; use a PlacementVecEnv or a PlacementEnv") from None
    return problems


def _folder(path: str | Path) -> Path:
    path = checked(ConfigError, "path", path, str, PathLike)
    return Path(path).with_suffix("") if str(path).endswith(".zip") else Path(path)
