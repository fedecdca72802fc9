"""A module as one callable step over fake tensors, which is traced in place of the module."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_flatten_with_path, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from graphs.capture.carried import Carried, carry_assignments, carry_cumulative_averages, hooked
from graphs.capture.known_values import NEEDS_VALUES, VALUE_OF, KnownValues, MadeUpAnswers, give_value
from graphs.capture.loss import CaptureError, Loss, check_loss, find_loss
from graphs.capture.python_state import PythonState, evaluating, foreign_draws
from graphs.capture.structures import as_arguments, holds_tensors, leaves_of
from graphs.capture.values import why_not_costed
from graphs.system.errors import printable, shortened
from graphs.system.user_code import user_line

NEEDS_VALUE = "needs a tensor's value (`.item()`, `if tensor`)"

ONCE = "run the module once before it is placed"
FUSED_OBSERVER = "FusedMovingAvgObsFakeQuantize"
"""Module for training in low precision whose op resizes its buffers, but not on fake tensors."""
FSDP = {"FSDPModule", "FullyShardedDataParallel"}
REMEDIES = {
    "two devices|different devices|CUDA enabled|CUDA GPUs|NVIDIA driver": "forward puts tensors on devices "
    "of its own; leave out .to('cuda:1'), .cuda() and device=, since a placement chooses devices",
    r"\.numpy\(\) is not|not allocated|data pointer": "forward reads a tensor's memory (.numpy(), packed "
    "sequences); keep to operators of torch, or make what it reads an input",
    "not require grad": "forward takes a gradient by what has none; call requires_grad_() on it, or capture "
    "with training=True, as weights have none in inference",
    "same dtype|bias type|scalar type|weight dtype|output dtype": "an input and the weights have different "
    "types; give inputs of the weights' type, as inputs.float(), and indices as inputs.long()",
    "mirrored meta": "forward calls backward(); use torch.autograd.grad with create_graph=True",
}
"""Remedies for errors of torch's, by a pattern in their first line."""


