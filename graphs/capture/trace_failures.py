"""One line on why a trace failed, with the line of the user's code at which it did."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from graphs.capture.step import one_line
from graphs.system.user_line import user_line

VALUE_OF = torch.ops.aten._local_scalar_dense.default
NEEDS_VALUE = "needs a tensor's value (`.item()`, `if tensor`)"


def needs_values(error: Exception) -> bool:
    """Says whether a trace failed because the model needs the values of a tensor."""
    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException)


def describe_failure(error: Exception) -> str:
    """Describes a failed trace in one line: `models.py:12: <what is wrong>`."""
    reason = one_line(error)
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        needs = NEEDS_VALUE if error.func is VALUE_OF else f"needs the values that {error.func} yields"
        reason = (
            f"{needs}, and a trace has shapes only; "
            "avoid .item(), nonzero, masks as indices and branches on tensors"
        )
    line = user_line(error)
    return f"{line}: {reason}" if line else reason
