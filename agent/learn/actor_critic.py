"""The adapter that lets algorithms of stable-baselines3 train a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from torch import Tensor

from agent.learn.config import TrainConfig
from agent.policy.network import PlacementNetwork
from agent.policy.policy import MASKED_LOGIT, Policy
from agent.policy.shape import current_shape
from agent.policy.threads import scores_in_threads
from graphs.system.errors import InputError

Masks = NDArray[np.bool_] | Tensor | None


def untrained_policy() -> Policy:
    """Makes a policy of the default shape, with random weights."""
    config = TrainConfig()
    return Policy(PlacementNetwork(current_shape(config.encoder, config.hidden, config.rounds)))


class PlacementPolicy(MaskableActorCriticPolicy):  # type: ignore[misc]
    """Adapts a `Policy` to SB3: rollouts and updates score from cached embeddings of the graphs.

    It takes masks from the observation, so callers need not give any.

    Args:
        lr_schedule: learning rate by the share of the training that remains.
        make_policy: builds the policy; called once. The default is an untrained one.
        threads: number of threads that share the scoring of an update.
        freeze_encoder: the graph encoder keeps its weights, so that each graph is encoded once.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Callable[[float], float],
        *,
        make_policy: Callable[[], Policy] = untrained_policy,
        threads: int = 1,
        freeze_encoder: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, lr_schedule, net_arch=[])
        self.placer = make_policy()
        self.threads, self.freeze_encoder = threads, freeze_encoder
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1.0), eps=1e-5)

    @property
    def learned(self) -> list[Tensor]:
        """The weights that an update changes."""
        frozen = {*self.placer.network.encoder.parameters()} if self.freeze_encoder else set()
        return [weight for weight in self.parameters() if weight not in frozen]

    def save(self, path: str) -> None:
        """Refuses to save: without its problems, it has no observations to decide on.

        Raises:
            InputError: always; says what saves it.
        """
        raise InputError(
            f"{path}: a PlacementPolicy is saved by model.save(folder), and load_policy(folder) reads it: "
            "observations number the problems, which are the algorithm's"
        )

    @classmethod
    def load(cls, path: str, device: torch.device | str = "auto") -> Self:
        """Refuses to load, as `save` does; SB3's own would unpickle."""
        raise InputError(
            f"{path}: read a policy by load_policy(folder), or PlacementPPO.load(folder, env=env)"
        )

    def load_from_vector(self, vector: NDArray[np.float32]) -> None:
        """Takes the weights from a vector, (n_weights,)."""
        super().load_from_vector(vector)
        self.load_state_dict(self.state_dict())  # in place, so that embeddings are computed anew

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        """The base class would build a perceptron here; ours comes with `make_policy`."""

    def forward(
        self, obs: Mapping[str, Tensor], deterministic: bool = False, action_masks: Masks = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Chooses devices: actions (n,), values (n, 1) and log-probabilities (n,)."""
        distribution = self.get_distribution(obs, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, self.predict_values(obs), distribution.log_prob(actions)

    @torch.no_grad()
    def get_distribution(self, obs: Mapping[str, Tensor], action_masks: Masks = None) -> MaskableDistribution:
        """Returns the distribution over devices, from cached embeddings."""
        distribution = self.action_dist.proba_distribution(action_logits=self._scores(obs)[0])
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def evaluate_actions(
        self, obs: Mapping[str, Tensor], actions: Tensor, action_masks: Masks = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes values (n, 1), log-probabilities (n,), entropies (n,) of a minibatch, with gradients."""
        logits, values = scores_in_threads(self.placer, obs, self.threads, encodes=not self.freeze_encoder)
        if action_masks is not None:
            allowed = torch.as_tensor(action_masks, dtype=torch.bool, device=logits.device)
            logits = logits.masked_fill(~allowed.reshape(logits.shape), MASKED_LOGIT)
        log_probs = logits.log_softmax(1)
        entropy = -(log_probs.exp() * log_probs).sum(1)
        return values[:, None], log_probs.gather(1, actions[:, None].long()).squeeze(1), entropy

    @torch.no_grad()
    def predict_values(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Computes state values, float32 (n, 1).

        Raises:
            FloatingPointError: a score is not finite.
        """
        return self._scores(obs)[1][:, None]

    def _scores(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits, values = self.placer.scores(obs)
        check_scores(logits, values)
        return logits, values


def check_scores(logits: Tensor, values: Tensor) -> None:
    """Checks the scores of some decisions.

    Raises:
        FloatingPointError: one is NaN or infinite.
    """
    if not (logits.sum() + values.sum()).isfinite():
        raise FloatingPointError("the policy's scores are not finite")
