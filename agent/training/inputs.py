"""What a training reads before it begins: all that a configuration names, looked up once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from agent.policy.encoders.base import ENCODERS, check_size
from agent.policy.policy import Policy
from agent.policy.serialization import read_policy
from agent.policy.starts import start_names
from agent.training.config import ConfigError, TrainConfig
from agent.training.problems import left_out
from agent.training.split import Split
from graphs.orders import ORDERS


@dataclass(frozen=True, eq=False)
class Inputs:
    """What was read.

    Attributes:
        policy: to start from, if the configuration names one.
        seen: name, family and hash of each graph that this policy was trained on or chosen by.
        left_out: pairs without a feasible placement, as `graph on cluster`.
    """

    policy: Policy | None
    seen: tuple[Mapping[str, str], ...]
    left_out: tuple[str, ...]


def read_inputs(config: TrainConfig, graphs: Split) -> Inputs:
    """Looks up all that a configuration names, so that a mistake is found before anything is written.

    Raises:
        ConfigError: an unknown encoder, start or torch device, or nothing to learn.
        ValueError: an unknown cluster or order, an unreadable policy to start from, no graph with a
            feasible placement, or one that is too large for the encoder.
    """
    _check_names(config)
    if not (config.timesteps or config.dagger_rounds or (config.demonstrations and config.imitation_epochs)):
        raise ConfigError("nothing to learn; give --timesteps, --dagger-rounds or --demonstrations")
    stored = read_policy(config.init) if config.init else None
    check_size(config.encoder, (*graphs.train, *graphs.validation, *graphs.held_out))
    return Inputs(
        policy=stored.policy() if stored else None,
        seen=stored.card.seen if stored else (),
        left_out=tuple(left_out(graphs, config.cluster)),
    )


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
