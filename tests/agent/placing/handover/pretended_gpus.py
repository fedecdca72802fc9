"""Runs what `accelerate.dispatch_model` makes of a device map on GPUs that this machine need not have.

Fake tensors know their device and refuse to be combined with those of another; they have no values.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import accelerate.big_modeling
import accelerate.hooks
import torch
from accelerate import dispatch_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

UNKNOWN_KEYS = "The following device_map keys do not match"
"""How accelerate warns of the names of tensors, which it takes all the same."""


def _move(module: nn.Module, name: str, device: object, value: Tensor | None = None, **_: object) -> None:
    """Moves a tensor of a module as `accelerate.utils.set_module_tensor_to_device`, which needs real ones."""
    path, _, name = name.rpartition(".")
    holder = module.get_submodule(path)
    is_parameter = name in holder._parameters
    kept = holder._parameters if is_parameter else holder._buffers
    old = kept[name]
    if old is None:
        return
    assert value is not None or str(old.device) != "meta" or str(device) == "meta", f"{name} has no value"
    moved = (old if value is None else value).detach().to(device)  # type: ignore[call-overload]
    # A gradient would need real GPUs.
    kept[name] = nn.Parameter(moved, requires_grad=False) if is_parameter else moved


@contextlib.contextmanager
def _pretending() -> Iterator[None]:
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        patch.object(accelerate.hooks, "set_module_tensor_to_device", _move),
        patch.object(accelerate.big_modeling, "check_cuda_p2p_ib_support", lambda: True),
        patch.object(Tensor, "data_ptr", lambda tensor: id(tensor)),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", UNKNOWN_KEYS)
        yield


def main_gpu(device_map: Mapping[str, int | str]) -> str:
    """Device to which accelerate moves the inputs."""
    gpus = [device for device in device_map.values() if isinstance(device, int)]
    return f"meta:{min(gpus)}" if gpus else "cpu"


def run_on_pretended_gpus(
    module: nn.Module, inputs: Mapping[str, Any], device_map: Mapping[str, int | str]
) -> dict[str, str]:
    """Runs a forward pass of the dispatched module; raises what accelerate or torch raise.

    Returns:
        Device of each parameter and buffer by all its paths.
    """
    named = {key: f"meta:{at}" if isinstance(at, int) else at for key, at in device_map.items()}
    with _pretending():
        fakes = _faked(module)
        run = dispatch_model(fakes, named, main_device=main_gpu(device_map))
        run(**tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="cpu"), dict(inputs)))
        tensors = [*run.named_parameters(remove_duplicate=False), *run.named_buffers(remove_duplicate=False)]
        return {path: str(tensor.device) for path, tensor in tensors}


def _faked(module: nn.Module) -> nn.Module:
    memo: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        memo[id(tensor)] = (
            nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
        )
    return copy.deepcopy(module, memo)


def run_with_hooks(module: nn.Module, inputs: Mapping[str, Any], device_map: Mapping[str, int | str]) -> Any:
    """Runs the dispatched module with all of its hooks, on the processor, for its values."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", UNKNOWN_KEYS)
        run = dispatch_model(copy.deepcopy(module), dict.fromkeys(device_map, "cpu"), force_hooks=True)
        return run(**inputs)
