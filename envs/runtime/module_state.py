"""Reads from a module what a captured step of it needs to run: parameters, buffers and constants."""

from __future__ import annotations

from torch import Tensor, nn
from torch._subclasses import FakeTensor

from envs.runtime.device_program import ExecutionError
from graphs.capture.captured_step import CapturedStep
from graphs.capture.values import constant_value


def state_of(captured: CapturedStep, module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a module by path, tied ones once, by their first path.

    A tensor that is a plain attribute of a module counts as a buffer.

    Raises:
        ExecutionError: they are others than those of the captured module, or have no values.
    """
    found: dict[str, Tensor] = {}
    for path, captured_as in captured.step.state.items():
        tensor = found[path] = _attribute(module, path).detach()
        if tensor.shape != captured_as.shape or tensor.dtype != captured_as.dtype:
            raise ExecutionError(
                f"'{path}' is {tensor.dtype} {list(tensor.shape)}; the captured tensor is "
                f"{captured_as.dtype} {list(captured_as.shape)}; capture the module again"
            )
        if tensor.is_meta:
            raise ExecutionError(
                f"'{path}' is on the meta device and has no values; make the module on the CPU"
            )
    return found


def _attribute(module: nn.Module, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    try:
        return getattr(module.get_submodule(owner), name)  # type: ignore[no-any-return]
    except AttributeError:
        raise ExecutionError(
            f"the module has no '{path}', which the captured module has; capture it again"
        ) from None


def constants_of(captured: CapturedStep) -> dict[str, Tensor]:
    """Returns the values of the constants in a trace, by name.

    Raises:
        ExecutionError: one has no values.
    """
    constants: dict[str, Tensor] = {}
    for node, name in captured.trace.sources.items():
        if node.op == "get_attr":
            value = constant_value(node)
            if isinstance(value, FakeTensor) or value.is_meta:
                raise ExecutionError(f"constant '{name}' of the model has no values; make it a buffer")
            constants[name] = value
    return constants


def keys_of(captured: CapturedStep, module: nn.Module) -> dict[str, str]:
    """Finds the path in the captured step of each key of a module's `state_dict`."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    path_of = {id(state[path]): path for path in captured.step.state if path in state}
    kept = module.state_dict(keep_vars=True)
    return {key: path_of[id(value)] for key, value in kept.items() if id(value) in path_of}
