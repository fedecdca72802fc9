"""The device program of one device in a step: plain data that can be sent to another process."""

from __future__ import annotations

import copyreg
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from envs.runtime.backends import fused_ops
from graphs.system.errors import InputError

T = TypeVar("T")


class ExecutionError(InputError):
    """A step that cannot be run, or that failed; the message says where and why."""


class DeviceLostError(ExecutionError):
    """A device whose process was killed or took too long; the input may be right, and the step run later."""

    exit_code = 1


def check_timeout(timeout_s: float | None) -> None:
    """Checks a limit of seconds, None where there is none.

    Raises:
        ExecutionError: it is no number above 0.
    """
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s > 0):
        raise ExecutionError(f"timeout_s is {timeout_s!r}; give seconds above 0, or None for no limit")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one value of a step on one device."""

    index: int


@dataclass(frozen=True)
class TensorSpec:
    """The memory layout of a transferred tensor.

    Attributes:
        stride: stride in elements.
        n_bytes: most bytes that it takes, from its first element to its last.
        sparse: true if it is a sparse tensor, whose indices and values are sent.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    n_bytes: int
    sparse: bool = False

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Returns how a dense tensor, which may be fake, lies in memory."""
        spans = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        count = sum(spans) + 1 if tensor.numel() else 0
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(shape, stride, tensor.dtype, count * tensor.element_size())


@dataclass(frozen=True)
class Transfer:
    """A tensor that one device sends to another, once in a step.

    Attributes:
        index: number of the transfer within the step.
        source, target: device indices.
        rank: number of transfers before it from this source to this target.
    """

    index: int
    source: int
    target: int
    rank: int
    spec: TensorSpec


@dataclass(frozen=True)
class Call:
    """Calls a function of torch.

    Attributes:
        op: index in the op graph; -1 for a view, which is no op.
        function: e.g. `aten.mm.default`.
        arguments, keywords: values of the call; a `Slot` stands for its value, also in lists and tuples.
        held: result without which the captured step does not hold, as `Trace.held`; None for anything.
        line: line of the user's code that is held.
    """

    op: int
    function: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    out: Slot
    held: Any = None
    line: str = ""


@dataclass(frozen=True)
class Send:
    """Sends a value to another device."""

    transfer: Transfer
    value: Slot


@dataclass(frozen=True)
class Receive:
    """Waits for a value from another device."""

    transfer: Transfer
    out: Slot


Instruction: TypeAlias = Call | Send | Receive


@dataclass(frozen=True)
class DeviceProgram:
    """The instructions that one device runs in a step.

    Attributes:
        n_slots: number of values that the device program names.
        instructions: instructions in the order in which they run.
        frees: slots whose values no later instruction reads, per instruction; sources are never freed.
        state: path of each parameter and buffer that lives here, and its slot, which may be read by no one.
        constants: name and slot of each constant of the model.
        inputs: index and slot of each input of the model.
        trained: path of each parameter that is updated here, and the slot of its gradient.
        new_values: path of each buffer that the step changes, and the slot of its new value.
        outputs: index of each output of the step, and its slot.
    """

    device: int
    n_slots: int
    instructions: tuple[Instruction, ...]
    frees: tuple[tuple[int, ...], ...]
    state: tuple[tuple[str, Slot], ...]
    constants: tuple[tuple[str, Slot], ...]
    inputs: tuple[tuple[int, Slot], ...]
    trained: tuple[tuple[str, Slot], ...]
    new_values: tuple[tuple[str, Slot], ...]
    outputs: tuple[tuple[int, Slot], ...]

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Transfers to and from this device, in the order of the instructions."""
        return tuple(
            instruction.transfer for instruction in self.instructions if not isinstance(instruction, Call)
        )

    @property
    def functions(self) -> list[str]:
        """Names of the functions that are called, each once."""
        calls = (instruction for instruction in self.instructions if isinstance(instruction, Call))
        return list(dict.fromkeys(call.function for call in calls))


def function_name(target: Any) -> str:
    """Names a function that a traced node calls, so that another process finds it.

    Raises:
        ExecutionError: it is no operator of torch's.
    """
    if target in _PLAIN_NAMES:
        return _PLAIN_NAMES[target]
    if not isinstance(target, torch._ops.OpOverload):
        raise ExecutionError(f"op '{target}' cannot be run on its own; it is no operator of torch")
    return f"{target.namespace}.{target._opname}.{target._overloadname}"


def find_function(name: str) -> Callable[..., Any]:
    """Finds the function of a name that `function_name` gave.

    Raises:
        ExecutionError: this process knows no such operator, as it was registered by other code.
    """
    if name in PLAIN:
        return PLAIN[name]
    try:
        return operator.attrgetter(name)(torch.ops)
    except (AttributeError, RuntimeError):
        raise ExecutionError(f"op '{name}' is not known to the process of a device") from None


def slots_in(value: Any) -> Iterator[Slot]:
    """Yields the slots in an argument."""
    if isinstance(value, Slot):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from slots_in(item)


def with_replaced(value: Any, kind: type[T], replace: Callable[[T], Any]) -> Any:
    """Returns an argument with something else in place of all values of a type, also in lists and tuples."""
    if isinstance(value, kind):
        return replace(value)
    if isinstance(value, list | tuple):
        items = [with_replaced(item, kind, replace) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: with_replaced(item, kind, replace) for key, item in value.items()}
    return value


def _identity(value: Any, **_: Any) -> Any:
    return value  # for a clone that keeps the layout, whatever its keywords say


PLAIN: dict[str, Callable[..., Any]] = {
    "getitem": operator.getitem,
    "ones_like": torch.ones_like,
    "zeros_like": torch.zeros_like,
    "identity": _identity,
    "attention": fused_ops.attention,
    "attention_backward": fused_ops.attention_backward,
    "aten._scaled_dot_product_efficient_attention.default": fused_ops.efficient_attention,
    "aten._scaled_dot_product_efficient_attention_backward.default": fused_ops.efficient_attention_backward,
    "aten._fused_rms_norm_backward.default": fused_ops.rms_norm_backward,
}
"""Functions that are no operators of torch's, or those of GPUs alone."""


def _memory_format(name: str) -> torch.memory_format:
    return getattr(torch, name.removeprefix("torch."))


# Pickle would look for `torch` in some module that imports it, also in a script that only the caller runs.
copyreg.pickle(torch.memory_format, lambda value: (_memory_format, (str(value),)))
_PLAIN_NAMES = {operator.getitem: "getitem"}
