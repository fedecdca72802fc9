"""Maskable PPO set up for placement episodes, and its whole state as tensors and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger

from agent.policy.policy import Policy
from agent.training.checkpoints import Checkpoint, under
from agent.training.config import TrainConfig
from agent.training.divergence import check_finite
from agent.training.reinforcement.actor_critic import PlacementActorCritic
from agent.training.reinforcement.collection import Collector
from agent.training.reinforcement.rollout_buffer import PerGraphRolloutBuffer
from agent.training.workers import SOLO, WorkerGroup, sum_gradients
from envs.placement.env import observation_space
from envs.placement.episodes import EpisodeResult

LOSSES = {
    "update/policy_loss": "train/policy_gradient_loss",
    "update/value_loss": "train/value_loss",
    "update/loss": "train/loss",
    "update/explained_variance": "train/explained_variance",
    "update/approx_kl": "train/approx_kl",
    "update/clip_fraction": "train/clip_fraction",
}
"""Our name of each number that SB3 records during an update."""


def make_ppo(
    config: TrainConfig,
    collector: Collector,
    make_policy: Callable[[], Policy],
    learning_rate: Callable[[], float],
    *,
    seed: int,
    device: str,
    group: WorkerGroup = SOLO,
) -> MaskablePPO:
    """Makes PPO over undiscounted returns: a return is minus the step time, however long the episode.

    Args:
        collector: makes the rollouts; the loop of SB3 that steps an environment is not used.
        learning_rate: called before each update.
        group: the workers that train the policy together; `learn` adds their gradients up, and clips them.
    """
    ppo = MaskablePPO(
        PlacementActorCritic,
        None,
        learning_rate=lambda _: learning_rate(),
        n_steps=config.n_steps,
        batch_size=config.batch_size,
        n_epochs=config.epochs,
        gamma=1.0,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip,
        ent_coef=config.entropy,
        vf_coef=config.value_weight,
        max_grad_norm=config.max_grad_norm if group.size == 1 else math.inf,
        rollout_buffer_class=PerGraphRolloutBuffer,
        rollout_buffer_kwargs={"advantage": config.advantage, "group": group},
        normalize_advantage=False,
        policy_kwargs={"make_policy": make_policy, "threads": config.threads, "group": group},
        seed=seed,
        device=device,
        _init_setup_model=False,
    )
    batch = collector.batch
    ppo.observation_space = observation_space(len(batch.problems), batch.max_ops, batch.max_devices)
    ppo.action_space, ppo.n_envs = spaces.Discrete(batch.max_devices), batch.n
    ppo._setup_model()
    ppo.set_logger(Logger(folder=None, output_formats=[]))
    return ppo


def learn(
    ppo: MaskablePPO, collector: Collector, config: TrainConfig, n_steps: int, group: WorkerGroup
) -> tuple[dict[str, float], list[EpisodeResult]]:
    """Makes a rollout of all places and the updates from it.

    Args:
        n_steps: decisions of each place in the rollout.

    Returns:
        Metrics of the updates, and the results of the own episodes that ended.

    Raises:
        FloatingPointError: a loss, or a score of the policy during the rollout or afterwards, is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        results = roll_out(ppo, collector, n_steps)
        with _summed_gradients(ppo, config, group):
            ppo.train()
    ppo.num_timesteps += config.n_envs * n_steps
    metrics = _update_metrics(ppo)
    check_finite(**{name: metrics[f"update/{name}"] for name in ("policy_loss", "value_loss", "loss")})
    _values(ppo, collector)
    return metrics, results


def roll_out(ppo: MaskablePPO, collector: Collector, n_steps: int) -> list[EpisodeResult]:
    """Fills the buffer with a rollout; returns the results of the own episodes that ended.

    Raises:
        FloatingPointError: a score of the policy is not finite.
    """
    policy, buffer = ppo.policy.placer, ppo.rollout_buffer
    compiled = policy.compiled()
    decisions = buffer.begin(n_steps)
    results, ended = collector.collect(
        lambda problems: compiled.head_over(policy.embeddings.arrays(problems)), decisions
    )
    buffer.fill(ppo.policy.evaluate_rollout, last_values=_values(ppo, collector), ended=ended)
    return results


