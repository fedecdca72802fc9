"""The inputs of a training: all that a configuration names, looked up once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from agent.calibration.quick import get_or_measure_cluster
from agent.learn.config import MEASURED, ConfigError, TrainConfig
from agent.learn.problems import left_out
from agent.policy.encoders.base import ENCODERS
from agent.policy.policy import Policy
from agent.policy.serialization import read_policy
from agent.policy.starts import start_names
from envs.cluster.presets import RANDOM, get_cluster
from envs.placement import CONSTRUCT
from envs.runtime.runnable_model import RunnableModel
from envs.runtime.step_meter import MeasuredStepTimer
from graphs.dataset import Split
from graphs.orders import ORDERS
from graphs.system.folders import policy_folder
from graphs.system.registry import load_plugins


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs that were read.

    Attributes:
        policy: policy to start from, if the configuration names one.
        seen: name, family and hash of each graph that this policy was trained on or chosen by.
        left_out: graphs without a feasible placement, a text for each cluster.
        step_timer: measures placements, if measured step times are learned from.
    """

    policy: Policy | None
    seen: tuple[Mapping[str, str], ...]
    left_out: tuple[str, ...]
    step_timer: MeasuredStepTimer | None = None


def read_inputs(config: TrainConfig, graphs: Split, runnable: RunnableModel | None = None) -> Inputs:
    """Looks up all that a configuration names, so that a mistake is found before anything is written.

    Args:
        runnable: model of the configuration, if measured step times are learned from.

    Raises:
        ConfigError: an unknown encoder, start or torch device, or nothing to learn.
        ValueError: an unknown cluster or order, an unreadable policy to start from, no graph with a
            feasible placement, or one that is too large for the encoder.
    """
    load_plugins(config.plugin)
    _check_names(config)
    if not config.timesteps:
        raise ConfigError("nothing to learn; give --timesteps")
    _check_measured(config)
    for cluster in [name for name in config.cluster if name != RANDOM]:
        get_or_measure_cluster(cluster)
    stored, timer = read_policy(policy_folder(config.init)) if config.init else None, None
    if config.reward == MEASURED:
        assert runnable is not None, "a context that measures gives the model"
        clusters = [get_cluster(cluster) for cluster in config.cluster]
        timer = MeasuredStepTimer(
            runnable, clusters, n_steps=config.measured_steps, timeout_s=config.measure_timeout
        )
    return Inputs(
        policy=stored.policy() if stored else None,
        seen=stored.card.seen if stored else (),
        left_out=tuple(left_out(graphs, config)),
        step_timer=timer,
    )


def _check_measured(config: TrainConfig) -> None:
    if config.reward != MEASURED:
        return
    if config.model is None or config.families or config.graphs:
        raise ConfigError("--reward measured runs a model; give --model, and neither --families nor --graphs")
    if not config.init:
        raise ConfigError("--reward measured starts from a policy; give --init pretrained, or a run")
    if config.mdp != CONSTRUCT:
        raise ConfigError(f"--reward measured needs --mdp {CONSTRUCT}")
    if config.randomizations:
        raise ConfigError("--reward measured runs on this machine; leave out --randomizations")


def _check_names(config: TrainConfig) -> None:
    for order in config.order:
        ORDERS.check(order)
    if config.encoder not in ENCODERS:
        raise ConfigError(f"unknown encoder '{config.encoder}'; use {', '.join(ENCODERS)}")
    if config.start not in start_names():
        raise ConfigError(f"start is '{config.start}'; use {', '.join(start_names())}")
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"torch has no device '{config.device}' here ({reason}); use cpu") from None
