"""The part of the check of a GPU that predicts and measures plain steps of models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from tests.gpu.rows import FAILED, OK, Row, Rows, is_gpu, tried

WARM_UP, STEPS = 3, 10


def compare_models(
    device: str, seconds: float, models: Mapping[str, Callable[[], Any]] | None = None
) -> Rows:
    """Predicts and measures steps of models: fp32 and bf16 autocast, training and inference."""
    from agent.calibration.quick import get_or_measure_cluster
    from tests.gpu.models import MODELS

    ends_s = time.monotonic() + 0.9 * seconds
    cluster, made = get_or_measure_cluster("this"), []
    take_workspaces(device)
    for name, make in (models or MODELS).items():
        for training in (True, False):
            captured = cache(partial(_captured, make, training))
            for precision in ("fp32", "amp-bf16"):
                case = f"{name}, {'training' if training else 'inference'}, {precision}"
                if time.monotonic() > ends_s:
                    made.append(Row("models", case, FAILED, note="no time was left"))
                else:
                    compare = partial(_compared, case, captured, cluster, device, precision)
                    made.append(tried("models", case, compare))
                yield made[-1]
    yield from summaries(made)


def summaries(rows: Sequence[Row]) -> Rows:
    """Says how far the predictions are off."""
    for what, key in (("time", "s"), ("peak memory", "bytes")):
        pairs = [(getattr(row, f"predicted_{key}"), getattr(row, f"measured_{key}")) for row in rows]
        ratios = sorted(predicted / measured for predicted, measured in pairs if predicted and measured)
        if ratios:
            errors = [abs(ratio - 1) for ratio in ratios]
            note = f"predicted over measured {ratios[0]:.2f} to {ratios[-1]:.2f}, "
            note += f"median {statistics.median(ratios):.2f}; median error {statistics.median(errors):.1%}"
            yield Row("models", f"{what} of {len(ratios)} steps", note=note)


def _captured(make: Callable[[], Any], training: bool) -> tuple[Any, Any, Any]:
    """Makes a model with drawn weights, its inputs and its graph."""
    import torch

    from graphs.capture.capture import capture

    torch.manual_seed(0)
    module, inputs = make()
    return module, inputs, capture(module, inputs, training=training, notify=lambda line: None)


def _compared(case: str, captured: Callable[[], Any], cluster: Any, device: str, precision: str) -> Row:
    """Compares a model's step as torch runs it by default, or under autocast with bf16."""
    import numpy as np

    from envs.problem import Problem
    from envs.simulator.simulate import simulate_problem
    from graphs.precision import with_precision

    module, inputs, graph = captured()
    costed = graph if precision == "fp32" else with_precision(graph, precision)
    at = [each.name for each in cluster.devices].index(device.replace(":", ""))
    step = simulate_problem(Problem(costed, cluster), np.full(graph.n_ops, at))
    training = "backward" in graph.phases
    measured_s, measured_bytes = measure_step(module, inputs, device, training, precision != "fp32")
    times = (float(step.total_s), measured_s, float(step.peak_bytes[at]), measured_bytes)
    return Row("models", case, OK, *times)


def take_workspaces(device: str) -> None:
    """Has cuBLAS take what it keeps for products, of both the thread that calls and that of autograd."""
    import torch

    for dtype in (torch.float32, torch.bfloat16):
        layer = torch.nn.Linear(64, 64, device=device, dtype=dtype)
        layer(torch.ones(64, 64, device=device, dtype=dtype)).sum().backward()


def measure_step(
    module: Any, inputs: Any, device: str, training: bool, autocast: bool
) -> tuple[float, float | None]:
    """Measures a plain step: the median of its seconds, and the greatest bytes that it allocates on a GPU."""
    import copy

    import torch

    before_bytes = torch.cuda.memory_allocated(device) if is_gpu(device) else 0
    if is_gpu(device):
        torch.cuda.empty_cache()
    model = copy.deepcopy(module).to(device).train(training)
    given = [each.to(device) for each in inputs]
    update = torch.optim.Adam(model.parameters(), lr=1e-6)

    def step() -> None:
        kind = device.partition(":")[0]
        with torch.set_grad_enabled(training), torch.autocast(kind, torch.bfloat16, enabled=autocast):
            loss = model(*given)
        if training:
            loss.backward()
            update.step()
            update.zero_grad()

    def finish() -> None:
        if is_gpu(device):
            torch.cuda.synchronize(device)

    def timed() -> float:
        finish()
        began_s = time.perf_counter()
        step()
        finish()
        return time.perf_counter() - began_s

    n_warm, n_steps = (WARM_UP, STEPS) if is_gpu(device) else (1, 1)
    for _ in range(n_warm):
        step()
    if is_gpu(device):
        finish()
        torch.cuda.reset_peak_memory_stats(device)
    median_s = statistics.median(timed() for _ in range(n_steps))
    peak_bytes = float(torch.cuda.max_memory_allocated(device) - before_bytes) if is_gpu(device) else None
    return median_s, peak_bytes
