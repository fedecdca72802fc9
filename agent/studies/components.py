"""The components of a training that an ablation can leave out, each as the settings that do so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.studies.assignments import parse_choice
from agent.training.config import ConfigError, TrainConfig


@dataclass(frozen=True)
class Component:
    """A component that an ablation can leave out.

    Attributes:
        changes: settings without it.
    """

    meaning: str
    changes: Mapping[str, Any]


COMPONENTS: Mapping[str, Component] = {
    "rollout-features": Component("features of truncated rollouts", {"feature_set": "consumers"}),
    "consumer-features": Component(
        "features of consumers, and of truncated rollouts", {"feature_set": "lookahead"}
    ),
    "lookahead": Component("all features that look ahead", {"feature_set": "state"}),
    "encoder": Component("messages between ops", {"encoder": "none"}),
    "rounds": Component("all rounds of messages but one", {"rounds": 1}),
    "demonstrations": Component("imitation of searched placements", {"demonstrations": 0}),
    "dagger": Component("imitation on the policy's own placements", {"dagger_rounds": 0}),
    "imitation": Component("imitation of both kinds", {"demonstrations": 0, "dagger_rounds": 0}),
    "reinforcement": Component("reinforcement", {"timesteps": 0}),
    "entropy": Component("the entropy bonus of the reward", {"entropy": 0.0, "final_entropy": 0.0}),
    "mask": Component("the mask of devices without free memory", {"mask": "none"}),
    "memory-penalty": Component("what running out of memory takes off the reward", {"memory_penalty": 0.0}),
    "baseline": Component("comparison with other episodes on the same op", {"advantage": "batch"}),
    "averaging": Component("the average of the weights", {"ema_decay": 0.0}),
    "randomization": Component("randomized clusters", {"randomizations": 0}),
    "pretraining": Component("the policy to start from", {"init": ""}),
    "order": Component("the order of the visits, for a random one", {"order": ("random",)}),
}
"""Components by name; FIELD=VALUE replaces a setting."""


def leave_out(base: TrainConfig, name: str) -> TrainConfig:
    """Returns a training's settings without a component; `A+B` is without both.

    Raises:
        ConfigError: an unknown component, or one that the base does not have.
    """
    config = base
    for part in name.split("+") if "=" not in name else [name]:
        changed = _changed(config, part)
        if changed == config:
            raise ConfigError(f"the base has no '{part}' to leave out: {_settings(config, part)} already")
        config = changed
    return config


def components_of(base: TrainConfig) -> list[str]:
    """Names of the components that a training has."""
    return [name for name in COMPONENTS if _changed(base, name) != base]


def describe_components() -> str:
    """A line for each component."""
    return "\n".join(f"{name:<18} {component.meaning}" for name, component in COMPONENTS.items())


def _changed(config: TrainConfig, name: str) -> TrainConfig:
    return replace(config, **_changes(config, name))


def _changes(config: TrainConfig, name: str) -> dict[str, Any]:
    if "=" in name:
        choice = parse_choice(name)
        if len(choice.values) != 1:
            raise ConfigError(f"'{name}': an ablation replaces a setting by one value")
        return {choice.field: choice.values[0]}
    if name not in COMPONENTS:
        raise ConfigError(f"unknown component '{name}'; use {', '.join(COMPONENTS)} or FIELD=VALUE")
    return dict(COMPONENTS[name].changes)


def _settings(config: TrainConfig, name: str) -> str:
    values = config.to_json()
    return ", ".join(f"{key} is {values[key]}" for key in _changes(config, name))