class Step(nn.Module):
    """A copy of a module on fake CPU tensors; flat tensors in, the loss (in inference: the outputs) out.

    Parameters, buffers and inputs become fake tensors of the same shape, stride and type: nothing is
    allocated, no weight is read, the given module is not changed, and tied weights stay tied. They are on the
    CPU because some ops cannot be traced on meta, such as the backward pass of a cross-entropy.

    Args:
        inputs: arguments of the module: one tensor, a sequence of any nesting, or a mapping by keyword.
        training: true if a backward pass follows. If not, the copy is in evaluation mode without gradients.
        loss: output that is the loss, see `graphs.capture.loss.find_loss`.
        known_values: keeps the values of the tensors; none are read without.

    Attributes:
        tensors: the fake tensors among the inputs.
        averaged: names of the outputs whose mean is the loss, once traced; none if the module returns a loss.
        hooks: hooks of the gradient of each parameter that has some, by path.
        changed: paths of the attributes that the last run of `forward` changed.
        made_up: answers that stand for values in runs on fake tensors.
        assigned: paths of the tensors to which `forward` assigns others.
        drawn: lines on random numbers of the last run that torch did not draw, or with a seed of the model's.
        restores: true if each run begins with the attributes that the module had.
        items_are_tensors: true if `tensor.item()` stays a tensor.
        binds: true if a closure holds tensors of the module itself.
        n_items: number of calls of `tensor.item()` in the last run.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Any,
        *,
        training: bool,
        loss: Loss | None = None,
        known_values: KnownValues | None = None,
    ) -> None:
        super().__init__()
        check_loss(loss)
        self.known_values = known_values
        self.made_up = MadeUpAnswers()
        self.fake_mode = known_values or self.made_up.mode
        self.has_loss, self._loss = training, loss
        self.hooks: dict[str, list[Any]] = {}
        self._paths = WeakIdKeyDictionary()
        self.model, self._module = self._fake_module(module), weakref.ref(module)
        self.changed: list[str] = []
        self.drawn: list[str] = []
        self.assigned: set[str] = set()
        self.restores = self.items_are_tensors = True
        self.binds, self.n_items = False, 0
        self.averaged: list[str] = []
        if not training:
            self.model.eval().requires_grad_(False)
        self._attributes = PythonState(self.model, module)
        leaves, self._spec = tree_flatten_with_path(as_arguments(inputs))
        for path, leaf in leaves:
            if not isinstance(leaf, Tensor | nn.Module) and holds_tensors(leaf):
                raise CaptureError(
                    f"input {keystr(path)} is a {type(leaf).__name__}, whose tensors a trace takes for "
                    "constants; pass these tensors, or a dict or a dataclass of them"
                )
        self._leaves = [
            self._fake(leaf, f"input {keystr(path)}").requires_grad_(training and leaf.requires_grad)
            if isinstance(leaf, Tensor)
            else leaf
            for path, leaf in leaves
        ]
        self.tensors = tuple(leaf for leaf in self._leaves if isinstance(leaf, Tensor))

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """Parameters, then buffers, by path in the module; tied ones appear once, by their first path."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    @property
    def tied(self) -> tuple[tuple[str, ...], ...]:
        """Paths of each tensor, and of each submodule without tensors, that is held several times."""
        held: dict[int, list[str]] = {}
        parts = self.model.named_modules(remove_duplicate=False)
        bare = [(path, part) for path, part in parts if not {*part.parameters(), *part.buffers()}]
        parameters = self.model.named_parameters(remove_duplicate=False)
        for path, tensor in chain(parameters, self.model.named_buffers(remove_duplicate=False), bare):
            held.setdefault(id(tensor), []).append(printable(path))
        return tuple(tuple(paths) for paths in held.values() if len(paths) > 1)

    def run(self, state: Sequence[Tensor], tensors: Sequence[Tensor]) -> Any:
        """Runs `forward` with other tensors in place of `self.state`, in its order."""
        if self.restores and self.changed:
            self._attributes.restore()
        before = dict(zip(self.state, state, strict=True))
        shapes = {path: tensor.shape for path, tensor in before.items()}
        # What is assigned to is copied, as its backward pass may read what it was.
        used = before | {path: before[path].clone() for path in self.assigned}
        used |= {path: hooked(before[path], hooks) for path, hooks in self.hooks.items()}
        by_path = {f"model.{path}": tensor for path, tensor in used.items()}
        carried = Carried(
            self.model, self._paths, trains=self.has_loss, items_are_tensors=self.items_are_tensors
        )
        try:
            real = None if self.has_loss else self._module()
            with carried, foreign_draws() as self.drawn, evaluating(real):
                made = torch.func.functional_call(self, by_path, tuple(tensors))
        finally:
            self.binds, self.n_items = self.binds or carried.binds, carried.n_items
            self.changed = self._attributes.changed()
        if resized := [path for path, shape in shapes.items() if before[path].shape != shape]:
            raise CaptureError(f"forward resizes '{resized[0]}'; {ONCE}")
        assigned = {
            path: by_path[f"model.{path}"] for path in used if by_path[f"model.{path}"] is not used[path]
        }
        self.assigned |= assigned.keys()
        trained = {path for path, tensor in self.state.items() if tensor.requires_grad}
        carry_assignments(before, {path: by_path[f"model.{path}"] for path in self.assigned}, trained)
        return made

    def restore(self) -> None:
        """Gives the module and its copy the attributes that they had before any run."""
        self._attributes.restore()

    @property
    def models(self) -> list[nn.Module]:
        """The copy, and the module itself if a closure calls that."""
        module = self._module()
        return [self.model, module] if self.binds and module is not None else [self.model]

    def on(self, module: nn.Module) -> Step:
        """Returns the same step with the parameters and buffers of another module as its `state`.

        These have hooks of their own.
        """
        other = copy.copy(self)
        other.state = {path: attrgetter(path)(module) for path in self.state}
        other.hooks = {}
        return other

    def forward(self, *tensors: Tensor) -> Any:
        """Returns the loss, or the tensors that the module returns, for other tensors as inputs."""
        if self.known_values:
            self.known_values.begin_step()
        return self.call(self.model, tensors)

    def call(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Calls a module like the captured one; returns what `forward` does."""
        fresh = iter(tensors)
        leaves = [next(fresh) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        inputs = tree_unflatten(leaves, self._spec)
        returned = module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
        if self.has_loss:
            value, self.averaged = find_loss(returned, self._loss)
            return value
        return [leaf for leaf in leaves_of(returned) if isinstance(leaf, Tensor)]

    def flat_inputs(self, inputs: Any) -> list[Tensor]:
        """Returns the tensors among other inputs, in the order of `tensors`.

        Args:
            inputs: inputs of the captured structure, keywords in any order, or a tuple of that alone.

        Raises:
            CaptureError: they have another structure, shape or type than those of the capture, or another
                value that is no tensor.
        """
        tensors = self.tensors_in(inputs)
        for index, (tensor, fake) in enumerate(zip(tensors, self.tensors, strict=True)):
            if tensor.is_nested:
                raise CaptureError(f"input {index} is a nested tensor; give a dense one")
            if tensor.shape != fake.shape or tensor.dtype != fake.dtype:
                raise CaptureError(
                    f"input {index} is {tensor.dtype} {list(tensor.shape)}; it was captured with "
                    f"{fake.dtype} {list(fake.shape)}"
                )
        return tensors

    def tensors_in(self, inputs: Any) -> list[Tensor]:
        """Returns the tensors among other inputs, as `flat_inputs`, but of any shape and type.

        Raises:
            CaptureError: they have another structure than those of the capture, or another value that is no
                tensor.
        """
        leaves, spec = self._flattened(inputs)
        if spec != self._spec and isinstance(inputs, tuple) and len(inputs) == 1:
            leaves, spec = self._flattened(inputs[0])
        if spec != self._spec or any(
            isinstance(leaf, Tensor) != isinstance(captured, Tensor)
            for leaf, captured in zip(leaves, self._leaves, strict=True)
        ):
            captured = tree_unflatten(self._leaves, self._spec)
            words = f"{len(captured)} by position"
            if isinstance(captured, dict):
                words = shortened(f"{', '.join(map(str, captured))} by keyword")
            raise CaptureError(
                f"inputs of another structure than those it was captured with, which were {words}; "
                "capture it anew"
            )
        for leaf, captured in zip(leaves, self._leaves, strict=True):
            if not isinstance(leaf, Tensor) and leaf != captured:
                raise CaptureError(
                    f"an input is {leaf!r}; the step holds for its value at the capture, {captured!r}; "
                    "capture it anew, or pass a tensor"
                )
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def _flattened(self, inputs: Any) -> tuple[list[Any], TreeSpec]:
        """Flattens other inputs; those by keyword in the order of the capture's."""
        arguments, captured = as_arguments(inputs), tree_unflatten(self._leaves, self._spec)
        if isinstance(arguments, dict) and isinstance(captured, dict) and arguments.keys() == captured.keys():
            arguments = {key: arguments[key] for key in captured}
        return tree_flatten(arguments)

    def _fake(self, tensor: Tensor, what: str) -> Tensor:
        if why := why_not_costed(tensor):
            raise CaptureError(f"{what} {why}")
        if tensor.layout is not torch.strided:
            if self.has_loss and tensor.requires_grad:
                raise CaptureError(f"{what} is sparse and has a gradient; give it dense, or without")
            return self.fake_mode.from_tensor(tensor.detach())
        with self.fake_mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        if self.known_values:
            give_value(fake, tensor)
        return fake

    def _fake_module(self, module: nn.Module) -> nn.Module:
        memo: dict[int, Any] = {}
        bases = {base.__name__ for part in module.modules() for base in type(part).__mro__}
        if bases & FSDP or any(type(tensor).__name__ == "DTensor" for tensor in module.parameters()):
            raise CaptureError("its parameters are sharded (FSDP or DTensor); place it before it is sharded")
        try:
            for path, part in module.named_modules():
                if isinstance(part, torch.jit.ScriptModule):
                    raise CaptureError(
                        f"'{path or type(part).__name__}' is TorchScript (scripted, traced or loaded by "
                        "torch.jit), whose ops no trace sees; give the module that it was made from"
                    )
                if type(part).__name__ == FUSED_OBSERVER and part.is_per_channel and part.scale.numel() == 1:
                    raise CaptureError(f"forward resizes buffers of '{path}'; {ONCE}")
                values = {**vars(part), **part._buffers, **part._parameters}
                for name, tensor in values.items():
                    if not isinstance(tensor, Tensor) or id(tensor) in memo:
                        continue
                    where = f"{path}{path and '.'}{name}"
                    fake = self._fake(tensor, f"'{where}'")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    memo[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
                    self._paths[tensor] = where
                    self._note_hooks(where, tensor)
            model = _with_buffers(copy.deepcopy(module, memo))
            carry_cumulative_averages(model)
            return model
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(f"a copy of it on fake tensors failed with {one_line(error)}") from error

    def _note_hooks(self, path: str, tensor: Tensor) -> None:
        if not self.has_loss or not tensor.is_leaf:
            return
        if tensor._post_accumulate_grad_hooks:
            raise CaptureError(
                f"parameter '{path}' has a hook that runs once its gradient is accumulated, which a placed "
                "step has no place for; change gradients by tensor.register_hook"
            )
        if tensor._backward_hooks:
            self.hooks[path] = list(tensor._backward_hooks.values())


def _with_buffers(model: nn.Module) -> nn.Module:
    """Makes buffers of the tensors that are plain attributes of modules: traces take those for constants."""
    for part in model.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, Tensor) and not hasattr(type(part), name):
                del part.__dict__[name]
                part._buffers[name] = value
    return model


def one_line(error: Exception) -> str:
    """Returns the class and the first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns the module that `torch.compile` wrapped; any other as it is."""
    original = getattr(module, "_orig_mod", module)
    return original if isinstance(original, nn.Module) else module


def describe_failure(error: Exception) -> str:
    """Describes a failed trace in one line: `models.py:12: <what is wrong>`."""
    reason = one_line(error)
    if isinstance(error, NEEDS_VALUES):
        needs = NEEDS_VALUE if error.func is VALUE_OF else f"needs the values that {error.func} yields"
        reason = (
            f"{needs}, and a trace has shapes only; "
            "avoid .item(), nonzero, masks as indices and branches on tensors"
        )
    remedy = next((text for words, text in REMEDIES.items() if re.search(words, reason)), "")
    reason = f"{reason}; {remedy}" if remedy else reason
    line = user_line(error)
    return f"{line}: {reason}" if line else reason
