"""The registry of model families; a family's module is imported only when it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
Drawn: TypeAlias = "tuple[nn.Module, tuple[Tensor, ...]]"
Drawer: TypeAlias = "Callable[[np.random.Generator], Drawn]"

FAMILIES: dict[str, int] = {
    "cifar10": 32,
    "ptb": 32,
    "nmt": 32,
    "resnet": 14,
    "inception": 14,
    "gpt": 14,
    "bert": 14,
    "vit": 14,
    "moe": 14,
    "randwire": 48,
    "llama": 12,
}
"""Graphs of each family in the shipped benchmark set, drawn from seeds 0, 1, ...; family X is in module X."""

_DRAWERS: dict[str, Drawer] = {}


class FamilyError(ValueError):
    """A family that does not exist, or a seed it cannot be drawn from."""


def family(name: str) -> Callable[[Drawer], Drawer]:
    """Register a function `(rng) -> (module, inputs)` as the family `name`.

    It is called with `torch.device("meta")` in force, so it need not mention a device.
    """

    def register(drawer: Drawer) -> Drawer:
        _DRAWERS[name] = drawer
        return drawer

    return register


def check_family(name: str) -> str:
    """The name itself.

    Raises:
        FamilyError: if there is no such family.
    """
    if name not in FAMILIES:
        raise FamilyError(f"no family '{name}'; use one of {', '.join(FAMILIES)}")
    return name


def draw(name: str, seed: int) -> Drawn:
    """Draw a model of a family: the same name and seed always give the same model.

    Args:
        seed: any integer >= 0; the benchmark set holds 0 to `FAMILIES[name] - 1`.

    Returns:
        The module, on the meta device, and the inputs to call it with; it returns its scalar training loss.

    Raises:
        FamilyError: unknown family or negative seed.
    """
    import torch

    check_family(name)
    if seed < 0:
        raise FamilyError(f"family '{name}': seed {seed} is negative; use an integer >= 0")
    import_module(f"graphs.families.{name}")
    with torch.device("meta"):
        return _DRAWERS[name](np.random.default_rng([seed, *name.encode()]))


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One of the options, all equally likely, with its own type (`rng.choice` returns numpy's)."""
    return options[int(rng.integers(len(options)))]
