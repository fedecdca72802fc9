"""Settings of a training in words: `hidden=32,64`, `order=topo+bfs`, `learning_rate=1e-4:1e-2:log`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args, get_origin

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from agent.training.config import ConfigError, TrainConfig
from graphs.system.settings import field_types

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Space = Mapping[str, Distribution]
"""Values that settings may have, by setting; a list is a text, as Optuna stores no lists."""
FIXED = ("name", "seed", "context")
"""Settings that a study sets itself."""
ELEMENTS = "+"
"""Separates the elements of a list."""


def read_space(texts: Sequence[str], *, ranges: bool) -> Space:
    """Reads the values that settings may have.

    Args:
        texts: `FIELD=VALUE,VALUE` and, with `ranges`, `FIELD=LEAST:MOST` or `FIELD=LEAST:MOST:log`.

    Raises:
        ConfigError: an unknown setting, one that is given twice, a value that it cannot have, or no range.
    """
    space: dict[str, Distribution] = {}
    known = [name for name in field_types(TrainConfig) if name not in FIXED]
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name in FIXED:
            raise ConfigError(f"'{text}': a study sets {name} itself; use --seeds for seeds")
        if name not in known:
            raise ConfigError(f"'{text}': unknown setting '{name}'; use {', '.join(known)}")
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
