"""Compares the first steps of a runner with those of the plain module, to find what a capture has lost.

Microbatches are compared with the whole batch that they are cut from.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from envs.runtime.device_program import ExecutionError
from graphs.capture.captured_step import CapturedStep
from graphs.capture.carried import Carried
from graphs.capture.python_state import PythonState, foreign_draws
from graphs.capture.step import Step, one_line
from graphs.capture.structures import split_offsets
from graphs.capture.values import node_value, op_packet, size_bytes, tensors_of
from graphs.system.array_types import IntArray
from graphs.system.errors import print_notice

N_STEPS = 2
"""Steps that are compared; state shows in the second."""
MOST_BYTES = 4e9
"""Parameters and buffers of a module that is copied to be compared."""
LEAST_SCALE, LEAST_GRADIENT = 1e-3, 0.01
"""Size below which a value may be rounding alone: of losses and buffers, and over the largest gradient."""
TF32 = 2.0**-10
"""Precision of products on GPUs."""


class PlainCheck:
    """The plain module, whose steps are compared with those of a runner.

    Each step begins with the parameters and buffers of the runner, so a difference belongs to its step.
    Random numbers are those that the devices draw. A difference is reported once.

    Args:
        device_of: device of each op, whose random numbers the plain module draws; None if these are unknown.
        seed: seed of the first device.
    """

    def __init__(
        self, captured: CapturedStep, module: nn.Module, device_of: IntArray | None, seed: int
    ) -> None:
        self._captured, self._n_left = captured, N_STEPS
        values = (value for part in module.modules() for value in vars(part).values())
        made = {id(tensor): tensor.detach().clone() for tensor in values if isinstance(tensor, Tensor)}
        self._plain = copy.deepcopy(module, made).cpu().requires_grad_(False)
        if not captured.step.has_loss:
            self._plain.eval()
        self._paths, self._attributes = WeakIdKeyDictionary(), PythonState(module)
        for path in captured.step.state:
            real, plain = attrgetter(path)(module), attrgetter(path)(self._plain)
            self._paths[real] = path
            if captured.step.has_loss and real.requires_grad:
                plain.requires_grad_()
                for hook in (real._backward_hooks or {}).values():
                    plain.register_hook(hook)
        draws = [] if device_of is None else _draws(captured, device_of)
        self._draws = _SameDraws(draws, seed)
        values = (leaf for node in captured.trace.nodes for leaf in tensors_of(node_value(node)))
        dtypes = {leaf.dtype for leaf in values if leaf.is_floating_point()}
        precisions = [torch.finfo(dtype).eps for dtype in dtypes]
        self._tolerance = max([*precisions, 0.0 if device_of is not None else TF32]) ** 0.5

    @staticmethod
    def can_run(captured: CapturedStep) -> bool:
        """Says whether the module is small enough for this processor."""
        is_slow = captured.graph.flops.sum() > MOST_FLOPS
        return not is_slow and sum(map(size_bytes, captured.step.state.values())) < MOST_BYTES

    @property
    def is_done(self) -> bool:
        """Says whether all steps that are to be compared have been."""
        return self._n_left == 0

    @property
    def is_comparable(self) -> bool:
        """Says whether the plain module ran, with the random numbers of the devices."""
        return self._draws.is_same

    def run(self, state: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> None:
        """Runs the plain step.

        Args:
            state: parameters and buffers that it begins with, by path.
            inputs: their tensors.
        """
        self._n_left -= 1
        step = self._captured.step
        with torch.no_grad():
            for path, tensor in state.items():
                attrgetter(path)(self._plain).copy_(tensor)
        carried = Carried(self._plain, self._paths, trains=False, items_are_tensors=False)
        try:
            with torch.random.fork_rng(devices=()), foreign_draws(), carried, self._draws:
                for _ in range(N_STEPS - self._n_left):  # these go on from step to step
                    random.random(), np.random.random()  # noqa: NPY002
                self._made = step.call(self._plain, [tensor.cpu().clone() for tensor in inputs])
                if step.has_loss and self._made.requires_grad:
                    self._made.backward()
        except Exception as error:  # code of the user's, which may run elsewhere alone
            print_notice(f"steps are not compared with the plain module, which fails: {one_line(error)}")
            self._n_left = 0
            self._draws.is_same = False
        finally:
            self._attributes.restore()

    def difference(
        self, made: Tensor | list[Tensor], gradients: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> str:
        """Names the first thing that differs in the step of a runner; "" if nothing does.

        Args:
            made: the loss, or the outputs.
            gradients, state: gradients and state of the runner after the step, by path.
        """
        if not self.is_comparable:
            return ""
        if isinstance(made, Tensor):
            pairs = [("the loss", made, self._made)]
        else:
            outputs = zip(made, self._made, strict=True)
            pairs = [(f"output {index}", *pair) for index, pair in enumerate(outputs)]
        plain = {path: attrgetter(path)(self._plain) for path in state}
        largest = max((float(grad.abs().max()) for grad in gradients.values() if grad.numel()), default=0.0)
        for path, tensor in plain.items():
            if path in gradients or tensor.grad is not None:
                zeros = torch.zeros_like(tensor)
                placed, ours = gradients.get(path, zeros), zeros if tensor.grad is None else tensor.grad
                pairs.append((f"the gradient of '{path}'", placed, ours))
                tensor.grad = None
            else:
                pairs.append((f"'{path}'", state[path], tensor))
        for what, placed, ours in pairs:
            least = LEAST_GRADIENT * largest if "gradient" in what else LEAST_SCALE
            off, scale = _distance(placed, ours), max(_size(ours), least)
            if off > self._tolerance * scale:
                return f"{what} differs from the plain module's by {off:.2g} (of {scale:.2g})"
        return ""


def _distance(one: Tensor, other: Tensor) -> float:
    """Largest difference of two tensors, which may be sparse; what is not finite in both is equal."""
    one, other = (tensor.detach().to_dense().to(torch.complex128) for tensor in (one.cpu(), other))
    return _size((one - other).nan_to_num(0.0, 0.0, 0.0))


def _size(tensor: Tensor) -> float:
    tensor = tensor.detach().to_dense()
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _draws(captured: CapturedStep, device_of: IntArray) -> list[tuple[str, int]]:
    """Lists the ops that may draw random numbers, with their devices, in program order."""
    ops = captured.op_of_node.items()
    drawing = [(node, op) for node, op in ops if torch.Tag.nondeterministic_seeded in _tags(node.target)]
    return [(_name(op_packet(node)), int(device_of[op])) for node, op in drawing]


def _tags(function: Any) -> Sequence[Any]:
    return getattr(function, "tags", ())


def _name(packet: Any) -> str:
    """Name of an op, whether it writes in place or not; eager dropout draws as the traced op does."""
    name = str(packet).rpartition(".")[2].removesuffix("_functional").rstrip("_")
    return "bernoulli" if name == "native_dropout" else name


class _SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes ops draw the random numbers that the ops of a placed step draw.

    Args:
        draws: names and devices of the ops that may draw, in program order.
        seed: seed of the first device; the next has the next.

    Attributes:
        is_same: true if each op that drew was found among them.
    """

    def __init__(self, draws: Sequence[tuple[str, int]], seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws, self._next, self.is_same = draws, 0, True
        numbers = {device: torch.Generator().manual_seed(seed + device) for _, device in draws}
        self._states = {device: generator.get_state() for device, generator in numbers.items()}

    def __enter__(self) -> Any:
        self._next = 0
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Runs an op; if it draws, with the random numbers of its device."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in _tags(func):
            return func(*args, **kwargs)
        kwargs |= {"generator": None} if "generator" in kwargs else {}
        places = range(self._next, len(self._draws))
        place = next((index for index in places if self._draws[index][0] == _name(func.overloadpacket)), None)
        device = None if place is None else self._draws[place][1]
        if device is not None:
            torch.set_rng_state(self._states[device])
        before = torch.get_rng_state()
        made = func(*args, **kwargs)
        if not torch.get_rng_state().equal(before):
            self.is_same &= device is not None
            if place is not None and device is not None:
                self._next, self._states[device] = place + 1, torch.get_rng_state()
        return made


MOST_FLOPS = 1e11
"""Of a step whose microbatches are compared with the whole batch; seconds of a processor."""
RTOL = 1e-3
"""Difference that rounding may make between the two."""


def cut_inputs(step: Step, inputs: Any, count: int, dim: int) -> list[list[Tensor]]:
    """Cuts each input of a whole batch into those of microbatches; one of the captured shape is for all.

    Raises:
        ExecutionError: an input is none of so many microbatches.
    """
    parts = []
    for index, (tensor, captured) in enumerate(zip(step.tensors_in(inputs), step.tensors, strict=True)):
        shape, size = list(captured.shape), int(tensor[-1]) if tensor.dim() == 1 and len(tensor) else 0
        offsets = split_offsets(tensor, size, count)
        if tensor.dtype == captured.dtype and list(tensor.shape) == shape:
            parts.append([tensor] * count)
        elif offsets and (offsets[0].dtype, list(offsets[0].shape)) == (captured.dtype, shape):
            parts.append(offsets)
        else:
            if -len(shape) <= dim < len(shape):
                shape[dim] *= count
            if tensor.dtype != captured.dtype or list(tensor.shape) != shape:
                raise ExecutionError(
                    f"input {index} is {tensor.dtype} {list(tensor.shape)}; {count} microbatches have "
                    f"{captured.dtype} {shape}"
                )
            parts.append(list(tensor.chunk(count, dim)))
    return parts


def say_if_no_mean(
    captured: CapturedStep, state: Callable[[], Mapping[str, Tensor]], inputs: Any, count: int, dim: int
) -> None:
    """Prints if the mean loss of microbatches is not that of the whole batch, on this machine's processor.

    Nothing is compared if that is costly or impossible, or the step draws random numbers.

    Args:
        state: gives the parameters and buffers by path; they are not changed.
        inputs: the whole batch, which is cut along `dim`.
    """
    step = captured.step
    tags = (getattr(node.target, "tags", ()) for node in captured.trace.nodes)
    is_random = any(torch.Tag.nondeterministic_seeded in tags_of for tags_of in tags)
    if count == 1 or is_random or not step.has_loss or captured.graph.flops.sum() * count > MOST_FLOPS:
        return
    values = {path: tensor.cpu() for path, tensor in state().items()}
    try:
        parts = zip(*cut_inputs(step, inputs, count, dim), strict=True)
        with torch.no_grad():
            whole, *losses = (
                step.run([values[path].clone() for path in step.state], [tensor.cpu() for tensor in tensors])
                for tensors in (step.tensors_in(inputs), *parts)
            )
    except Exception:  # code of the user's, which may run with microbatches alone
        return
    mean = torch.stack(losses).mean()
    if not whole.isclose(mean, rtol=RTOL):
        print(
            f"the mean loss of the microbatches is {mean.item():.5g}, but {whole.item():.5g} of the whole "
            "batch at once: it is a sum, or depends on all of the batch, as a batch norm does; gradients "
            "differ too",
            file=sys.stderr,
        )
