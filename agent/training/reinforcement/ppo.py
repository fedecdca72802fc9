"""Maskable PPO of stable-baselines3 that learns to place, with rollouts in a compiled loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from agent.policy.policy import Policy
from agent.policy.seen import describe_seen
from agent.policy.serialization import PolicyCard, load_policy, policy_files
from agent.training.checkpoints import Checkpoint, content_of, read_checkpoint, restoring
from agent.training.config import ConfigError, TrainConfig
from agent.training.divergence import check_finite
from agent.training.reinforcement.actor_critic import PlacementPolicy
from agent.training.reinforcement.collection import Ended, collect
from agent.training.reinforcement.recording import critic_arrays
from agent.training.reinforcement.rollout_buffer import PerGraphRolloutBuffer
from agent.training.reinforcement.saving import capture, check_policy, restore
from agent.training.workers import SOLO, WorkerGroup, sum_gradients
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from graphs.system.errors import checked
from graphs.system.json_files import write_all_atomic

DEFAULTS = TrainConfig()
FORMAT = "placewalk.ppo/1"
TRAINING = "training.safetensors"
"""File beside those of the policy that `PlacementPPO.save` writes: optimizer, counters, random generators."""


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

    The graph encoder learns only with `policy_kwargs={"encodes": True}`. An update learns from a share of the
    decisions.

    On a `PlacementVecEnv`, it collects a rollout in one compiled loop. It then calls the callbacks once for
    each step, as SB3 does: with `num_timesteps`, and `actions`, `rewards`, `dones` and `infos` in `locals`.
    On another environment that has `problems`, as a `PlacementEnv` or a `VecMonitor`, it uses SB3's own loop,
    which is slower.

    Args:
        policy: "PlacementPolicy"; `policy_kwargs` are those of the class of that name.
        advantage, share: as `PerGraphRolloutBuffer` takes them.
        group: the workers that train the policy together; gradients are added up, and clipped then.
        arguments: as `MaskablePPO` takes them. The defaults are those of `train_agent.py`.

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
        given = settings_of(DEFAULTS) | arguments
        numbers = {field: given[name] for name, field in FIELDS.items() if not callable(given[name])}
        replace(DEFAULTS, **numbers, advantage=advantage, share=share)  # checks them
        plain = {name: value for name, value in given.items() if isinstance(value, int | float | str)}
        self._plain = {**plain, "advantage": advantage, "share": share}
        self.group, self._norm = group, given["max_grad_norm"]
        if group.size > 1:
            given["max_grad_norm"] = math.inf
        super().__init__(
            policy,
            env,
            rollout_buffer_class=PerGraphRolloutBuffer,
            rollout_buffer_kwargs={"advantage": advantage, "share": share, "group": group},
            policy_kwargs={"group": group, **(policy_kwargs or {})},
            **given,
        )
        self._show_problems()

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Replaces the environment by one of the same spaces, maybe over other problems."""
        _problems_of(env)
        super().set_env(env, force_reset)
        self._show_problems()

    def _show_problems(self) -> None:
        self.policy.placer.set_problems(_problems_of(self.env))

    def _setup_learn(self, total_timesteps: int, *others: Any, **named: Any) -> Any:
        checked(ConfigError, "total_timesteps", total_timesteps, float, least=0)
        return super()._setup_learn(total_timesteps, *others, **named)

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
            arguments = env, callback, rollout_buffer, n_rollout_steps, use_masking
            return bool(super().collect_rollouts(*arguments))
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        goes_on = self._tell(callback, self._roll_out(env, n_rollout_steps))
        if goes_on:
            callback.on_rollout_end()
        return goes_on

    def _roll_out(self, env: PlacementVecEnv, n_steps: int) -> list[Ended]:
        """Fills the buffer with a rollout; returns the ends of own episodes."""
        policy, buffer = self.policy.placer, self.rollout_buffer
        compiled, decisions = policy.compiled(), buffer.begin(n_steps)
        with np.errstate(over="ignore", invalid="ignore"):
            ended = collect(
                env,
                lambda problems: compiled.head_over(policy.embeddings.arrays(problems)),
                critic_arrays(compiled.weights),
                decisions,
                self.group,
            )
            check_finite(value=float(decisions.value.sum()))
            buffer.finish(self._values(env), env.waits)
        return ended

    def _tell(self, callback: BaseCallback, ended: Sequence[Ended]) -> bool:
        """Tells the callbacks of each step of a rollout; returns whether they want to go on."""
        buffer, at = self.rollout_buffer, 0
        in_time = sorted(ended, key=lambda each: each.row)
        for row in range(buffer.buffer_size):
            self.num_timesteps += self.n_envs * self.group.size
            infos, dones = [dict[str, Any]()] * self.n_envs, np.zeros(self.n_envs, dtype=np.bool_)
            while at < len(in_time) and in_time[at].row == row:
                infos[in_time[at].place], dones[in_time[at].place] = in_time[at].info, True
                at += 1
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
        values: torch.Tensor = self.policy.predict_values(obs)
        return values

    def train(self) -> None:
        """Updates the policy from the rollout.

        Raises:
            FloatingPointError: a loss, or a score of the policy afterwards, is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"), self._summed_gradients():
            super().train()
        recorded = self.logger.name_to_value
        check_finite(
            policy_loss=recorded["train/policy_gradient_loss"],
            value_loss=recorded["train/value_loss"],
            loss=recorded["train/loss"],
        )
        if isinstance(self.env, PlacementVecEnv):
            self._values(self.env)

    @contextmanager
    def _summed_gradients(self) -> Iterator[None]:
        """Replaces the gradients of every optimizer step by the clipped sum over all workers."""
        if self.group.size == 1:
            yield
            return
        weights = self.policy.learned

        def add_up(*_: object) -> None:
            sum_gradients(self.group, weights)
            torch.nn.utils.clip_grad_norm_(weights, self._norm)

        hook = self.policy.optimizer.register_step_pre_hook(add_up)
        try:
            yield
        finally:
            hook.remove()

    def save(self, path: str | Path, exclude: object = None, include: object = None) -> None:
        """Writes a folder, nothing of which is pickled: a policy and what continues its training.

        The folder is one for `evaluate.py --policy`, `train_agent.py --init` and `load_policy`, too.

        Args:
            path: of the folder; an ending `.zip` is left out.
            exclude, include: of no effect; SB3 passes them.
        """
        folder, placer = _folder(path), self.policy.placer
        folder.mkdir(parents=True, exist_ok=True)
        seen = describe_seen(problem.graph for problem in _problems_of(self.env))
        card = PolicyCard(placer.network.shape, seen, placer.mdp_config.to_json())
        saved = capture(self)
        training = Checkpoint(saved.tensors, {**saved.state, "arguments": self._plain})
        files = policy_files(folder, placer.network, card)
        write_all_atomic({**files, folder / TRAINING: content_of(FORMAT, training)})

    @classmethod
    def load(cls, path: str | Path, env: Any = None, **arguments: Any) -> Self:
        """Reads what `save` wrote.

        Args:
            env: over any problems.
            arguments: in place of those of the saved model, and those that are functions, as schedules.

        Raises:
            CheckpointError, PolicyFileError: a file that is missing, damaged, foreign or of another save.
            ValueError: no environment; `load_policy` reads a policy without one.
        """
        if env is None:
            raise ConfigError("PlacementPPO.load needs env=; load_policy(path) reads the policy alone")
        arguments |= arguments.pop("custom_objects", None) or {}
        for of_sb3 in ("print_system_info", "force_reset"):
            arguments.pop(of_sb3, None)
        folder = _folder(path)
        policy, saved = load_policy(folder), read_checkpoint(folder / TRAINING, FORMAT)
        policy_kwargs = {"make_policy": lambda: policy, **arguments.pop("policy_kwargs", {})}
        with restoring(saved):
            given = {**saved.state["arguments"], **arguments}
            model = cls("PlacementPolicy", env, policy_kwargs=policy_kwargs, **given)
            check_policy(model, saved)
            restore(model, saved)
        return model


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


def make_ppo(
    config: TrainConfig,
    env: PlacementVecEnv,
    make_policy: Callable[[], Policy],
    learning_rate: Callable[[], float],
    *,
    device: str,
    seed: int,
    group: WorkerGroup = SOLO,
) -> PlacementPPO:
    """Makes the algorithm that a configuration describes; it logs nothing.

    Args:
        learning_rate: called before each update.
    """
    ppo = PlacementPPO(
        "PlacementPolicy",
        env,
        **settings_of(config) | {"learning_rate": lambda _: learning_rate()},
        advantage=config.advantage,
        share=config.share,
        group=group,
        policy_kwargs={
            "make_policy": make_policy,
            "threads": config.threads,
            "encodes": config.learn_encoder,
        },
        seed=seed,
        device=device,
    )
    ppo.set_logger(Logger(folder=None, output_formats=[]))
    return ppo
