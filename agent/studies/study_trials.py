"""The trials of a study: the combinations of a grid, a base without each component, or draws of a search.

Settings are given in words: `hidden=32,64`, `order=topo+bfs`, `learning_rate=1e-4:1e-2:log`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from agent.learn.config import EXTENDABLE, ConfigError, TrainConfig
from agent.studies.study_config import MOST_SEEDS, StudyConfig
from graphs.system.settings import field_types

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = Mapping[str, Distribution]
"""Values that settings may have, by setting; a list is a text, as Optuna stores no lists."""
FIXED = ("name", "seed", "context")
"""Settings that a study sets itself."""
ELEMENTS = "+"
"""Separates the elements of a list."""
COMPONENTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "rollout-features": ("features of truncated rollouts", {"feature_set": "consumers"}),
    "consumer-features": ("features of consumers, and of truncated rollouts", {"feature_set": "lookahead"}),
    "lookahead": ("all features that look ahead", {"feature_set": "state"}),
    "encoder": ("messages between ops", {"encoder": "none"}),
    "rounds": ("all rounds of messages but one", {"rounds": 1}),
    "entropy": ("the entropy bonus of the reward", {"entropy": 0.0, "final_entropy": 0.0}),
    "mask": ("the mask of devices without free memory", {"mask": "none"}),
    "memory-penalty": ("the penalty of the reward for running out of memory", {"memory_penalty": 0.0}),
    "baseline": ("comparison with other episodes on the same op", {"advantage": "batch"}),
    "averaging": ("the average of the weights", {"ema_decay": 0.0}),
    "randomization": ("randomized clusters", {"randomizations": 0}),
    "pretraining": ("the policy to start from", {"init": ""}),
    "order": ("the order of the visits, for a random one", {"order": ("random",)}),
}
"""Components that an ablation can leave out, by name: meaning, and the settings of a training without it."""


@dataclass(frozen=True)
class StudyTrial:
    """A training of a study.

    Attributes:
        name: name of its folder, unique in the study.
        component: description of the change from the base; "" for the base.
        mode: `base`, `without`, `replaced`, `grid` or `sampled`.
        params: its point in the study's space; None if the search has yet to draw it.
    """

    name: str
    config: TrainConfig
    component: str = ""
    mode: str = "base"
    params: Mapping[str, Any] | None = None

    @property
    def config_hash(self) -> str:
        """Hash of the settings that influence the policy."""
        decisive = {key: value for key, value in self.config.to_json().items() if key not in EXTENDABLE}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def in_tensorboard(self) -> str:
        """Folder of its events, by what varies: `order=topo,seed=0`; `without=,seed=0` is without nothing."""
        first = f"{self.name} " * (self.mode == "sampled")
        words = f"{first}{in_words(self.params or {})}".replace(" ", ",")
        return re.sub(r"[^\w.,+=-]", "-", words)[-200:]

    def drawn(self, params: Mapping[str, Any]) -> StudyTrial:
        """Returns this trial of a grid or a search at a point of the space."""
        config = replace(self.config, **settings_of(params))
        return replace(self, config=config, component=in_words(params), params=params)


def study_trials(base: TrainConfig, config: StudyConfig) -> tuple[list[StudyTrial], Space]:
    """Lists the trials of a study, and the space that they are points of.

    Raises:
        ConfigError: a setting that cannot be varied, or an unknown component.
    """
    alone = replace(base, context="local")
    if base.context == "search":
        if not config.vary:
            raise ConfigError("a search needs a space; give --vary FIELD=LEAST:MOST ...")
        names = [f"{number:03d}" for number in range(config.trials)]
        trials = [StudyTrial(name, replace(alone, name=name), mode="sampled") for name in names]
        return trials, read_space(config.vary, ranges=True)
    if base.context == "grid":
        space: dict[str, Any] = dict(read_space(config.vary, ranges=False))
        points = itertools.product(*([(name, value) for value in space[name].choices] for name in space))
        every = StudyTrial("", alone, mode="grid" if space else "base")
        trials = [replace(every.drawn(dict(point)), name=f"{n:03d}") for n, point in enumerate(points)]
    else:
        names = list(config.without)
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"--without {repeated[0]} is given twice")
        space = {"without": CategoricalDistribution(["", *names])}
        trials = [StudyTrial("base", alone, params={"without": ""})]
        for number, name in enumerate(names, start=1):
            mode, params = "replaced" if "=" in name else "without", {"without": name}
            trials.append(StudyTrial(f"{number:03d}", leave_out(alone, name), name, mode, params))
    space["seed"], on_seeds = IntDistribution(base.seed, base.seed + MOST_SEEDS), []
    for offset, trial in itertools.product(range(config.seeds), trials):
        seed = trial.config.seed + offset
        name, point = f"{trial.name}-seed-{seed}", {**(trial.params or {}), "seed": seed}
        seeded = replace(trial.config, seed=seed, name=name)
        on_seeds.append(replace(trial, name=name, config=seeded, params=point))
    return on_seeds, space


def leave_out(base: TrainConfig, name: str) -> TrainConfig:
    """Returns a training's settings without a component; `A+B` is without both.

    Raises:
        ConfigError: an unknown component, or one that the base does not have.
    """
    config = base
    for component in name.split("+") if "=" not in name else [name]:
        changes = _changes(component)
        if replace(config, **changes) == config:
            values = ", ".join(f"{key} is {config.to_json()[key]}" for key in changes)
            raise ConfigError(f"the base has no '{component}' to leave out: {values} already")
        config = replace(config, **changes)
    return config


def components_of(base: TrainConfig) -> tuple[str, ...]:
    """Names of the components that a training has."""
    return tuple(name for name, (_, changes) in COMPONENTS.items() if replace(base, **changes) != base)


def describe_components() -> str:
    """A line for each component."""
    return "\n".join(f"{name:<18} {meaning}" for name, (meaning, _) in COMPONENTS.items())


def _changes(component: str) -> Mapping[str, Any]:
    if "=" in component:
        ((name, values),) = read_space([component], ranges=False).items()
        if not isinstance(values, CategoricalDistribution) or len(values.choices) != 1:
            raise ConfigError(f"'{component}': an ablation replaces a setting by one value")
        return settings_of({name: values.choices[0]})
    if component not in COMPONENTS:
        raise ConfigError(f"unknown component '{component}'; use {', '.join(COMPONENTS)} or FIELD=VALUE")
    return COMPONENTS[component][1]


def read_space(texts: Sequence[str], *, ranges: bool) -> Space:
    """Reads `FIELD=VALUE,VALUE` and, with `ranges`, `FIELD=LEAST:MOST` or `FIELD=LEAST:MOST:log`.

    Raises:
        ConfigError: an unknown setting, one that is given twice, a value that it cannot have, or no range.
    """
    space: dict[str, Distribution] = {}
    settings = [name for name in field_types(TrainConfig) if name not in FIXED]
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name in FIXED:
            raise ConfigError(f"'{text}': a study sets {name} itself; use --seeds for seeds")
        if name not in settings:
            raise ConfigError(f"'{text}': unknown setting '{name}'; use {', '.join(settings)}")
        if not values:
            raise ConfigError(f"'{text}': write {name}=VALUE,VALUE")
        if name in space:
            raise ConfigError(f"--vary {name} is given twice; list its values, as {name}=A,B")
        if ranges and ":" in values:
            space[name] = _range(text, name, values.split(":"))
        else:
            space[name] = CategoricalDistribution([_value(name, value) for value in values.split(",")])
    return space


def settings_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that a point of a space stands for."""
    return {
        name: tuple(filter(None, value.split(ELEMENTS))) if _is_list(name) else value
        for name, value in params.items()
    }


