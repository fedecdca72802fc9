"""Custom operators of the user's: the process of a device imports, by name, the modules that define them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

from torch import nn
from torch._library.custom_ops import OPDEFS

from envs.runtime.device_program import ExecutionError, find_function
from graphs.system.user_code import users_code

MAIN = "__main__"


def modules_with_ops(functions: Iterable[str], module: nn.Module) -> tuple[str, ...]:
    """Names the Python modules that may define operators, from those that the operators name and the model.

    The script that runs is left out, as it may start processes where it is imported.
    """
    ops = (OPDEFS.get("::".join(name.split(".")[:2])) for name in functions)
    of_ops = (op._init_fn.__module__ for op in ops if op is not None)
    of_model = (type(part).__module__ for part in module.modules())
    names = dict.fromkeys(name for name in (*of_ops, *of_model) if not name.startswith("torch."))
    return tuple(name for name in names if name != MAIN)


def import_ops(functions: Sequence[str], modules: Sequence[str]) -> None:
    """Imports modules until this process knows all operators.

    Args:
        functions: names by `function_name`.
        modules: names by `modules_with_ops`.

    Raises:
        ExecutionError: an operator is not known afterwards, or a module cannot be imported.
    """
    waiting = list(modules)
    while (op := _unknown(functions)) is not None:
        if not waiting:
            raise ExecutionError(
                f"op '{op}' is not known to the processes of devices, which do not import the script that "
                "runs; define it, by torch.library.custom_op or beside the model, in a module of its own"
            )
        _import(waiting.pop(0), op)


def _unknown(functions: Sequence[str]) -> str | None:
    for name in functions:
        try:
            find_function(name)
        except ExecutionError:
            return name
    return None


def _import(name: str, op: str) -> None:
    def fail(why: str) -> ExecutionError:
        return ExecutionError(f"cannot import '{name}', which may define op '{op}': {why}")

    with users_code(fail):
        importlib.import_module(name)
