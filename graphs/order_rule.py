"""The rule behind the order `auto`: a small tree of questions about the shape of a graph.

`python -m agent.experiments.orders --rule FILE` fits it to trainings in every order and judges it on families
that were left out of the fit. `graphs/order_rule.json` is what the study came to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TypeAlias

from graphs.shape import GraphShape
from graphs.system.json_files import FileFormatError, read_json

FORMAT = "placewalk.order_rule/1"
FILE = Path(__file__).with_suffix(".json")
FEATURES = tuple(item.name for item in fields(GraphShape))


@dataclass(frozen=True)
class Question:
    """Asks whether a number of the shape is at most a threshold.

    Attributes:
        feature: name of the number, of `GraphShape`.
        if_so, otherwise: the next question, or the order.
    """

    feature: str
    at_most: float
    if_so: OrderRule
    otherwise: OrderRule


OrderRule: TypeAlias = "Question | str"
"""A question, or the name of an order."""


def pick_order(rule: OrderRule, shape: GraphShape) -> str:
    """Name of the order that a rule picks for a graph of a shape."""
    while isinstance(rule, Question):
        rule = rule.if_so if getattr(shape, rule.feature) <= rule.at_most else rule.otherwise
    return rule


def describe(rule: OrderRule, depth: int = 0) -> list[str]:
    """Lines that say a rule in words."""
    indent = "  " * depth
    if isinstance(rule, str):
        return [f"{indent}{rule}"]
    return [
        f"{indent}{rule.feature} at most {rule.at_most:.4g}:",
        *describe(rule.if_so, depth + 1),
        f"{indent}otherwise:",
        *describe(rule.otherwise, depth + 1),
    ]


def to_json(rule: OrderRule) -> object:
    """A rule as a value for JSON: the name of an order, or a question as an object."""
    if isinstance(rule, str):
        return rule
    parts = {"if_so": to_json(rule.if_so), "otherwise": to_json(rule.otherwise)}
    return {"feature": rule.feature, "at_most": rule.at_most, **parts}


def from_json(value: object, where: str) -> OrderRule:
    """Reads what `to_json` made; orders are looked up when they are used.

    Raises:
        FileFormatError: the value is no rule; the message begins with `where`.
    """
    match value:
        case str():
            return value
        case {"feature": str(feature), "at_most": int() | float() as at_most, **parts} if feature in FEATURES:
            branches = (from_json(parts.get(key), f"{where}.{key}") for key in ("if_so", "otherwise"))
            return Question(feature, float(at_most), *branches)
    raise FileFormatError(
        f"{where}: expected the name of an order, or feature (one of {', '.join(FEATURES)}), at_most, if_so "
        f"and otherwise"
    )


@cache
def shipped_rule() -> OrderRule:
    """The rule in `graphs/order_rule.json`.

    Raises:
        FileFormatError: the file is damaged.
    """
    record = read_json(FILE)
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise FileFormatError(f"{FILE}: expected an object with format '{FORMAT}'")
    return from_json(record.get("rule"), f"{FILE}: rule")
