"""Inputs of a runner from users: parameters, buffers and constants of a module; and checks of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from envs.runtime.device_program import ExecutionError
from graphs.capture.captured_step import CapturedStep
from graphs.capture.loss import CaptureError
from graphs.capture.values import constant_value
from graphs.system.errors import print_notice


def state_of(captured: CapturedStep, module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a module by path, tied ones once, by their first path.

    A tensor that is a plain attribute of a module counts as a buffer.

    Raises:
        ExecutionError: they are others than those of the captured module, or have no values.
    """
    tensors: dict[str, Tensor] = {}
    for path, captured_as in captured.step.state.items():
        tensor = tensors[path] = _attribute(module, path).detach()
        if tensor.shape != captured_as.shape or tensor.dtype != captured_as.dtype:
            raise ExecutionError(
                f"'{path}' is {tensor.dtype} {list(tensor.shape)}; the captured tensor is "
                f"{captured_as.dtype} {list(captured_as.shape)}; capture the module again"
            )
        if tensor.is_meta:
            raise ExecutionError(
                f"'{path}' is on the meta device and has no values; make the module on the CPU"
            )
    return tensors


def _attribute(module: nn.Module, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    try:
        return getattr(module.get_submodule(owner), name)
    except AttributeError:
        raise ExecutionError(
            f"the module has no '{path}', which the captured module has; capture it again"
        ) from None


def constants_of(captured: CapturedStep) -> dict[str, Tensor]:
    """Returns the values of the constants in a trace, by name.

    Raises:
        ExecutionError: one is no tensor, or has no values.
    """
    constants: dict[str, Tensor] = {}
    for node, name in captured.trace.sources.items():
        if node.op == "get_attr":
            value = constant_value(node)
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise ExecutionError(f"the step reads a {kind} of the model; it can read only tensors")
            if isinstance(value, FakeTensor) or value.is_meta:
                raise ExecutionError(f"constant '{name}' of the model has no values; make it a buffer")
            constants[name] = value
    return constants


def keys_of(captured: CapturedStep, module: nn.Module) -> dict[str, str]:
    """Finds the path in the captured step of each key of a module's `state_dict`."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    path_of = {id(state[path]): path for path in captured.step.state if path in state}
    stored = module.state_dict(keep_vars=True)
    return {key: path_of[id(value)] for key, value in stored.items() if id(value) in path_of}


def check_options(captured: CapturedStep, options: Mapping[str, Any]) -> None:
    """Checks the keywords of the optimizers of a step by steps of these on small tensors.

    A notice tells the bytes that they keep with these options beyond those that were planned, and of master
    weights or cast gradients, which no runner has.

    Raises:
        ExecutionError: a number is not finite, or an optimizer does not take a keyword or its value.
    """
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ExecutionError(f"{name} is {value}; give the optimizer a finite number")
    updates, arguments = captured.updates, ", ".join(f"{name}={value!r}" for name, value in options.items())
    with_options = {rule: rule.with_options(options) for rule in updates.rules.values()}
    with_own = replace(updates, rules={path: with_options[rule] for path, rule in updates.rules.items()})
    try:
        bytes_kept, planned = (
            sum(choice.state_bytes(path, captured.step.state[path]) for path in choice.rules)
            for choice in (with_own, replace(with_own, rules=updates.rules))
        )
    except CaptureError as error:
        name = next(iter(updates.rules.values())).name
        raise ExecutionError(f"optimizer '{name}' does not take {arguments}: {error.__cause__}") from None
    if bytes_kept > planned:
        print_notice(
            f"with {arguments} the optimizer keeps {bytes_kept:,.0f} bytes, "
            f"{bytes_kept - planned:,.0f} more than planned; place with these options, as "
            "optimizer=functools.partial(torch.optim.SGD, momentum=0.9)"
        )
    if updates.master_dtype or updates.gradient_dtype:
        print_notice(
            "master_weights and gradient_dtype are planned, but not run: weights are updated as they are"
        )


def check_values(what: str, value: Any) -> None:
    """Checks that something is a tensor whose values lie densely in memory.

    Raises:
        ExecutionError: it is none.
    """
    if not isinstance(value, Tensor):
        raise ExecutionError(f"{what} is {type(value).__name__}; give a tensor")
    if value.is_meta:
        raise ExecutionError(f"{what} is a meta tensor, which has no values; give one that has")
    if value.layout is not torch.strided:
        raise ExecutionError(f"{what} is a sparse tensor; give a dense one, as .to_dense() makes")


def check_mapping(what: str, value: Any) -> None:
    """Checks that something is a mapping.

    Raises:
        ExecutionError: it is none.
    """
    if not isinstance(value, Mapping):
        raise ExecutionError(f"{what} is {type(value).__name__}; give a mapping, as the runner returns it")


def check_optimizer_state(state: Any) -> None:
    """Checks that what an optimizer is to keep of each parameter are dense tensors and numbers.

    Raises:
        ExecutionError: something else is.
    """
    check_mapping("the optimizer's state", state)
    for path, state_of in state.items():
        check_mapping(f"'{path}' of the optimizer's state", state_of)
        for key, value in state_of.items():
            if value is not None and not isinstance(value, int | float):
                check_values(f"'{key}' of '{path}' of the optimizer's state", value)
