"""Optimizers as users give them, and what they keep of each parameter: a step of theirs on small tensors."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from graphs.capture.loss import CaptureError
from graphs.capture.values import size_bytes
from graphs.step_settings import OPTIMIZERS, Update
from graphs.system.errors import shortened

NAMED: dict[str, type[Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and name not in ("Optimizer", "LBFGS")
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EXACT, LARGE, SAMPLE = 2**16, 192, 4096
"""Elements up to which a parameter is stepped as it is; extents that samples of larger ones shrink; and the
least elements of a sample, since 8-bit optimizers keep less than that in 32 bits."""
WIDENED = 3
"""Extents of the larger samples over those of the smaller ones."""


@dataclass(frozen=True, eq=False)
class UpdateRule:
    """How some parameters are updated.

    Attributes:
        kind: class of the optimizer.
        defaults: keywords with which it is made.
        options: settings of the parameters' group, which hold instead.
        sizes: bytes kept of samples and flops of updates, filled at need.
    """

    kind: type[Optimizer]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sizes: dict[Any, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the optimizer, which names of ops begin with."""
        return self.kind.__name__.lower()

    def make(self, parameters: Iterable[Tensor]) -> Optimizer:
        """Makes the optimizer of some parameters."""
        kind: Any = self.kind
        return kind([{**self.options, "params": list(parameters)}], **self.defaults)  # type: ignore[no-any-return]

    def with_options(self, options: Mapping[str, Any]) -> UpdateRule:
        """Returns the rule with options in place of its own; the optimizer checks them when it is made."""
        of_group = {key: value for key, value in self.options.items() if key not in options}
        return UpdateRule(self.kind, {**self.defaults, **options}, of_group)

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> float:
        """Finds the bytes that the optimizer keeps of a parameter; single numbers do not count.

        What it keeps of a large parameter is interpolated between samples: linearly in each extent, as values
        of each element, row, column or block of elements grow.

        Raises:
            CaptureError: the optimizer cannot be made from its options, or not step such a parameter.
        """
        large = [at for at, extent in enumerate(shape) if extent > LARGE and prod(shape) > EXACT]
        least = round(SAMPLE ** (1 / max(len(large), 1)))
        small = list(shape)
        for at in large:
            divisor = gcd(shape[at], least)
            small[at] = divisor * (-(-least // divisor) | 1)
        total = 0.0
        for corner in product((1, WIDENED), repeat=len(large)):
            extents, weight = list(small), 1.0
            for at, factor in zip(large, corner, strict=True):
                extents[at] *= factor
                from_other = shape[at] / small[at] - (WIDENED + 1 - factor)
                weight *= from_other / (2 * factor - WIDENED - 1)
            total += weight * self._stepped_bytes(tuple(extents), dtype)
        return float(round(total))

    def _stepped_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> float:
        """Steps a parameter of a shape; returns the bytes that are kept of it."""
        key = shape, dtype
        if key not in self.sizes:
            parameter = nn.Parameter(torch.ones(shape, dtype=dtype, device="cpu"))
            gradient = torch.ones_like(parameter)
            is_sparse = self.kind is torch.optim.SparseAdam
            parameter.grad = gradient.to_sparse(1) if is_sparse else gradient
            self.sizes[key] = sum(map(_held_bytes, tree_leaves(dict(self._stepped(parameter)))))
        return self.sizes[key]

    def _stepped(self, parameter: Tensor) -> Mapping[str, Any]:
        try:
            made = self._for_samples.make([parameter])
            made.step()
        except Exception as error:
            raise CaptureError(
                f"optimizer '{self.name}' does not step a parameter of {parameter.dtype} "
                f"{list(parameter.shape)}: {shortened(str(error), 200)}"
            ) from error
        return made.state[parameter]  # type: ignore[no-any-return]

    @property
    def _for_samples(self) -> UpdateRule:
        """The rule without what runs on CUDA alone."""
        is_capturable = {**self.defaults, **self.options}.get("capturable")
        return self.with_options({"capturable": False}) if is_capturable else self

    def product_flops(self, tensor: Tensor) -> float:
        """Counts the operations of matrix products in an update, such as those of Muon; 0 if it has none."""
        key = "flops", tensor.shape, tensor.dtype
        if key not in self.sizes:
            self.sizes[key] = self._counted_flops(tensor)
        return self.sizes[key]

    def _counted_flops(self, tensor: Tensor) -> float:
        try:
            with FakeTensorMode(), FlopCounterMode(display=False) as counter:
                parameter = nn.Parameter(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))
                parameter.grad = torch.empty_like(parameter)
                self._for_samples.make([parameter]).step()
        except Exception:
            return 0.0  # it reads values
        return float(counter.get_total_flops())


def _held_bytes(value: Any) -> float:
    """Bytes of a tensor that is no single number, or of the tensors that one of another class is made of."""
    if not isinstance(value, Tensor) or not value.dim():
        return 0.0
    if hasattr(value, "__tensor_flatten__"):
        return sum(_held_bytes(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    return float(size_bytes(value))


@dataclass(frozen=True)
class Updates:
    """What a training step keeps and moves of its parameters beside the weights.

    Optimizers that keep master weights update these in place of the weights, which are then copies. So do
    Megatron (18 bytes of a weight in bf16, with Adam and gradients in fp32) and nanotron (20, as a gradient
    in bf16 stays until the microbatch ends; here it is freed once it is added).

    Attributes:
        rules: those of the parameters by path; what has none is not updated.
        master_dtype: type of master weights, which narrower weights have; None = there are none.
        gradient_dtype: type in which gradients are accumulated and reduced; None = that of the weights.

    Source: `optim/gradient_accumulator.py` of nanotron, `optimizer/optimizer.py` of Megatron-LM.
    """

    rules: Mapping[str, UpdateRule]
    master_dtype: torch.dtype | None = None
    gradient_dtype: torch.dtype | None = None

    def of_trained(
        self, trained: Iterable[str], state: Mapping[str, Tensor], notify: Callable[[str], None]
    ) -> Updates:
        """Returns the updates of the parameters with a gradient.

        Raises:
            CaptureError: no weight is narrower than a master copy of it would be.
        """
        rules = {path: self.rules[path] for path in trained if path in self.rules}
        muon = [path for path, rule in rules.items() if rule.kind is torch.optim.Muon and not rule.options]
        if refused := [path for path in muon if state[path].dim() != 2]:
            notify(f"muon updates matrices; adamw updates '{refused[0]}' and all else, {len(refused)} in all")
            rules |= dict.fromkeys(refused, UpdateRule(torch.optim.AdamW))
        if self.master_dtype and rules and not any(self.master_bytes(state[path]) for path in rules):
            raise CaptureError(
                f"no trained weight is narrower than master_weights, {self.master_dtype}; give the module in "
                "16 bits, as module.bfloat16() makes it"
            )
        return replace(self, rules=rules)

    def gradient_bytes(self, tensor: Tensor) -> float:
        """Bytes of a parameter's gradient."""
        is_cast = self.gradient_dtype is not None and tensor.is_floating_point()
        return tensor.numel() * self.gradient_dtype.itemsize if is_cast else size_bytes(tensor)  # type: ignore[union-attr]

    def master_bytes(self, tensor: Tensor) -> int:
        """Bytes of a parameter's master copy; 0 if it has none."""
        master = self.master_dtype
        has_one = master and tensor.is_floating_point() and tensor.dtype.itemsize < master.itemsize
        return tensor.numel() * master.itemsize if master and has_one else 0

    def state_bytes(self, path: str, tensor: Tensor) -> float:
        """Bytes that the optimizer keeps of a parameter besides a master copy."""
        if path not in self.rules:
            return 0.0
        updated = self.master_dtype if self.master_bytes(tensor) else tensor.dtype
        return self.rules[path].kept_bytes(tensor.shape, updated or tensor.dtype)

    def kept_bytes(self, path: str, tensor: Tensor) -> float:
        """Bytes that the optimizer keeps of a parameter, and of its master copy."""
        masters = self.master_bytes(tensor) if path in self.rules else 0
        return masters + self.state_bytes(path, tensor)

    def cost(self, path: str, tensor: Tensor, share: float) -> dict[str, Any]:
        """Finds flops, memory traffic and dtype of updating a share of a parameter's elements.

        Other optimizers than those of `OPTIMIZERS` read and write weights and what they keep, read the
        gradient, and take two operations per value; matrix products are counted, and costed in TF32.
        """
        rule, master = self.rules[path], self.master_bytes(tensor)
        states = self.state_bytes(path, tensor)
        updated = master or size_bytes(tensor)
        counted = OPTIMIZERS.get(rule.name)
        products = 0.0 if counted else rule.product_flops(tensor)
        update = counted or Update(flops=2 + round(2 * states / max(updated, 1)), passes=3)
        numbers = tensor.numel() * (2 if tensor.is_complex() else 1)
        moved = (update.passes - 1) * updated + self.gradient_bytes(tensor) + 2 * states
        return {
            "flops": share * (update.flops * numbers + products),
            "bytes_moved": share * (moved + (size_bytes(tensor) if master else 0)),
        } | ({"dtype": "tf32"} if products else {})


def dtype_of(name: str, value: str | torch.dtype | None) -> torch.dtype | None:
    """Returns the type that a setting names.

    Raises:
        CaptureError: it names none of `DTYPES`.
    """
    chosen = DTYPES.get(value) if isinstance(value, str) else value
    if value is not None and chosen not in DTYPES.values():
        raise CaptureError(f"{name} is {value!r}; use {', '.join(DTYPES)} or None")
    return chosen


def rules_of(optimizer: Any, module: nn.Module) -> dict[str, UpdateRule]:
    """Finds the rule of each parameter by path; a parameter that instances do not hold has none.

    Args:
        optimizer: a name, a class, a `functools.partial` of one, an instance or a sequence of instances.

    Raises:
        CaptureError: an unknown name, something else, or instances that hold no parameter of the module.
    """
    if optimizer is None:
        return {}
    instances = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    if isinstance(instances, list | tuple) and all(isinstance(item, Optimizer) for item in instances):
        held = dict[int, UpdateRule]()
        for item in instances:
            named = inspect.signature(type(item)).parameters
            defaults = {key: value for key, value in item.defaults.items() if key in named}
            for group in item.param_groups:
                options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
                rule = UpdateRule(type(item), defaults, options)
                held |= {id(parameter): rule for parameter in group["params"]}
        path_of = {id(each): path for path, each in module.named_parameters()}
        if not held.keys() & path_of.keys():
            raise CaptureError("the optimizer holds no parameter of the module; make it from the module's")
        return {path: held[key] for key, path in path_of.items() if key in held}
    return dict.fromkeys(
        [*dict(module.named_parameters()), *dict(module.named_buffers())], _rule_of(optimizer)
    )


def _rule_of(optimizer: Any) -> UpdateRule:
    """Makes the rule of a name and options (`sgd:momentum=0.9`), a class or a partial of one."""
    if isinstance(optimizer, str):
        name, _, text = optimizer.partition(":")
        if name not in NAMED:
            raise CaptureError(f"unknown optimizer '{name}'; use one of {', '.join(NAMED)}, or None")
        try:
            pairs = [option.split("=") for option in text.split(",") if text]
            return UpdateRule(NAMED[name], {key: ast.literal_eval(value) for key, value in pairs})
        except (ValueError, SyntaxError):
            raise CaptureError(
                f"optimizer '{optimizer}'; write options as sgd:momentum=0.9,nesterov=True"
            ) from None
    kind = optimizer.func if isinstance(optimizer, partial) else optimizer
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise CaptureError(
            f"optimizer is a {type(kind).__name__}; use a name, a class of torch.optim, a functools.partial "
            "of one, or an instance"
        )
    return UpdateRule(kind, optimizer.keywords if isinstance(optimizer, partial) else {})
