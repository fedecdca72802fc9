"""The ops that are timed to calibrate a machine, how PyTorch runs them, and their times."""

from __future__ import annotations

import itertools
import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from envs.costs.op_classes import MATMULS, TENSOR
from graphs.capture.capture import capture
from graphs.families.layers import Sizes
from graphs.families.text import gpt
from graphs.system.errors import InputError

ITEM_BYTES = {"fp32": 4.0, "fp16": 2.0}
"""Bytes of an element by the dtypes that are measured; fp32 is without TF32."""
MIN_SECONDS = 0.01
"""Time that the runs of a repeat take at least, so that the clock is fine enough."""
PASSES = {"elementwise": 3, "softmax": 2, "norm": 2, "reduction": 1, "move": 2, "gather": 2, "optimizer": 7}
"""Reads and writes of each element by an op; the optimizer is Adam."""
KERNEL = 9
"""Elements of the kernel of a convolution that is timed, 3x3."""


class MeasuredOpsError(InputError):
    """Measured times that cannot be used; the message says where and what would be right."""


@dataclass(frozen=True)
class MeasuredOp:
    """One measured op.

    Attributes:
        op_class: one of `envs.costs.op_classes.CLASSES`, or `TENSOR`.
        dtype: type of the arithmetic.
        shape: batch, m, n and k of a matrix product; else 1, rows, elements of a row and 1.
        image: height and width of the output of a convolution, else 0.
    """

    op_class: str
    dtype: str
    shape: tuple[int, int, int, int]
    flops: float
    bytes_moved: float
    seconds: float
    image: tuple[int, int] = (0, 0)

    @property
    def is_held_out(self) -> bool:
        """Says whether the row judges a fit: every second shape, the same on all devices."""
        return zlib.crc32(f"{self.op_class} {self.shape}".encode()) % 2 == 1


@dataclass(frozen=True)
class TimedOp:
    """An op to time in fp32, or of the class `TENSOR` in fp16; shape and image are as in `MeasuredOp`."""

    op_class: str
    shape: tuple[int, int, int, int]
    image: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return f"{self.op_class} {self.shape}" + (f" {self.image}" if any(self.image) else "")

    @property
    def dtype(self) -> str:
        """Dtype of its arithmetic."""
        return "fp16" if self.op_class == TENSOR else "fp32"

    def row(self, seconds: float) -> MeasuredOp:
        """Returns the op as a measured one."""
        batch, m, n, k = self.shape
        if self.op_class in PASSES:
            flops, elements = float(m * n), PASSES[self.op_class] * m * n
        else:
            read = m * k // KERNEL if self.op_class == "conv" else m * k
            flops, elements = 2.0 * batch * m * n * k, batch * (read + k * n + m * n)
        size = ITEM_BYTES[self.dtype] * elements
        return MeasuredOp(self.op_class, self.dtype, self.shape, flops, size, seconds, self.image)


