"""Settings of a command: a dataclass whose fields are keys of a JSON file and flags of a command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from graphs.system.errors import InputError

OPTION = "option"
"""Key of the `Option` in a field's metadata."""
LARGEST_INT = 2**63 - 1
LONGEST_METAVAR = 24
"""Choices that take more characters are listed in the help text instead."""


@dataclass(frozen=True)
class Option:
    """The settings of a field besides its type and default.

    Attributes:
        help: text of the help, without the default, which is appended.
        group: heading of the help under which its flag stands.
        least, above, most: bounds of a number: at least, more than, at most.
        choices: the values allowed; of a list, for each element.
        some: a list must not be empty.
        metavar: placeholder of the flag's value; by default its type, or the choices where they are short.
        default: description of the default in the help; by default its value.
        without_value: value of the flag where none follows it; None: a value must follow.
    """

    help: str
    group: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: Sequence[str] = ()
    some: bool = False
    metavar: str = ""
    default: str = ""
    without_value: Any = None


def option(default: Any, help: str, *, group: str, default_text: str = "", **rules: Any) -> Any:
    """Makes a dataclass field that is a setting; `default_text` and the others are as `Option` has them."""
    return field(default=default, metadata={OPTION: Option(help, group, default=default_text, **rules)})


def option_of(cls: type[Settings], name: str, default: Any) -> Any:
    """Makes a dataclass field that is a setting of another class too, by the same rules.

    Args:
        cls: the other class, which has a field of this name and type.
    """
    metadata = next(item.metadata for item in fields(cls) if item.name == name)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """Base of a frozen dataclass of settings; every field is made by `option` and checked on construction.

    A field is a string, a whole number, a number, a flag (bool, False by default), a tuple of strings, or one
    of these or None, where None means that it was not given.

    Subclasses name the error that they raise: `class TrainConfig(Settings, error=ConfigError)`.

    Raises:
        InputError: a value of the wrong type or out of range; of the class that `error` names.
    """

    _error: ClassVar[type[InputError]] = InputError

    def __init_subclass__(cls, *, error: type[InputError] = InputError) -> None:
        super().__init_subclass__()
        cls._error = error

    def __post_init__(self) -> None:
        kinds = field_types(type(self))
        for item in fields(self):
            if problem := _problem(item, kinds[item.name], getattr(self, item.name)):
                raise self._error(f"{item.name} {problem}")

    def to_json(self) -> dict[str, Any]:
        """All fields by name, tuples as lists."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: object, where: str, base: Self | None = None) -> Self:
        """Reads settings from JSON values or parsed flags, over the fields of `base`.

        Args:
            values: a mapping of field names; a single string stands for a list of one.
            where: name of the source in messages.
            base: settings for keys that are not given; by default the defaults.

        Raises:
            InputError: not an object, an unknown key, or a bad value; of the class that `error` names.
        """
        if not isinstance(values, Mapping):
            raise cls._error(f"{where}: holds {type(values).__name__}, not an object of settings")
        kinds = field_types(cls)
        for key in values:
            if key not in kinds:
                raise cls._error(f"{where}: unknown key '{key}'; use {', '.join(kinds)}")
        try:
            cleaned = {key: _clean(value, kinds[key]) for key, value in values.items()}
            return replace(base, **cleaned) if base is not None else cls(**cleaned)
        except cls._error as error:
            raise cls._error(f"{where}: {error}") from None


def field_types(cls: type[Settings]) -> dict[str, Any]:
    """Type of each field, by name, in the order of declaration."""
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in fields(cls)}


def add_flags(parser: argparse.ArgumentParser, cls: type[Settings]) -> dict[str, argparse._ArgumentGroup]:
    """Adds one flag for each field of a settings class, in its groups and in the order of declaration.

    A flag that is not given is absent from the parsed options, if the parser was made with
    `argument_default=argparse.SUPPRESS`; what is given goes to `from_json`, which checks it.

    Returns:
        The groups of the help by heading, for flags that are no settings.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    kinds = field_types(cls)
    for item in fields(cls):
        rules: Option = item.metadata[OPTION]
        if rules.group not in groups:
            groups[rules.group] = parser.add_argument_group(rules.group)
        flag, kind = f"--{item.name.replace('_', '-')}", _without_none(kinds[item.name])
        if kind is bool:
            groups[rules.group].add_argument(flag, action="store_true", help=_help_of(item))
            continue
        is_list = get_origin(kind) is tuple
        groups[rules.group].add_argument(
            flag,
            type=str if is_list else kind,
            nargs="+" if is_list else "?" if rules.without_value is not None else None,
            const=rules.without_value,
            metavar=_metavar(rules, kind),
            help=_help_of(item),
        )
    return groups


def _metavar(rules: Option, kind: Any) -> str:
    shown = "|".join(rules.choices)
    if rules.metavar or (shown and len(shown) <= LONGEST_METAVAR):
        return rules.metavar or shown
    return {int: "N", float: "X"}.get(kind, "NAME")


def _help_of(item: Field[Any]) -> str:
    """The help text of a flag, with its choices where they are long and with its default."""
    rules: Option = item.metadata[OPTION]
    text = rules.help
    if len("|".join(rules.choices)) > LONGEST_METAVAR:
        text += f": {', '.join(rules.choices)}"
    default = None if item.default is MISSING else item.default
    if default is not False:
        shown = " ".join(default) if isinstance(default, tuple) else "" if default is None else f"{default}"
        text += f" (default: {rules.default or shown or 'none'})"
    return text.replace("%", "%%")


def _clean(value: object, kind: Any) -> Any:
    """A value as its field holds it: lists as tuples, a string as a list of one, whole numbers as numbers."""
    kind = _without_none(kind)
    if get_origin(kind) is tuple:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) <= LARGEST_INT else value
    return value


def _problem(item: Field[Any], kind: Any, value: Any) -> str:
    """Returns the problem with the value of a field and what would be right; empty if there is none."""
    rules: Option = item.metadata[OPTION]
    if value is None and _without_none(kind) is not kind:
        return ""
    kind = _without_none(kind)
    if not _is_a(value, kind):
        return f"is {value!r}; use {_describe(kind)}"
    if rules.some and not value:
        return "is empty; give at least one"
    for part in value if isinstance(value, tuple) else (value,):
        if rules.choices and part not in rules.choices:
            return f"is '{part}'; use {' or '.join(rules.choices)}"
    return _out_of_range(value, rules) if isinstance(value, int | float) else ""


def _out_of_range(value: float, rules: Option) -> str:
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        return f"has more than {len(str(LARGEST_INT)) - 1} digits; use at most {rules.most or LARGEST_INT}"
    if not math.isfinite(value):
        return f"is {value}; use a finite number"
    if rules.least is not None and value < rules.least:
        return f"is {value}; use at least {rules.least}"
    if rules.above is not None and value <= rules.above:
        return f"is {value}; use more than {rules.above}"
    if rules.most is not None and value > rules.most:
        return f"is {value}; use at most {rules.most}"
    return ""


def _without_none(kind: Any) -> Any:
    """The type of a field that may be None, without None."""
    if get_origin(kind) in (Union, UnionType):
        return next(part for part in get_args(kind) if part is not NoneType)
    return kind


def _is_a(value: object, kind: Any) -> bool:
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return isinstance(value, tuple) and all(_is_a(part, inner) for part in value)
    if kind is bool:
        return isinstance(value, bool)
    return isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)


def _describe(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "a list of strings"
    return {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}[kind]
