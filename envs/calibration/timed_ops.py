"""The ops that are timed to calibrate a machine, and how PyTorch runs them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envs.calibration.measured_ops import ITEM_BYTES, OpRow

MIN_SECONDS = 0.01
"""Time that the runs of a repeat take at least, so that the clock is fine enough."""


@dataclass(frozen=True)
class TimedOp:
    """An op to time in fp32; `shape` is as in `OpRow`."""

    op_class: str
    shape: tuple[int, int, int, int]

    def row(self, kind: str, seconds: float) -> OpRow:
        """Returns the op as a measured one."""
        batch, m, n, k = self.shape
        if self.op_class in ("gemm", "bmm"):
            flops, elements = 2.0 * batch * m * n * k, batch * (m * k + k * n + m * n)
        else:
            flops, elements = float(m * n), m * n * (3 if self.op_class == "elementwise" else 2)
        size = ITEM_BYTES["fp32"] * elements
        return OpRow(kind, self.op_class, self.op_class, "fp32", self.shape, flops, size, seconds)


def ops_to_time(largest: int) -> list[TimedOp]:
    """Lists the ops to time; `largest` is the largest side of a matrix."""
    sides = [largest >> shift for shift in (4, 2, 1, 0)]
    products = itertools.product(sides, repeat=3)
    ops = [TimedOp("gemm", (1, m, n, k)) for m, n, k in products]
    ops += [TimedOp("bmm", (16, m, m, k)) for m in sides[:3] for k in (32, 64, 128)]
    for op_class in ("elementwise", "softmax", "norm"):
        for length in (256, 1024, 4096, 16384):
            ops += [
                TimedOp(op_class, (1, scale * largest * 256 // length, length, 1)) for scale in (4, 16, 64)
            ]
    return ops


def time_op(op: TimedOp, device: str, repeats: int) -> list[float]:
    """Times an op on a PyTorch device, one warm-up before.

    Args:
        device: as PyTorch names it, e.g. `cpu` or `cuda:0`.

    Returns:
        Seconds of one run in each repeat, (repeats,).
    """
    import torch

    def finish() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    with torch.no_grad():
        run = _runner(op, device)
        once = _seconds(run, finish, 2)
        runs = max(1, int(MIN_SECONDS / once))
        return [_seconds(run, finish, runs) for _ in range(repeats)]


def _seconds(run: Callable[[], object], finish: Callable[[], None], runs: int) -> float:
    finish()
    start = time.perf_counter()
    for _ in range(runs):
        run()
    finish()
    return max(time.perf_counter() - start, 1e-9) / runs


def _runner(op: TimedOp, device: str) -> Callable[[], Any]:
    import torch

    batch, m, n, k = op.shape
    if op.op_class in ("gemm", "bmm"):
        first, second = torch.ones(batch, m, k, device=device), torch.ones(batch, k, n, device=device)
        if op.op_class == "gemm":
            return lambda: first[0] @ second[0]
        return lambda: torch.bmm(first, second)
    values = torch.ones(m, n, device=device)
    if op.op_class == "softmax":
        return lambda: torch.softmax(values, dim=-1)
    if op.op_class == "norm":
        return lambda: torch.nn.functional.layer_norm(values, (n,))
    other = torch.ones(m, n, device=device)
    return lambda: values + other