def _values(ppo: MaskablePPO, collector: Collector) -> torch.Tensor:
    """Computes the value of what each place observes."""
    seen = collector.batch.observation._asdict()
    obs = {name: torch.tensor(rows, device=ppo.device) for name, rows in seen.items()}
    values: torch.Tensor = ppo.policy.predict_values(obs)
    return values


@contextmanager
def _summed_gradients(ppo: MaskablePPO, config: TrainConfig, group: WorkerGroup) -> Iterator[None]:
    """Replaces the gradients of every optimizer step by the clipped sum over all workers."""
    if group.size == 1:
        yield
        return
    weights = list(ppo.policy.parameters())

    def add_up(*_: object) -> None:
        sum_gradients(group, weights)
        torch.nn.utils.clip_grad_norm_(weights, config.max_grad_norm)

    hook = ppo.policy.optimizer.register_step_pre_hook(add_up)
    try:
        yield
    finally:
        hook.remove()


def _update_metrics(ppo: MaskablePPO) -> dict[str, float]:
    """Reads what the last update recorded, under our names."""
    recorded = ppo.logger.name_to_value
    metrics = {ours: float(recorded[theirs]) for ours, theirs in LOSSES.items() if theirs in recorded}
    if "train/entropy_loss" in recorded:
        metrics["training/entropy"] = -float(recorded["train/entropy_loss"])
    ppo.logger.dump()
    return metrics


def capture(ppo: MaskablePPO, collector: Collector) -> Checkpoint:
    """Captures weights, optimizer and random generators between two updates, but no episodes under way."""
    tensors = {f"policy/{name}": tensor for name, tensor in ppo.policy.state_dict().items()}
    for index, slots in ppo.policy.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    tensors["random/torch"] = torch.get_rng_state()
    generator = np.random.get_state(legacy=False)  # noqa: NPY002 (SB3 shuffles with it)
    tensors["random/numpy"] = torch.from_numpy(generator["state"]["key"].astype(np.int64))
    return Checkpoint(
        tensors,
        {
            "timesteps": ppo.num_timesteps,
            "updates": ppo._n_updates,
            "random": {
                "pos": generator["state"]["pos"],
                "has_gauss": generator["has_gauss"],
                "gauss": generator["gauss"],
            },
            "env": collector.state_dict(),
        },
    )


def restore(ppo: MaskablePPO, collector: Collector, checkpoint: Checkpoint) -> None:
    """Restores a captured state in a new PPO, which then continues as the captured one would have.

    Raises:
        LookupError, RuntimeError, TypeError, ValueError: the checkpoint is of another network or environment.
    """
    tensors, state = checkpoint.tensors, checkpoint.state
    ppo.policy.load_state_dict(under("policy/", tensors))
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in under("optimizer/", tensors).items():
        index, slot = name.split("/")
        slots.setdefault(int(index), {})[slot] = tensor
    _check_slots(slots, list(ppo.policy.parameters()))
    groups = ppo.policy.optimizer.state_dict()["param_groups"]
    ppo.policy.optimizer.load_state_dict({"state": slots, "param_groups": groups})
    torch.set_rng_state(tensors["random/torch"])
    generator = {
        "bit_generator": "MT19937",
        "state": {"key": tensors["random/numpy"].numpy().astype(np.uint32), "pos": state["random"]["pos"]},
        "has_gauss": state["random"]["has_gauss"],
        "gauss": state["random"]["gauss"],
    }
    np.random.set_state(generator)  # noqa: NPY002 (SB3 shuffles with it)
    collector.load_state_dict(state["env"])
    ppo.num_timesteps, ppo._n_updates = state["timesteps"], state["updates"]


def _check_slots(slots: Mapping[int, Mapping[str, torch.Tensor]], weights: Sequence[torch.Tensor]) -> None:
    """Checks the optimizer's tensors, by index of the weights; torch would find a wrong shape much later."""
    for index, each in slots.items():
        for slot, tensor in each.items():
            if tensor.shape not in (weights[index].shape, ()):
                raise ValueError(f"optimizer/{index}/{slot} has the shape {tuple(tensor.shape)}")
