"""The partial pipeline and its observation in plain Python, by simulations of the partial graph."""

from __future__ import annotations

import numpy as np

from envs.mdp.features import N_DEVICE_FEATURES, column
from envs.mdp.state import MEAN_OP_S, mdp_arrays
from envs.pipeline.pipeline import PipelineError
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages
from envs.problem import Problem
from graphs import build_graph
from graphs.system.array_types import FloatArray, IntArray


def partial_step(pipelined: PipelinedProblem, devices: list[int]) -> PipelineTime | None:
    """Simulates the graph of the first pieces alone, one on each of the devices; None if it never ends."""
    problem, full, piece = pipelined.problem, pipelined.arrays, pipelined.chain.piece_of
    graph = problem.graph
    kept = np.flatnonzero(piece < len(devices))
    new = {int(op): at for at, op in enumerate(kept)}
    tensors = [t for t in range(graph.n_tensors) if int(graph.tensor_producer[t]) in new]
    part = build_graph(
        "part",
        "",
        [
            {
                "name": graph.op_names[op],
                "type": graph.op_types[op],
                "phase": graph.phases[op],
                "resident_bytes": float(graph.resident_bytes[op]),
            }
            for op in kept
        ],
        [
            (
                new[int(graph.tensor_producer[t])],
                float(graph.tensor_bytes[t]),
                [new[int(reader)] for reader in graph.consumers.row(t) if int(reader) in new],
            )
            for t in tensors
        ],
    )
    small = Problem(part, problem.cluster)
    small.__dict__["op_seconds"] = problem.op_seconds[kept]
    found = PipelinedProblem(small, pipelined.pipeline)
    found.__dict__["arrays"] = found.arrays._replace(
        is_gradient=full.is_gradient[tensors], accumulate_s=full.accumulate_s[tensors]
    )
    ranks = list(dict.fromkeys(devices))
    device_of = np.array([devices[piece[op]] for op in kept])
    runs = np.array([graph.phases[op] != "optimizer" and not graph.is_source[op] for op in kept])
    stage_of = np.array([ranks.index(device) for device in device_of])
    try:
        return found.simulate(Stages(device_of, np.where(runs, stage_of, -1), np.array(ranks)))
    except PipelineError:
        return None


def squashed(seconds: float, scale_s: float) -> float:
    x = seconds / scale_s
    return float(np.sign(x) * np.log1p(abs(x)))


def observation(pipelined: PipelinedProblem, devices: list[int]) -> tuple[FloatArray, FloatArray]:
    """Observes the piece after those on the devices.

    Returns:
        Features, free memory left out, (n_devices, N_DEVICE_FEATURES), and the step time with the piece on
        each device, infinite where it cannot go, (n_devices,).
    """
    problem, n = pipelined.problem, pipelined.problem.n_devices
    count, scale_s = pipelined.pipeline.microbatches, float(mdp_arrays(problem).scales[MEAN_OP_S])
    before = partial_step(pipelined, devices) if devices else None
    before_s = before.total_s if before else 0.0
    steps: dict[int, PipelineTime] = {}
    for device in range(n):
        if device not in devices[:-1] or device == devices[-1]:
            try:
                step = partial_step(pipelined, [*devices, device])
            except PipelineError:
                step = None
            if step is not None:
                steps[device] = step
    there = {device: _row(pipelined, devices, device, step) for device, step in steps.items()}
    rows = np.zeros((n, N_DEVICE_FEATURES))
    for device, raw in there.items():
        row = rows[device]
        for name, values in {
            "step_time_over_least": {each: step.total_s for each, step in steps.items()},
            **{
                name: {each: row[name] for each, row in there.items()}
                for name in (
                    "start_over_earliest",
                    "finish_over_earliest",
                    "device_free_over_earliest",
                    "inputs_ready_over_earliest",
                    "rollout_step_time_8_over_least",
                )
            },
        }.items():
            row[column(name)] = squashed(values[device] - min(values.values()), scale_s)
        total_s = steps[device].total_s
        row[column("step_time_growth")] = squashed(total_s - before_s, scale_s)
        row[column("idle_time")] = squashed(total_s - count * raw["device_free_over_earliest"], scale_s)
        finish_s = raw["finish_over_earliest"]
        row[column("step_time_beyond_finish")] = squashed(total_s - finish_s, scale_s)
        for name in ("op_time", "op_time_over_least", "input_transfer_time", "output_transfer_time"):
            row[column(name)] = squashed(raw[name], scale_s)
        sent_s = raw["input_transfer_time"] + raw["output_transfer_time"]
        row[column("link_busy_beyond_start")] = squashed(count * sent_s, scale_s)
        for name in ("input_bytes_there", "output_bytes_there", "load_over_mean"):
            row[column(name)] = raw[name]
        row[column("is_last_device")] = float(devices[-1:] == [device])
        slowness = problem.single_device_s[device] / problem.single_device_s.min() - 1.0
        row[column("slowness")] = squashed(float(slowness), 1.0)
        row[column("step_time")] = before_s / pipelined.scale_s
        row[column("visits_done")] = len(devices) / pipelined.chain.n_pieces
    total_s = np.array([steps[each].total_s if each in steps else np.inf for each in range(n)])
    return rows, total_s


