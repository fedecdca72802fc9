"""The state that all phases of a training work on: problems, policy, optimizer, clock and counters."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from agent.policy.starts import episode_arguments
from agent.training.checkpoints import Checkpoint, CheckpointError, under
from agent.training.clock import Clock, Elapsed, between
from agent.training.config import DECISIVE, TrainConfig
from agent.training.context import Context
from agent.training.divergence import check_weights
from agent.training.inputs import Inputs
from agent.training.problems import training_problems
from agent.training.reinforcement.ppo import make_ppo
from agent.training.reinforcement.saving import capture, restore
from agent.training.workers import check_same
from envs.placement.generator import Rounds
from envs.placement.reward import Measured, Reward, simulated
from envs.placement.vec_env import PlacementVecEnv

AVERAGE = "average/"
"""Prefix of the averaged weights in a checkpoint."""


class TrainingState:
    """The learner and its data, which the phases of a training change.

    Attributes:
        problems: to train on; observations name them by index.
        reward: says what the step takes under a placement, in rollouts and where the policy is judged.
        env, ppo: the environment of reinforcement, and its algorithm, which owns policy and optimizer.
        group: the workers that train together, each with its share of the environments.
        evaluation_s: seconds of the last evaluation; 0 before the first.
        imitated, timesteps: decisions learned from by imitation, each time counted, and by reinforcement.
    """

    def __init__(self, config: TrainConfig, context: Context, inputs: Inputs, clock: Clock) -> None:
        self.config, self.context, self.clock = config, context, clock
        self._inputs, self.group = inputs, context.group
        self.iteration, self.imitated, self.timesteps = 0, 0, 0
        self.evaluation_s = 0.0
        self.problems = training_problems(context.graphs.train, config, context.seed)
        self.reward: Reward = Measured(inputs.step_timer) if inputs.step_timer else simulated
        self.env = PlacementVecEnv(
            self.problems,
            config.n_envs // self.group.size,
            generator=Rounds(repeats=config.repeats),
            seed=context.seed,
            share=(self.group.rank, self.group.size),
            reward=self.reward,
            orders=config.order,
            threads=config.threads,
            **episode_arguments(MdpConfig.from_settings(config.to_json())),
        )
        self.ppo = make_ppo(
            config,
            self.env,
            self._first_policy,
            self.learning_rate,
            seed=context.seed,
            device=context.device,
            group=self.group,
        )
        self.policy: Policy = self.ppo.policy.placer
        self.average = averaged(self.policy.network, config.ema_decay)

    @property
    def averaged_network(self) -> PlacementNetwork:
        """The network with averaged weights, which is evaluated and saved."""
        return cast("PlacementNetwork", self.average.module)

    @property
    def decisions(self) -> int:
        """Decisions learned from, by imitation and by reinforcement."""
        return self.imitated + self.timesteps

    @property
    def progress(self) -> float:
        """Share of the training that is done, 0 to 1: of decisions or of time, whichever is further."""
        by_decisions = self.timesteps / self.config.timesteps if self.config.timesteps else 1.0
        return min(max(by_decisions, self.clock.progress), 1.0)

    def learning_rate(self) -> float:
        """Of reinforcement, at this progress."""
        return between(self.config.learning_rate, self.config.final_learning_rate, self.progress)

    def count_update(self) -> None:
        """Updates the average after an update of the policy.

        Raises:
            FloatingPointError: a weight, or an average of weights, is not finite.
        """
        check_weights(self.policy.network, "weights")
        self.average.update_parameters(self.policy.network)
        check_weights(self.averaged_network, "averaged weights")
        self.iteration += 1

    def check_workers(self) -> None:
        """Checks that all workers hold the same weights and the same random generators.

        Raises:
            WorkersDifferError: they do not.
        """
        saved = capture(self.ppo)
        check_same(self.group, [*saved.tensors.values(), *self.average.state_dict().values()])

    def checkpoint(self) -> Checkpoint:
        """Captures all state except unfinished episodes, which restart."""
        saved = capture(self.ppo)
        average = {f"{AVERAGE}{name}": tensor for name, tensor in self.average.state_dict().items()}
        own = {"iteration": self.iteration, "imitated": self.imitated, **self.clock.elapsed._asdict()}
        state = {
            "run": self._identity(),
            "training": own,
            "ppo": {**saved.state, "env": self.env.state_dict()},
        }
        return Checkpoint({**saved.tensors, **average}, state)

    def restore(self, saved: Checkpoint) -> None:
        """Goes on from a checkpoint as if nothing had happened.

        Raises:
            CheckpointError: it is of a run with other settings, graphs or clusters.
            LookupError, RuntimeError, TypeError, ValueError: it is no checkpoint of a training.
        """
        self._check_is_ours(saved)
        restore(self.ppo, Checkpoint(saved.tensors, saved.state["ppo"]))
        self.env.load_state_dict(saved.state["ppo"]["env"])
        self.average.load_state_dict(under(AVERAGE, saved.tensors))
        own: dict[str, Any] = saved.state["training"]
        self.iteration, self.imitated = own["iteration"], own["imitated"]
        self.timesteps = self.ppo.num_timesteps
        self.clock.go_on_from(Elapsed(own["wall_s"], own["cpu_s"]))

    def _identity(self) -> dict[str, Any]:
        """Returns the settings and problems that stay the same within a run, as JSON."""
        config = self.config.to_json()
        decide = {key: config[key] for key in DECISIVE}
        return decide | {"problems": [f"{p.graph.name} on {p.cluster.name}" for p in self.problems]}

    def _check_is_ours(self, saved: Checkpoint) -> None:
        theirs = saved.state["run"]
        for key, value in self._identity().items():
            if theirs.get(key, value) != value:
                raise CheckpointError(
                    f"{saved.path}: is of a run with another setting of {key}; put the run's own checkpoint "
                    "back, or start a new training under another name"
                )

    def _first_policy(self) -> Policy:
        config = self.config
        if self._inputs.policy is not None:
            network = self._inputs.policy.network
        else:
            shape = config.encoder, config.hidden, config.rounds, config.feature_set
            network = PlacementNetwork(current_shape(*shape))
        return Policy(network, MdpConfig.from_settings(config.to_json()))


def averaged(network: PlacementNetwork, decay: float) -> AveragedModel:
    """Copies a network as an exponential moving average (EMA), which `update_parameters` makes follow it.

    Args:
        decay: share of the average that an update keeps, at least 0 and below 1. It is less at first, so that
            the initial weights are soon forgotten.

    Source: averaging as in Polyak and Juditsky (1992), here with exponential weights.
    """

    def follow(average: Tensor, current: Tensor, n_averaged: Tensor | int) -> Tensor:
        kept = min(decay, float((1 + n_averaged) / (10 + n_averaged)))
        return current.lerp(average, kept)

    return AveragedModel(network, avg_fn=follow)
