"""Model families: each draws a plain `nn.Module` on the meta device, and example inputs, from a seed.

A new family is a decorated function in a module of this folder, and a line in `SHIPPED`. Names and counts are
known without torch; the modules load when a family is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from graphs.system.errors import InputError
from graphs.system.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
Drawn: TypeAlias = "tuple[nn.Module, tuple[Tensor, ...]]"
Drawer: TypeAlias = "Callable[[np.random.Generator], Drawn]"


class FamilyError(InputError):
    """A family that does not exist, a name that is taken, or a seed that a family cannot be drawn from."""


SHIPPED = {
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
    "ssm": 14,
    "gnn": 14,
    "t5": 14,
    "switch": 14,
}
FAMILIES: Registry[int] = Registry("family", FamilyError, entries=SHIPPED, group="placewalk.families")
"""Graphs of each family in the shipped benchmark set, drawn from seeds 0, 1, ..."""
DRAWERS: Registry[Drawer] = Registry(
    "family", FamilyError, [f"{__name__}.{module.name}" for module in iter_modules(__path__)]
)
"""Functions that draw a model of each family; modules of this folder are imported at the first look-up."""


def family(name: str) -> Callable[[Drawer], Drawer]:
    """Registers a function `(rng) -> (module, inputs)` as the family `name`.

    It is called with `torch.device("meta")` in force, so it need not mention a device.

    Raises:
        FamilyError: the name is taken, or is not in `FAMILIES`.
    """
    if name not in FAMILIES:
        raise FamilyError(f"family '{name}': its number of graphs is not known; add it to FAMILIES")
    return partial(DRAWERS.register, name)


def draw(name: str, seed: int) -> Drawn:
    """Draws a model of a family: the same name and seed always give the same model.

    Args:
        seed: any integer >= 0; the benchmark set holds 0 to `FAMILIES[name] - 1`.

    Returns:
        The module, on the meta device, and the inputs to call it with; it returns its scalar training loss.

    Raises:
        FamilyError: unknown family or negative seed.
    """
    import torch

    drawer = DRAWERS[FAMILIES.check(name)]
    if seed < 0:
        raise FamilyError(f"family '{name}': seed {seed} is negative; use an integer >= 0")
    with torch.device("meta"):
        return drawer(np.random.default_rng([seed, *name.encode()]))


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """Draws one of the options, all equally likely; it keeps its type (`rng.choice` returns numpy's)."""
    return options[int(rng.integers(len(options)))]