def _row(
    pipelined: PipelinedProblem, devices: list[int], device: int, step: PipelineTime
) -> dict[str, float]:
    """Numbers about the partial pipeline with the next piece on a device; times are in seconds."""
    problem, chain = pipelined.problem, pipelined.chain
    seconds, at, n = chain.seconds[:2].sum(axis=0), len(devices), problem.n_devices
    placed = [*devices, device]
    loads = {each: sum(seconds[k, each] for k in range(at + 1) if placed[k] == each) for each in placed}
    forward = next(a for a in step.actions if a.device == device and a.kind == 0 and a.microbatch == 0)
    left_s = [seconds[at + 1 :, each].sum() for each in range(n)]
    ahead_s = max(loads.values())
    if left_s[device] > 0:
        unused = [each for each in range(n) if each not in placed]
        speed = sum(1 / left_s[each] for each in [device, *unused])
        ahead_s = max(ahead_s, (1 + loads[device] / left_s[device]) / speed)
    bytes_s = _transfers(problem, chain.piece_of, devices, device)
    return {
        "start_over_earliest": forward.start_s,
        "finish_over_earliest": forward.end_s,
        "device_free_over_earliest": float(loads[device]),
        "inputs_ready_over_earliest": float(max(loads.values())),
        "rollout_step_time_8_over_least": float(ahead_s) * pipelined.pipeline.microbatches,
        "load_over_mean": float(loads[device] * (1 / seconds.sum(axis=0)).sum() - 1),
        "op_time": float(seconds[at, device]),
        "op_time_over_least": float(seconds[at, device] - seconds[at].min()),
        **bytes_s,
    }


def _transfers(problem: Problem, piece: IntArray, devices: list[int], device: int) -> dict[str, float]:
    """Shares of bytes that are on a device, and seconds of the transfers of all others."""
    graph, cluster, at = problem.graph, problem.cluster, len(devices)
    n_half = cluster.n_half_matrix

    def seconds(size: float, source: int, target: int) -> float:
        if source == target:
            return 0.0
        sent = (size + n_half[source, target]) / np.asarray(cluster.bytes_per_s)[source, target]
        return float(sent + np.asarray(cluster.latency_s)[source, target])

    read = there = input_s = made = made_there = output_s = 0.0
    for t in range(graph.n_tensors):
        maker, size = int(piece[graph.tensor_producer[t]]), float(graph.tensor_bytes[t])
        readers = [int(piece[each]) for each in graph.consumers.row(t)]
        placed = {devices[each] for each in readers if each < at}
        if maker < at and at in readers:
            read += size
            if device == devices[maker] or device in placed:
                there += size
            else:
                input_s += seconds(size, devices[maker], device)
        if maker == at:
            made += size * len(placed)
            made_there += size * (device in placed)
            output_s += sum(seconds(size, device, target) for target in placed)
    return {
        "input_bytes_there": there / read if read else 0.0,
        "output_bytes_there": made_there / made if made else 0.0,
        "input_transfer_time": input_s,
        "output_transfer_time": output_s,
    }
