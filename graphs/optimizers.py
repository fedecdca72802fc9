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
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from graphs.capture.loss import CaptureError
from graphs.capture.values import size_bytes
from graphs.step_settings import KEPT_DTYPES, OPTIMIZER_NAMES, OPTIMIZERS, Update
from graphs.system.errors import shortened

NAMED: dict[str, type[Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if name.lower() in OPTIMIZER_NAMES and isinstance(kind, type)
}
DTYPES = dict(zip(KEPT_DTYPES, (torch.float32, torch.bfloat16, torch.float16), strict=True))
EXACT, LARGE, SAMPLE = 2**16, 192, 4096
"""Elements up to which a parameter is stepped as it is; extents above which samples have fewer; and the least
elements of a sample, since 8-bit optimizers keep smaller parameters in 32 bits."""


@dataclass(frozen=True, eq=False)
class UpdateRule:
    """A class of optimizers, its keywords, and settings of the parameters' group, which hold instead.

    Attributes:
        sizes: bytes kept of samples by their shape and type, filled at need.
    """

    kind: type[Optimizer]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sizes: dict[Any, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the optimizer, with which names of ops begin."""
        return self.kind.__name__.lower()

    def make(self, parameters: Iterable[Tensor]) -> Optimizer:
        """Makes the optimizer of some parameters."""
        kind: Any = self.kind
        return kind([{**self.options, "params": list(parameters)}], **self.defaults)

    def with_options(self, options: Mapping[str, Any]) -> UpdateRule:
        """Returns the rule with options in place of its own; the optimizer checks them when it is made."""
        others = {key: value for key, value in self.options.items() if key not in options}
        return UpdateRule(self.kind, {**self.defaults, **options}, others)

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> float:
        """Finds the bytes that the optimizer keeps of a parameter; single numbers do not count.

        Those of a large parameter are extrapolated from samples with a part, and three times this part, of
        its large extents: linearly in each, as values of elements, rows, columns or blocks grow.

        Raises:
            CaptureError: the optimizer cannot be made, or does not step such a parameter.
        """
        large = [axis for axis, extent in enumerate(shape) if extent > LARGE and prod(shape) > EXACT]
        least, part, total = round(SAMPLE ** (1 / max(len(large), 1))), list(shape), 0.0
        for axis in large:
            divisor = gcd(shape[axis], least)
            part[axis] = divisor * (-(-least // divisor) | 1)
        for corner in product((1, 3), repeat=len(large)):
            sample, weight = list(part), 1.0
            for axis, factor in zip(large, corner, strict=True):
                sample[axis] *= factor
                weight *= (shape[axis] / part[axis] - 4 + factor) / (2 * factor - 4)
            total += weight * self._stepped_bytes(tuple(sample), dtype)
        return float(round(total))

    def _stepped_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> float:
        """Steps a parameter of a shape; returns the bytes that are kept of it."""
        if (shape, dtype) not in self.sizes:
            parameter = nn.Parameter(torch.ones(shape, dtype=dtype, device="cpu"))
            gradient, is_sparse = torch.ones_like(parameter), self.kind is torch.optim.SparseAdam
            parameter.grad = gradient.to_sparse(1) if is_sparse else gradient
            on_cuda = "capturable" in {**self.defaults, **self.options}
            try:
                made = (self.with_options({"capturable": False}) if on_cuda else self).make([parameter])
                made.step()
            except Exception as error:
                raise CaptureError(
                    f"optimizer '{self.name}' does not step a parameter of {dtype} {list(shape)}: "
                    f"{shortened(str(error), 200)}"
                ) from error
            self.sizes[shape, dtype] = sum(map(_held_bytes, tree_leaves(dict(made.state[parameter]))))
        return self.sizes[shape, dtype]


def _held_bytes(value: Any) -> float:
    """Bytes of a tensor that is no single number, or of the tensors that one of another class is made of."""
    if not isinstance(value, Tensor) or not value.dim():
        return 0.0
    if hasattr(value, "__tensor_flatten__"):
        return sum(_held_bytes(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    return float(size_bytes(value))


@dataclass(frozen=True)
class Updates:
    """All that a training step keeps and moves of its parameters beside the weights.

    Optimizers update master weights in place of narrower ones, which are then copies: 18 bytes of a weight in
    bf16 with Adam and gradients in fp32, as in Megatron. nanotron keeps 20, as a gradient in bf16 stays until
    the microbatch ends; here it takes no memory.

    Attributes:
        rules: those of the parameters by path; what has none is not updated.
        master_dtype: type of master weights; None = there are none.
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

    def gradient_bytes(self, tensor: Tensor) -> int:
        """Bytes of a parameter's gradient."""
        dtype = self.gradient_dtype if tensor.is_floating_point() else None
        return tensor.numel() * dtype.itemsize if dtype else size_bytes(tensor)

    def master_bytes(self, tensor: Tensor) -> int:
        """Bytes of a parameter's master copy; 0 if it has none."""
        item_bytes = self.master_dtype.itemsize if self.master_dtype and tensor.is_floating_point() else 0
        return tensor.numel() * item_bytes if tensor.dtype.itemsize < item_bytes else 0

    def state_bytes(self, path: str, tensor: Tensor) -> float:
        """Bytes that the optimizer keeps of a parameter besides a master copy."""
        dtype = self.master_dtype if self.master_bytes(tensor) else None
        return self.rules[path].kept_bytes(tensor.shape, dtype or tensor.dtype)

    def cost(self, path: str, tensor: Tensor, share: float) -> dict[str, Any]:
        """Finds flops, memory traffic and dtype of updating a share of a parameter's elements.

        Other optimizers than those of `OPTIMIZERS` read and write weights and what they keep, read the
        gradient, and take two operations per value. Only Muon's matrix products are counted, as of TF32.
        """
        rule, states, master = self.rules[path], self.state_bytes(path, tensor), self.master_bytes(tensor)
        updated = master or size_bytes(tensor)
        update = OPTIMIZERS.get(rule.name) or Update(2 + round(2 * states / max(updated, 1)), passes=3)
        flops = update.flops * tensor.numel() * (2.0 if tensor.is_complex() else 1.0)
        if is_muon := rule.name == "muon" and tensor.dim() == 2:
            rows, columns = sorted(tensor.shape)
            steps = {**rule.defaults, **rule.options}.get("ns_steps", 5)
            flops += steps * (4 * rows**2 * columns + 2 * rows**3)
        moved = (update.passes - 1) * updated + self.gradient_bytes(tensor) + 2 * states
        moved += size_bytes(tensor) if master else 0
        return {"flops": share * flops, "bytes_moved": share * moved} | ({"dtype": "tf32"} if is_muon else {})


def rules_of(optimizer: Any, module: nn.Module) -> dict[str, UpdateRule]:
    """Finds the rule of each parameter by path; a parameter that instances do not hold has none.

    Args:
        optimizer: argument of `capture_step`.

    Raises:
        CaptureError: an unknown name, something else, or instances that hold no parameter of the module.
    """
    instances = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    if not isinstance(instances, list | tuple):
        rule = None if optimizer is None else _rule_of(optimizer)
        paths = [*dict(module.named_parameters()), *dict(module.named_buffers())]
        return dict.fromkeys(paths, rule) if rule else {}
    held = dict[int, UpdateRule]()
    for item in instances:
        if not isinstance(item, Optimizer):
            raise CaptureError(f"one of the optimizers is a {type(item).__name__}; give instances")
        named = inspect.signature(type(item)).parameters
        defaults = {key: value for key, value in item.defaults.items() if key in named}
        for group in item.param_groups:
            options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            held |= dict.fromkeys(map(id, group["params"]), UpdateRule(type(item), defaults, options))
    rules = {path: held[id(weight)] for path, weight in module.named_parameters() if id(weight) in held}
    if not rules:
        raise CaptureError("the optimizer holds no parameter of the module; make it from the module's")
    return rules


def _rule_of(optimizer: Any) -> UpdateRule:
    """Makes the rule of a name and options (`sgd:momentum=0.9`), a class or a partial of one."""
    if isinstance(optimizer, str):
        name, _, text = optimizer.partition(":")
        if name not in NAMED:
            raise CaptureError(
                f"unknown optimizer '{name}'; use one of {', '.join(OPTIMIZER_NAMES)}, or None"
            )
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