def ops_to_time(largest: int, *, tensor_cores: bool = False) -> list[TimedOp]:
    """Lists the ops to time.

    Args:
        largest: the largest side of a matrix.
        tensor_cores: true if products in fp16 are timed too.
    """
    sides = [largest >> shift for shift in (4, 2, 1, 0)]
    products = [(1, m, n, k) for m, n, k in itertools.product(sides, repeat=3)]
    ops = [TimedOp("gemm", shape) for shape in products]
    batched = itertools.product((4, 16), sides[:3], sides[:3], (32, 64, 128))
    ops += [TimedOp("bmm", shape) for shape in batched]
    if tensor_cores:
        ops += [TimedOp(TENSOR, shape) for shape in products]
    for channels, side, out in itertools.product((16, 64, 256), (7, 14, 28, 56), (16, 64, 256)):
        samples = max(1, largest // side**2)
        ops.append(TimedOp("conv", (1, samples * side**2, out, KERNEL * channels), (side, side)))
    totals = [largest**2 >> shift for shift in (8, 6, 4, 2, 0)] + [4 * largest**2, 16 * largest**2]
    for op_class, total, length in itertools.product(PASSES, totals, (256, 1024, 4096)):
        ops.append(TimedOp(op_class, (1, max(1, total // length), length, 1)))
    return list(dict.fromkeys(ops))


def time_op(op: TimedOp, device: str, repeats: int, run_s: float | None = None) -> list[float]:
    """Times an op on a PyTorch device, one warm-up before.

    Args:
        device: name in PyTorch, e.g. `cpu` or `cuda:0`.
        run_s: seconds that the runs of a repeat take at least; by default `MIN_SECONDS`.

    Returns:
        Seconds of one run in each repeat, (repeats,).
    """
    with torch.no_grad():
        return time_runs(_runner(op, device), device, repeats, run_s)


def time_runs(
    run: Callable[[], object], device: str, repeats: int, run_s: float | None = None
) -> list[float]:
    """Times a function that issues work to a device: seconds of one run in each repeat, (repeats,)."""

    def seconds(runs: int) -> float:
        finish()
        start = time.perf_counter()
        for _ in range(runs):
            run()
        finish()
        return max(time.perf_counter() - start, 1e-9) / runs

    def finish() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    once = seconds(2)
    runs = max(1, int((MIN_SECONDS if run_s is None else run_s) / once))
    return [seconds(runs) for _ in range(repeats)]


def time_issue(device: str, repeats: int, run_s: float | None = None) -> list[float]:
    """Times an eager training step of a small transformer, whose ops a GPU does sooner than they are issued.

    Args:
        device, repeats, run_s: arguments of `time_op`.

    Returns:
        Seconds that the host needs for an op of the captured step, with autograd and Adam, in each repeat,
        (repeats,).
    """
    sizes = Sizes(layers=4, width=64, heads=2, length=16, vocabulary=64)
    with torch.random.fork_rng():
        model = gpt(sizes, parallel=False, joint=True, fused=True, gated=False, tied=True)
    words = torch.zeros(2, sizes.length, dtype=torch.int64)
    graph = capture(model, (words, words), notify=lambda line: None)
    n_issued = int(((graph.flops > 0) | (graph.bytes_moved > 0)).sum())
    model, words = model.to(device), words.to(device)
    update = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(words, words).backward()
        update.step()
        update.zero_grad()

    return [seconds / n_issued for seconds in time_runs(step, device, repeats, run_s)]


def _runner(op: TimedOp, device: str) -> Callable[[], Any]:
    batch, m, n, k = op.shape
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[op.dtype]

    def full(*shape: int) -> torch.Tensor:
        return torch.ones(*shape, device=device, dtype=dtype)

    if op.op_class == "conv":
        side, channels = op.image[0], k // KERNEL
        images, weight = full(m // side**2, channels, side, side), full(n, channels, 3, 3)
        return lambda: torch.conv2d(images, weight, padding=1)
    if op.op_class in (*MATMULS, TENSOR):
        first, second = full(batch, m, k), full(batch, k, n)
        return (lambda: torch.bmm(first, second)) if op.op_class == "bmm" else lambda: first[0] @ second[0]
    values = full(m, n)
    if op.op_class == "optimizer":
        parameter = torch.nn.Parameter(values)
        parameter.grad = torch.ones_like(values)
        return torch.optim.Adam([parameter]).step
    other = full(m, n) if op.op_class == "elementwise" else values
    rows = torch.randperm(m, device=device)
    runners: dict[str, Callable[[], Any]] = {
        "elementwise": lambda: values + other,
        "softmax": lambda: torch.softmax(values, dim=-1),
        "norm": lambda: torch.nn.functional.layer_norm(values, (n,)),
        "reduction": lambda: values.sum(dim=-1),
        "move": lambda: values.clone(),
        "gather": lambda: values[rows],
    }
    return runners[op.op_class]


def largest_side(memory_bytes: float) -> int:
    """Returns the largest side of a matrix to time: the largest op takes at most an eighth of the memory."""
    elements = memory_bytes / 8 / ITEM_BYTES["fp32"] / max(PASSES.values()) / 16
    return min(4096, 1 << int(math.log2(max(elements, 1.0)) / 2))
