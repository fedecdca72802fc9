"""Fake tensors that know their values, for a step whose shapes or branches depend on these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._pytree import tree_leaves, tree_map_only

from graphs.capture.python_state import UNSET
from graphs.capture.values import node_value, tensors_of

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors of ops that need the values of a tensor."""
VALUE_OF = torch.ops.aten._local_scalar_dense.default
ANSWERING = (VALUE_OF, torch.ops.aten.equal.default, torch.ops.aten.allclose.default)
"""Ops that yield a Python value."""
LOW, HIGH, BOTH = "low", "high", "both"
_VALUE = "_placewalk_value"


class MadeUpAnswers:
    """A fake mode that can answer ops which need a value by made-up ones, to see if anything depends on them.

    Attributes:
        mode: the mode.
        which: answers: low values, high ones, or both in turn; None = none, which is an error.
        n_asked: number of answers.
    """

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.which: str | None = None
        self.n_asked = 0
        # Higher-order operators have rules for this very class, not for a subclass of it.
        self._dispatch, self.mode.dispatch = self.mode.dispatch, self._answer  # type: ignore[method-assign]

    def _answer(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._dispatch(func, types, args, kwargs or {})
        except DataDependentOutputException:
            if self.which is None or func not in ANSWERING:
                raise
        self.n_asked += 1
        is_high = self.which == HIGH or (self.which == BOTH and self.n_asked % 2 == 1)
        dtype = args[0].dtype if func is VALUE_OF else torch.bool
        if dtype.is_floating_point or dtype.is_complex:
            return 1e30 if is_high else -1e30
        return is_high if dtype is torch.bool else 100_000 * is_high


class KnownValues(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Runs each op on values too where all that it reads has some; they answer ops that need values.

    A value is freed with its fake tensor. A trace must make ops in place functional: values would change.

    Attributes:
        answers: results of ops of `ANSWERING` since the step began, in order.
        may_be_random: true if random numbers, which each step draws alike, came before a value was needed.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.answers: list[Any] = []
        self.may_be_random = self._drew = self._is_within = False

    def begin_step(self) -> None:
        """Begins the step anew."""
        torch.default_generator.manual_seed(UNSET)
        self.answers.clear()
        self._drew = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
    ) -> Any:
        """Runs an op on fake tensors, and on their values.

        An op within another makes up the shape of its result: what it yields has no value, as it may be
        memory that nobody wrote, unless its shape depends on values.
        """
        value, is_within, self._is_within = None, self._is_within, True
        try:
            made = super().__torch_dispatch__(func, types, args, kwargs)
        except NEEDS_VALUES:
            if (value := self._run(func, args, kwargs)) is None:
                raise
            self.may_be_random |= self._drew
            made = tree_map_only(Tensor, self.from_tensor, value)
        finally:
            self._is_within = is_within
        if is_within and value is None:
            return made
        leaves = tree_leaves(made)
        if func in ANSWERING and not is_within:
            self.answers.append(made)
        elif value is not None or any(
            isinstance(leaf, Tensor) and not hasattr(leaf, _VALUE) for leaf in leaves
        ):
            value = self._run(func, args, kwargs) if value is None else value
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

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an op on values; returns None if one is unknown or the op cannot run here."""
        may_draw = torch.Tag.nondeterministic_seeded in func.tags  # attention draws for dropout alone
        before = torch.get_rng_state() if may_draw else None
        try:
            args, kwargs = tree_map_only(FakeTensor, attrgetter(_VALUE), (args, kwargs))
            return func(*args, **kwargs)
        except Exception:
            return None
        finally:
            self._drew |= before is not None and not before.equal(torch.get_rng_state())


def give_value(fake: Tensor, value: Tensor) -> None:
    """Makes the value of a fake tensor known; that of one on the meta device is unknown."""
    vars(fake).pop(_VALUE, None)  # what uninitialized memory holds
    if not value.is_meta:
        setattr(fake, _VALUE, value.detach().cpu())


@contextmanager
def copied_values(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Gives fake tensors copies of their values, which ops in place may change; then those of before."""
    values = [(tensor, getattr(tensor, _VALUE)) for tensor in tensors if hasattr(tensor, _VALUE)]
    for tensor, value in values:
        setattr(tensor, _VALUE, value.clone())
    try:
        yield
    finally:
        for tensor, value in values:
            setattr(tensor, _VALUE, value)


def shapes_of(value: Any) -> list[tuple[int, ...]]:
    """Returns the shapes of the tensors in a value, in order."""
    return [tuple(tensor.shape) for tensor in tensors_of(value)]
