"""Fake tensors that know their values, for a step whose shapes or branches depend on these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._pytree import tree_leaves, tree_map_only

from graphs.capture.values import node_value, tensors_of

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors of ops that need the values of a tensor."""
VALUE_OF = torch.ops.aten._local_scalar_dense.default
ANSWERING = (VALUE_OF, torch.ops.aten.equal.default, torch.ops.aten.allclose.default)
"""Ops that yield a Python value."""
_VALUE = "_placewalk_value"


class KnownValues(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Runs each op on values too where all that it reads has some; they answer ops that need values.

    A value is freed with its fake tensor. A trace must make ops in place functional: values would change.

    Attributes:
        answers: what ops of `ANSWERING` gave since the step began, in order.
        may_be_random: whether random numbers, which each step draws alike, came before a value was needed.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.answers: list[Any] = []
        self.may_be_random = self._drew = False

    def begin_step(self) -> None:
        """Begins the step anew."""
        torch.default_generator.manual_seed(0)
        self.answers.clear()
        self._drew = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
    ) -> Any:
        """Runs an op on fake tensors, and on their values."""
        value = None
        try:
            made = super().__torch_dispatch__(func, types, args, kwargs)
        except NEEDS_VALUES:
            if (value := _run(func, args, kwargs)) is None:
                raise
            self.may_be_random |= self._drew
            made = tree_map_only(Tensor, self.from_tensor, value)
        self._drew |= torch.Tag.nondeterministic_seeded in func.tags
        leaves = tree_leaves(made)
        if func in ANSWERING:
            self.answers.append(made)
        elif value is not None or any(
            isinstance(leaf, Tensor) and not hasattr(leaf, _VALUE) for leaf in leaves
        ):
            value = _run(func, args, kwargs) if value is None else value
            for leaf, its_value in zip(leaves, tree_leaves(value), strict=False):
                if isinstance(leaf, Tensor) and its_value is not None:
                    give_value(leaf, its_value)
        return made

    def held(self, nodes: Sequence[fx.Node]) -> dict[fx.Node, Any]:
        """Returns what nodes of the step must yield for its trace to hold: Python values, or shapes."""
        asked = [node for node in nodes if node.target in ANSWERING]
        shaped = [
            node for node in nodes if torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())
        ]
        answers = dict(zip(asked, self.answers, strict=True))
        return answers | {node: shapes_of(node_value(node)) for node in shaped}


def give_value(fake: Tensor, value: Tensor) -> None:
    """Makes the value of a fake tensor known; that of one on the meta device is unknown."""
    vars(fake).pop(_VALUE, None)  # what uninitialized memory holds
    if not value.is_meta:
        setattr(fake, _VALUE, value.detach().cpu())


def shapes_of(value: Any) -> list[tuple[int, ...]]:
    """Returns the shapes of the tensors in a value, in order."""
    return [tuple(tensor.shape) for tensor in tensors_of(value)]


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Runs an op on values; returns None if one is unknown or the op cannot run here."""
    try:
        args, kwargs = tree_map_only(FakeTensor, attrgetter(_VALUE), (args, kwargs))
        return func(*args, **kwargs)
    except Exception:
        return None
