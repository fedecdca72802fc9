"""Fake tensors that know their values, for a step whose shapes or branches depend on these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves, tree_map_only

from graphs.capture.values import node_value, tensors_of

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors of ops that need the values of a tensor."""
VALUE_OF = torch.ops.aten._local_scalar_dense.default
ANSWERING = (VALUE_OF, torch.ops.aten.equal.default, torch.ops.aten.allclose.default)
"""Ops that yield a Python value."""
_KNOWN = "_placewalk_known"


class KnownValues(FakeTensorMode):
    """Runs each op on values too where all that it reads has some; they answer ops that need values.

    A value is freed with its fake tensor. A trace must make ops in place functional: values would change.

    Attributes:
        answers: what ops of `ANSWERING` gave since the step began, in order.
        are_random: whether an answer or a shape follows from random numbers, which each step draws alike.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.answers: list[Any] = []
        self.are_random = False

    def begin_step(self) -> None:
        """Begins the step anew."""
        torch.default_generator.manual_seed(0)
        self.answers.clear()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
    ) -> Any:
        """Runs an op on fake tensors, and on their values."""
        try:
            made, known = super().__torch_dispatch__(func, types, args, kwargs), None
        except NEEDS_VALUES:
            if (known := _run(func, args, kwargs)) is None:
                raise
            self.are_random |= known[1]
            made = tree_map_only(Tensor, self._fake, known[0])
        if func in ANSWERING:
            self.answers.append(made)
        elif known or any(
            isinstance(leaf, Tensor) and not hasattr(leaf, _KNOWN) for leaf in tree_leaves(made)
        ):
            value, is_random = known or _run(func, args, kwargs) or (made, False)
            for leaf, own in zip(tree_leaves(made), tree_leaves(value), strict=True):
                if isinstance(leaf, Tensor) and not isinstance(own, FakeTensor):
                    give_value(leaf, own, is_random)
        return made

    def _fake(self, value: Tensor) -> Tensor:
        with self:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")

    def held(self, nodes: Sequence[fx.Node]) -> dict[fx.Node, Any]:
        """Returns what nodes of the step must yield for its trace to hold: Python values, or shapes."""
        asked = (node for node in nodes if node.target in ANSWERING)
        dynamic = (
            node for node in nodes if torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())
        )
        answers = dict(zip(asked, self.answers, strict=True))
        return answers | {node: shapes_of(node_value(node)) for node in dynamic}


def give_value(fake: Tensor, value: Tensor, is_random: bool = False) -> None:
    """Makes the value of a fake tensor known, if there is one."""
    if not value.is_meta:
        setattr(fake, _KNOWN, (value.detach().cpu(), is_random))


def shapes_of(value: Any) -> list[tuple[int, ...]]:
    """Returns the shapes of the tensors in a value, in order."""
    return [tuple(tensor.shape) for tensor in tensors_of(value)]


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, bool] | None:
    """Runs an op on values; returns what it makes, and whether by random numbers; None if it cannot run."""
    read = [getattr(leaf, _KNOWN, (None, False)) for leaf in tree_leaves((args, kwargs))]
    is_random = torch.Tag.nondeterministic_seeded in func.tags or any(drawn for _, drawn in read)
    try:
        args, kwargs = tree_map_only(FakeTensor, lambda fake: getattr(fake, _KNOWN)[0], (args, kwargs))
        return func(*args, **kwargs), is_random
    except Exception:
        return None
