"""Runs a step twice before it is traced, to find what its trace, which stands for all steps, would lose.

The two runs compute the same where their results have equal numbers, by value numbering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphs.capture.known_values import BOTH, HIGH, LOW, copied_values
from graphs.capture.loss import CaptureError
from graphs.capture.step import Step
from graphs.system.errors import shortened

FOREIGN = (
    "forward reads values that torch does not make and that differ from run to run (a clock, a file, a "
    "random generator of its own); each step repeats those of the capture"
)
PLAIN = (int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
MOST_OPS = 1_000_000
LARGE = 1_000_000
"""Elements of a constant from which its memory stands for its values."""


def find_lost(step: Step) -> tuple[list[str], bool]:
    """Runs the forward pass on fake tensors, and again with the attributes that the first run left.

    If the second run computes something else, a trace loses what made the difference. The runs also settle
    how the step is traced: with `tensor.item()` as a tensor if it runs so, and with made-up numbers where it
    reads values on which nothing depends.

    Returns:
        A line for each thing that is lost, and whether that is all; it may not be if the step needs values.
    """
    runs = _Runs(step)
    first = runs.run(LOW)
    if first is None and step.n_items:
        step.items_are_tensors = False
        first = runs.run(LOW)
    if step.assigned:  # which is copied from now on
        first = runs.run(LOW)
    lines = step.drawn
    asks = runs.n_asked > 0 and not step.known_values
    is_settled = first is not None and (not asks or runs.run(HIGH) == runs.run(BOTH) == first)
    if not is_settled:
        return lines, False
    changed, step.restores = step.changed, False
    second, step.restores = runs.run(LOW), True
    third = first if second == first else runs.run(LOW)
    step.made_up.which = LOW if asks else None
    lost = changed_lines(changed) if second != third else []
    return [*lines, *lost, *([FOREIGN] if third != first else [])], True


def changed_lines(names: Sequence[str]) -> list[str]:
    """Says of the attributes that `forward` changed that they are not carried on."""
    if not names:
        return []
    return [
        f"forward changes {shortened(', '.join(names))}, but each step begins as the capture did; to carry a "
        "value on, keep it in a buffer that is changed in place"
    ]


class _Runs:
    """Runs a step forward on fake tensors.

    Attributes:
        n_asked: number of values that the last run asked for.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._numbers = step, ValueNumbers(state_varies=step.has_loss)
        self.n_asked = 0

    def run(self, answers: str) -> tuple[int, ...] | None:
        """Returns the numbers of what a run computes; None if it fails."""
        step, made_up = self._step, self._step.made_up
        made_up.which, made_up.n_asked = answers, 0
        # A loop that runs as often as a made-up answer says computes more than the run before, for minutes.
        self._numbers.most_ops = MOST_OPS if answers == LOW else 2 * self._numbers.n_ops + 1_000
        try:
            state = list(step.state.values())
            with copied_values([*state, *step.tensors]), step.fake_mode:
                return self._numbers.run(step.run, state, step.tensors)
        except CaptureError:
            if not made_up.n_asked:
                raise
            return None
        except Exception:
            return None
        finally:
            self.n_asked, made_up.which = made_up.n_asked, None


class ValueNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives each memory that an op writes a number: that of the op and of all that it reads.

    A value that one run leaves to the next has another number there, unless it follows from constants alone:
    the next run has other inputs, weights and random numbers.

    Args:
        state_varies: true if parameters and buffers are others in the next run.

    Source: value numbering, as in Alpern, Wegman and Zadeck 1988, over memory in place of variables.
    """

    supports_higher_order_operators = True

    def __init__(self, *, state_varies: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._state_varies = state_varies
        self._numbers: dict[int, tuple[Any, int, bool]] = {}
        self._n_drawn = self.n_ops = 0
        self.most_ops = MOST_OPS

    def run(
        self, function: Callable[[Sequence[Tensor], Sequence[Tensor]], Any], state: Any, inputs: Any
    ) -> tuple[int, ...]:
        """Runs a step; returns the numbers of its results and of the state that it leaves."""
        numbered = self._numbers.items()
        self._numbers = {
            key: (memory, hash((number, "kept")) if varies else number, varies)
            for key, (memory, number, varies) in numbered
        }
        self._n_drawn = self.n_ops = 0
        for kind, tensors, varies in (("state", state, self._state_varies), ("input", inputs, True)):
            for place, tensor in enumerate(tensors):
                self._note(tensor, hash((kind, place)), varies)
        with self:
            made = function(state, inputs)
        return tuple(self._read(leaf)[0] for leaf in [*tree_leaves(made), *state])

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Runs an op and numbers what it makes and writes."""
        kwargs = kwargs or {}
        self.n_ops += 1
        if self.n_ops > self.most_ops:
            raise RuntimeError("the step does not end")
        read = [self._read(leaf) for leaf in tree_leaves((args, kwargs))]
        made = func(*args, **kwargs)
        draws = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self._n_drawn += draws
        number = hash((str(func), self._n_drawn if draws else 0, *(value for value, _ in read)))
        varies = draws or any(value for _, value in read)
        written = self._written(func, args, kwargs)
        for place, leaf in enumerate(tree_leaves(made)):
            if isinstance(leaf, Tensor) and _memory(leaf)[0] not in self._numbers:
                self._note(leaf, hash((number, place)), varies)
        for place, leaf in enumerate(written):
            self._note(leaf, hash((number, "written", place)), varies)
        return made

    @staticmethod
    def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
        """Lists the tensors that an op changes in place."""
        schema = getattr(func, "_schema", None)
        if schema is None or not schema.is_mutable:
            return []
        values = {arg.name: value for arg, value in zip(schema.arguments, args, strict=False)} | kwargs
        names = [arg.name for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
        return [
            leaf for leaf in tree_leaves([values.get(name) for name in names]) if isinstance(leaf, Tensor)
        ]

    def _note(self, tensor: Tensor, number: int, varies: bool) -> None:
        key, memory = _memory(tensor)
        self._numbers[key] = memory, number, varies

    def _read(self, value: Any) -> tuple[int, bool]:
        """Returns the number of a value, and whether it may be another in the next run."""
        if not isinstance(value, Tensor):
            return hash(repr(value) if isinstance(value, PLAIN) else type(value).__name__), False
        key, _ = _memory(value)
        if key not in self._numbers:
            self._note(value, _content(value), False)
        _, number, varies = self._numbers[key]
        return hash((number, str(value.dtype), *_layout(value))), varies


def _memory(tensor: Tensor) -> tuple[int, Any]:
    """Returns a key of the memory behind a tensor, and what keeps the key in use."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a sparse tensor has several
        return id(tensor), tensor
    return storage._cdata, storage


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (tensor.shape,)
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _content(tensor: Tensor) -> int:
    """Returns a number of the values of a constant."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return hash(("constant", id(tensor)))
    if tensor.numel() > LARGE:
        return hash((tensor.data_ptr(), tensor._version))
    return hash(str(tensor.detach().cpu().flatten().tolist()))