def in_words(params: Mapping[str, Any]) -> str:
    """Formats settings as on the command line, with three digits for numbers."""
    return " ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in params.items()
    )


def _range(text: str, name: str, bounds: Sequence[str]) -> IntDistribution | FloatDistribution:
    if len(bounds) > 3 or bounds[2:] not in ([], ["log"]):
        raise ConfigError(f"'{text}': write {name}=LEAST:MOST or {name}=LEAST:MOST:log")
    low, high = (_value(name, bound) for bound in bounds[:2])
    if type(low) not in (int, float) or type(high) not in (int, float):
        raise ConfigError(f"'{text}': {name} is no number; list its values, as {name}=A,B")
    is_log = len(bounds) == 3
    if not low < high or (is_log and low <= 0):
        raise ConfigError(f"'{text}': the range is empty; the least value comes first, above 0 for log")
    return (IntDistribution if type(low) is int else FloatDistribution)(low, high, log=is_log)


def _value(name: str, text: str) -> Any:
    """Reads a value of a setting as Optuna stores it."""
    kind = field_types(TrainConfig)[name]
    value: Any = text.split(ELEMENTS) if _is_list(name) else text
    if str not in (kind, *get_args(kind)):
        with suppress(ValueError):
            value = json.loads(text.lower())
    setting = getattr(TrainConfig.from_json({name: value}, name), name)
    return text if _is_list(name) else setting


def _is_list(name: str) -> bool:
    return get_origin(field_types(TrainConfig)[name]) is tuple
