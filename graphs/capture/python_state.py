"""Attributes of modules that `forward` changes, and random numbers that torch does not draw."""

from __future__ import annotations

import copy
import random
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from graphs.system.errors import printable

NOT_COPIED = (Tensor, nn.Parameter, nn.Module)
"""Classes whose instances stay as they are in a copy of attributes."""
DRAWS = "forward draws random numbers from {}; each step repeats those of the capture; let torch draw"
SEEDS = "forward seeds torch's random numbers; where the step runs, each device draws from a seed of its own"
UNSET = 0x7ACE5EED
"""Seed of torch's random numbers while a step runs; no model sets it."""
OF_TORCH = vars(nn.Module()).keys() - {"training", "_buffers", "_modules", "_parameters"}
"""Attributes of each module that hold hooks."""
TRACES = "_placewalk_traces"
"""Attribute of a hook that records a trace, which restoring a module leaves there."""


class PythonState:
    """The attributes of modules as they are now, to compare with later ones and to restore.

    Numbers, containers and objects are copied, at any depth; tensors, modules and functions are not.

    Args:
        models: modules of the same paths, such as a module and its copy.
    """

    def __init__(self, *models: nn.Module) -> None:
        self._parts = [item for model in models for item in model.named_modules()]
        self._before = self._copied([_attributes(part) for _, part in self._parts])
        self._hooks = [{name: set(hooks) for name, hooks in _hooks_of(part)} for _, part in self._parts]

    def changed(self) -> list[str]:
        """Lists the paths of the attributes that are no longer the same."""
        paths: dict[str, None] = {}
        for (path, part), before in zip(self._parts, self._before, strict=True):
            now = _attributes(part)
            for name in before.keys() | now.keys():
                if _differs(name, before, now):
                    inside = _changed_keys(before, now) if name in ("_buffers", "_modules") else [name]
                    paths |= dict.fromkeys(printable(f"{path}{path and '.'}{key}") for key in inside)
        return sorted(paths)

    def restore(self) -> None:
        """Gives the modules the attributes that they had; what did not change stays the same object."""
        lost = []
        for (_, part), before in zip(self._parts, self._before, strict=True):
            now = _attributes(part)
            for name in now.keys() - before.keys():
                del vars(part)[name]
            lost.append({name: value for name, value in before.items() if _differs(name, before, now)})
        for (_, part), before in zip(self._parts, self._copied(lost), strict=True):
            vars(part).update(before)
        for (_, part), before in zip(self._parts, self._hooks, strict=True):
            for name, hooks in _hooks_of(part):
                for key in hooks.keys() - before[name]:
                    if not hasattr(hooks[key], TRACES):
                        del hooks[key]

    @staticmethod
    def _copied(attributes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        def same(value: Any, _: object) -> Any:
            return value

        kinds = [patch.object(kind, "__deepcopy__", same, create=True) for kind in NOT_COPIED]
        with kinds[0], kinds[1], kinds[2]:
            return copy.deepcopy(attributes)


@contextmanager
def foreign_draws() -> Iterator[list[str]]:
    """Yields a list of lines, in the end, on global generators that drew or were seeded; sets them back."""
    drawn: list[str] = []
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    torch.manual_seed(UNSET)
    try:
        yield drawn
    finally:
        drawn += [DRAWS.format("Python")] if random.getstate() != before[0] else []
        now = np.random.get_state()  # noqa: NPY002
        drawn += [] if _same(now, before[1], set()) else [DRAWS.format("NumPy")]
        drawn += [SEEDS] if torch.initial_seed() != UNSET else []
        torch.set_rng_state(before[2])
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


@contextmanager
def evaluating(module: nn.Module | None) -> Iterator[None]:
    """Puts a module that a closure may call into evaluation mode, and its parts back into their modes."""
    modes = [] if module is None else [(part, part.training) for part in module.modules()]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if name not in OF_TORCH}


def _hooks_of(part: nn.Module) -> list[tuple[str, dict[int, Any]]]:
    return [
        (name, value) for name, value in vars(part).items() if name in OF_TORCH and isinstance(value, dict)
    ]


def _differs(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return name not in before or name not in now or not _same(before[name], now[name], set())


def _changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names the buffers and modules that were added, removed or replaced."""
    items = [
        (before[kind].get(name), now[kind].get(name), name)
        for kind in ("_buffers", "_modules")
        for name in before[kind].keys() | now[kind].keys()
    ]
    return [name for old, new, name in items if old is not new]


def _same(one: Any, other: Any, compared: set[tuple[int, int]]) -> bool:
    """Says whether two values are equal at any depth; tensors and modules are if they are the same."""
    pair = id(one), id(other)
    if one is other or pair in compared:
        return True
    compared.add(pair)
    if type(one) is not type(other) or isinstance(one, NOT_COPIED):
        return False
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key], compared) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str | bytes | range):
        return len(one) == len(other) and all(map(_same, one, other, [compared] * len(one)))
    if isinstance(one, int | float | complex | str | bytes | set | frozenset | FunctionType | type):
        return bool(one == other or one != one)
    return _same(_state_of(one), _state_of(other), compared)


def _state_of(value: Any) -> Any:
    """Returns what an object consists of."""
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, weakref.ref):
        return value()
    try:
        return value.__getstate__()
    except Exception:  # what cannot be copied does not change
        return None
