"""The one training function: a configuration and a context in, a trained policy out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from agent.placers.base import PLACERS
from agent.policy.encoders.base import ENCODERS, check_size
from agent.policy.mdp_config import BEST, MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.serialization import (
    PolicyCard,
    current_shape,
    describe_seen,
    load_policy,
    read_card,
    save_policy,
)
from agent.policy.threads import torch_threads
from agent.training import ppo
from agent.training.callbacks import EpisodeLog
from agent.training.checkpoints import Checkpoint, CheckpointError, under
from agent.training.config import ConfigError, TrainConfig
from agent.training.context import Context
from agent.training.ema import averaged
from agent.training.imitation.phases import School, between
from agent.training.performance.bf16 import bf16_matmul
from agent.training.performance.malloc import tune_malloc
from agent.training.problems import left_out, training_problems, validation_problems
from agent.training.split import Split
from agent.training.validation import RelativeMetrics, ratios_over_orders
from envs.mdp.batched_env import BatchedPlacementEnv
from graphs.orders import ORDERS

AVERAGE = "average"
"""Under this name the averaged weights are in a checkpoint."""


@dataclass(frozen=True)
class Result:
    """How a training ended.

    Attributes:
        timesteps, iterations: decisions and updates made.
        wall_s: seconds, those before interruptions included.
        best_score: least geometric mean of the greedy step time over that of one device, on the graphs for
            training and validation and the clusters as they are; by it the policy was chosen.
        best_timesteps: when that policy was found, decisions imitated included.
        finished: whether it used up its decisions or its time, rather than being stopped.
    """

    timesteps: int
    iterations: int
    wall_s: float
    best_score: float
    best_timesteps: int
    finished: bool


def train(config: TrainConfig, context: Context) -> Result:
    """Train a policy; keep the one that does best on the graphs for training and validation.

    Goes on from the context's newest checkpoint where there is one. Writes the policy into the context's
    folder whenever a better one is found.

    Raises:
        ValueError: an unknown cluster, order or encoder, or an unreadable policy to start from.
    """
    check_inputs(config, context.graphs)
    tune_malloc()
    with torch_threads(1):
        return _Training(config, context).run()


def check_inputs(config: TrainConfig, graphs: Split) -> list[str]:
    """Look up all that a configuration names, so that a mistake is found before anything is written.

    Returns:
        Graphs that are left out because no placement on a cluster fits, as `graph on cluster`.

    Raises:
        ConfigError: an unknown encoder or torch device.
        ValueError: an unknown cluster or order, an unreadable policy to start from, no graph that fits, or
            one that is too large for the encoder.
    """
    for order in config.order:
        ORDERS.check(order)
    if config.encoder not in ENCODERS:
        raise ConfigError(f"unknown encoder '{config.encoder}'; use {', '.join(ENCODERS)}")
    starts = [BEST, *(name for name, placer in PLACERS.items() if not placer.uses_rng)]
    if config.start not in starts:
        raise ConfigError(f"start is '{config.start}'; use {', '.join(starts)}")
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"torch has no device '{config.device}' here ({reason}); use cpu") from None
    if config.init:
        load_policy(config.init)
    check_size(config.encoder, (*graphs.train, *graphs.validation, *graphs.held_out))
    return left_out(graphs, config.cluster)


class _Training:
    def __init__(self, config: TrainConfig, context: Context) -> None:
        self.config, self.context = config, context
        self.began = time.monotonic()
        self.iteration, self.imitated, self.timesteps = 0, 0, 0
        self.best_score, self.best_timesteps = float("inf"), 0
        graphs = context.graphs
        problems = training_problems(graphs.train, config, context.seed)
        self.judged_by = validation_problems(graphs.train, config) or problems
        self.yardsticks = {
            "train": RelativeMetrics(problems),
            "validation": RelativeMetrics(validation_problems(graphs.validation, config) or problems),
            "heldout": RelativeMetrics(validation_problems(graphs.held_out, config)),
        }
        self.env = BatchedPlacementEnv(
            problems,
            config.n_envs,
            orders=config.order,
            **MdpConfig.from_settings(config.to_json()).arguments,
            repeats=config.repeats,
            seed=context.seed,
            threads=config.threads,
        )
        self.ppo = ppo.make_ppo(
            config,
            self.env,
            self._first_policy,
            self._learning_rate,
            seed=context.seed,
            device=context.device,
        )
        self.policy: Policy = self.ppo.policy.placer
        self.policy.set_problems(problems)
        self.average = averaged(self.policy.network, config.ema_decay)
        self.card = PolicyCard(self.policy.network.shape, self._seen(), config.to_json())
        self.log = EpisodeLog()
        self.school = School(config, context, problems, self.policy, self.ppo.policy.optimizer)
        saved = context.checkpoints.latest()
        if saved is not None:
            self._restore(saved)
        self.is_over = self._is_over()

    def run(self) -> Result:
        """Imitate, practise, reinforce, until decisions, time or the context's patience are used up."""
        if not self.is_over:
            self.school.prepare(self.iteration)
        while not self.is_over and not self.context.should_stop():
            self._iterate()
            if self.is_over or self.context.should_stop() or self._is_due(self.config.checkpoint_every):
                self.context.checkpoints.save(self.iteration, self._checkpoint())
                ppo.begin_episodes(self.ppo, self.env)
        return Result(
            timesteps=self.timesteps,
            iterations=self.iteration,
            wall_s=self._wall_s(),
            best_score=self.best_score,
            best_timesteps=self.best_timesteps,
            finished=self.is_over,
        )

    def _iterate(self) -> None:
        """One iteration at school, or one rollout with its update; an evaluation where one is due."""
        learn = self._reinforce if self.school.is_out(self.iteration) else self._study
        began, before = time.monotonic(), self.imitated + self.timesteps
        with bf16_matmul():
            metrics = learn()
        speed = (self.imitated + self.timesteps - before) / (time.monotonic() - began)
        metrics |= {"decisions_per_s": speed}
        self.average.update_parameters(self.policy.network)
        self.iteration += 1
        self.is_over = self._is_over()
        if self.is_over or self.iteration in self.school.stage_ends or self._is_due(self.config.eval_every):
            metrics |= self._evaluate()
        metrics |= {"iteration": self.iteration, "progress": self._progress(), "wall_s": self._wall_s()}
        self.context.report(self.imitated + self.timesteps, metrics)

    def _is_over(self) -> bool:
        """Whether the time is up, or all stages and decisions are behind us."""
        if self.config.minutes and self._wall_s() >= 60 * self.config.minutes:
            return True
        return self.school.is_out(self.iteration) and self.timesteps >= self.config.timesteps

    def _study(self) -> dict[str, float]:
        metrics = self.school.learn(self.iteration)
        self.imitated += int(metrics.pop("imitation/decisions"))
        return metrics

    def _reinforce(self) -> dict[str, float]:
        self.ppo.ent_coef = between(self.config.entropy, self.config.final_entropy, self._progress())
        decisions = self.config.n_envs * self.config.n_steps
        self.ppo.learn(decisions, callback=self.log, log_interval=None, reset_num_timesteps=False)
        self.timesteps = self.ppo.num_timesteps
        return {
            "learning_rate": self._learning_rate(),
            "entropy_weight": self.ppo.ent_coef,
            **ppo.update_metrics(self.ppo),
            **self._episode_metrics(),
        }

    def _episode_metrics(self) -> dict[str, float]:
        episodes = self.log.take()
        if not episodes:
            return {}
        feasible = [(episode.problem, episode.ratio_to_single) for episode in episodes if episode.fits]
        return {
            "episodes": len(episodes),
            "infeasible": 1 - len(feasible) / len(episodes),
            **self.yardsticks["train"].metrics("train", feasible),
        }

    def _evaluate(self) -> dict[str, float]:
        """Let the averaged policy walk all graphs; keep it if it is the best on those that are not held out.

        A greedy step time is noisy: on the few graphs for validation alone chance would choose the policy; so
        it would on variations of the clusters, as a few without the memory that one walk needs outweigh what
        all others gain.
        """
        policy = Policy(self._averaged_network, self.policy.mdp_config)
        judged_by = {use: yardstick.problems for use, yardstick in self.yardsticks.items()}
        judged_by["train"] = self.judged_by
        ratios = {
            use: ratios_over_orders(policy, problems, self.config.order)
            for use, problems in judged_by.items()
        }
        metrics: dict[str, float] = {}
        for use in ("validation", "heldout"):
            metrics |= self.yardsticks[use].metrics(use, enumerate(ratios[use]))
        score = float(np.exp(np.mean(np.log(ratios["train"] + ratios["validation"]))))
        if score < self.best_score:
            self.best_score = score
            self.best_timesteps = self.imitated + self.timesteps
            save_policy(self.context.folder, self._averaged_network, self.card)
        return metrics | {"score": score}

    def _seen(self) -> tuple[Mapping[str, str], ...]:
        """What the policy to start from has seen, and what this training shows."""
        before = read_card(self.config.init).seen if self.config.init else ()
        shown = describe_seen((*self.context.graphs.train, *self.context.graphs.validation))
        return tuple({entry["sha256"]: entry for entry in (*before, *shown)}.values())

    def _first_policy(self) -> Policy:
        config = self.config
        if config.init:
            network = load_policy(config.init).network
        else:
            shape = current_shape(config.encoder, config.hidden, config.rounds, config.feature_set)
            network = PlacementNetwork(shape)
        return Policy(network, MdpConfig.from_settings(config.to_json()))

    @property
    def _averaged_network(self) -> PlacementNetwork:
        return cast("PlacementNetwork", self.average.module)

    def _learning_rate(self) -> float:
        return between(self.config.learning_rate, self.config.final_learning_rate, self._progress())

    def _progress(self) -> float:
        """Share of the training that is done: of the decisions or of the time, whichever is further."""
        share = self.timesteps / self.config.timesteps if self.config.timesteps else 1.0
        if self.config.minutes:
            share = max(share, self._wall_s() / (60 * self.config.minutes))
        return min(share, 1.0)

    def _wall_s(self) -> float:
        return time.monotonic() - self.began

    def _is_due(self, every: int) -> bool:
        return self.iteration % every == 0

    def _checkpoint(self) -> Checkpoint:
        saved = ppo.capture(self.ppo, self.env)
        average = {f"{AVERAGE}/{name}": tensor for name, tensor in self.average.state_dict().items()}
        own = {
            "iteration": self.iteration,
            "imitated": self.imitated,
            "wall_s": self._wall_s(),
            "best": [self.best_score, self.best_timesteps],
        }
        return Checkpoint({**saved.tensors, **average}, {"training": own, "ppo": saved.state})

    def _restore(self, saved: Checkpoint) -> None:
        if "training" not in saved.state or not under(f"{AVERAGE}/", saved.tensors):
            raise CheckpointError(
                f"{self.context.folder}: checkpoints of another version; train anew under another name"
            )
        ppo.restore(self.ppo, self.env, Checkpoint(saved.tensors, saved.state["ppo"]))
        self.average.load_state_dict(under(f"{AVERAGE}/", saved.tensors))
        own = saved.state["training"]
        self.iteration, self.imitated = own["iteration"], own["imitated"]
        self.timesteps = self.ppo.num_timesteps
        self.began = time.monotonic() - own["wall_s"]
        self.best_score, self.best_timesteps = own["best"]
