"""Settings of a training in words: `hidden=32,64`, `order=topo+bfs`, `learning_rate=1e-4:1e-2:log`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from agent.training.config import ConfigError, TrainConfig
from graphs.system.settings import field_types

FIXED = ("name", "seed", "context")
"""Settings that a study sets itself."""
ELEMENTS = "+"
"""Between the elements of a list."""


@dataclass(frozen=True)
class Choice:
    """A setting and the values that it may have."""

    field: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A number and the interval that it is drawn from, evenly or evenly in its logarithm."""

    field: str
    least: float
    most: float
    is_log: bool

    @property
    def is_whole(self) -> bool:
        """Says whether it is a whole number."""
        return type(self.least) is int


def parse_choice(text: str) -> Choice:
    """Reads `FIELD=VALUE,VALUE`.

    Raises:
        ConfigError: no setting of that name, or a value that it cannot have.
    """
    name, values = _split(text)
    return Choice(name, tuple(parse_value(name, value) for value in values.split(",")))


def parse_space(text: str) -> Choice | Range:
    """Reads `FIELD=VALUE,VALUE`, `FIELD=LEAST:MOST` or `FIELD=LEAST:MOST:log`.

    Raises:
        ConfigError: no setting of that name, a value that it cannot have, or an empty range.
    """
    name, values = _split(text)
    if ":" not in values:
        return parse_choice(text)
    least, most, *scale = values.split(":")
    if scale not in ([], ["log"]):
        raise ConfigError(f"'{text}': write {name}=LEAST:MOST or {name}=LEAST:MOST:log")
    bounds = parse_value(name, least), parse_value(name, most)
    if any(type(bound) not in (int, float) for bound in bounds):
        raise ConfigError(f"'{text}': {name} is no number; list its values, as {name}=A,B")
    if not bounds[0] < bounds[1] or (scale and bounds[0] <= 0):
        raise ConfigError(f"'{text}': the range is empty; the least value comes first, above 0 for log")
    return Range(name, *bounds, is_log=bool(scale))


def read_space(texts: Sequence[str]) -> list[Choice | Range]:
    """Reads the space of a search.

    Raises:
        ConfigError: it is empty, names a setting twice, or a setting or a value of it is wrong.
    """
    if not texts:
        raise ConfigError("a search needs a space; give --vary FIELD=LEAST:MOST ...")
    space = [parse_space(text) for text in texts]
    check_once([part.field for part in space])
    return space


def check_once(names: Sequence[str]) -> None:
    """Checks that no setting is varied twice.

    Raises:
        ConfigError: one is.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--vary {name} is given twice; list its values, as {name}=A,B")


def parse_value(name: str, text: str) -> Any:
    """Reads a value of a setting, as its flag does; `A+B` is a list of two.

    Raises:
        ConfigError: the setting cannot have it.
    """
    kind = field_types(TrainConfig)[name]
    kinds = {*(get_args(kind) or (kind,))}
    try:
        if get_origin(kind) is tuple:
            value: Any = tuple(filter(None, text.split(ELEMENTS)))
        elif bool in kinds:
            value = {"true": True, "false": False}[text.lower()]
        elif int in kinds:
            value = int(text)
        else:
            value = float(text) if float in kinds else text
    except (KeyError, ValueError):
        raise ConfigError(f"{name} is {text!r}; use {_describe(kinds)}") from None
    TrainConfig.from_json({name: list(value) if isinstance(value, tuple) else value}, name)
    return value


def _split(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    known = [each for each in field_types(TrainConfig) if each not in FIXED]
    if name in FIXED:
        raise ConfigError(f"'{text}': a study sets {name} itself; use --seeds for seeds")
    if name not in known:
        raise ConfigError(f"'{text}': unknown setting '{name}'; use {', '.join(known)}")
    if not equals or not values:
        raise ConfigError(f"'{text}': write {name}=VALUE,VALUE")
    return name, values


def _describe(kinds: set[Any]) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number"}
    return next(text for kind, text in names.items() if kind in kinds)
