"""The parts of the check of a GPU; each runs as a program of its own and writes a line of JSON for each row.

`python -m tests.gpu.parts PART --device cuda:0 --rows FILE --seconds 60`. The device `cpu` tries a part where
there is no GPU; a GPU is replaced by a process or by recorded streams then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.gpu.model_steps import STEPS, compare_models, measure_step
from tests.gpu.rows import FAILED, OK, Row, Rows, is_gpu, tried

ROOT = Path(__file__).parents[2]
WITH_CUDA_TESTS = ("tests/envs/runtime/test_streams.py", "tests/graphs/capture/test_autocast.py")
N_STEPS = 3
"""Steps of a placed model whose losses are compared."""
RELATIVE = 1e-4
"""Error allowed of losses, which are in float32 for a GPU and the processor."""


def run_tests(device: str, seconds: float) -> Rows:
    """Runs the tests that are marked `cuda`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Warnings of another version of a library are no failures here, as they are in the suite.
        options = "-q -m cuda -p no:cacheprovider -o addopts= -o filterwarnings=default"
        command = [sys.executable, "-m", "pytest", *options.split(), f"--junitxml={report}", *WITH_CUDA_TESTS]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=ROOT, timeout=0.9 * seconds)
        if not report.exists():
            yield Row("tests", "pytest", FAILED, note=f"wrote no report within {seconds:.0f} s")
            return
        cases = list(ElementTree.parse(report).iter("testcase"))
    outcomes = [{child.tag: child.get("message", "") for child in case} for case in cases]
    failed = [any(key in outcome for key in ("failure", "error")) for outcome in outcomes]
    skipped = sum("skipped" in outcome for outcome in outcomes)
    counts = f"{len(cases) - sum(failed) - skipped} passed, {sum(failed)} failed, {skipped} skipped"
    yield Row("tests", "marked cuda", FAILED if any(failed) or not cases else OK, note=counts)
    for case, outcome, is_failed in zip(cases, outcomes, failed, strict=True):
        if is_failed:
            message = next(iter(outcome.values())).splitlines()[:1]
            yield Row("tests", str(case.get("name")), FAILED, note="".join(message))


def calibrate(device: str, seconds: float, repeats: int = 3) -> Rows:
    """Measures this machine as `python -m agent.calibration measure` does."""
    from agent.calibration.__main__ import measure_here
    from envs.cluster.presets import get_cluster
    from envs.costs.calibration import calibration_of

    def measured() -> Row:
        measure_here(repeats, threads=1, n_processes=None)
        return Row("calibration", "measure", note=f"{repeats} repeats of each op and copy")

    yield (row := tried("calibration", "measure", measured))
    if row.state != OK:
        return
    cluster = get_cluster("this")
    for each in cluster.devices:
        found = calibration_of(each.kind)
        errors = [fit.median for fit in found.classes.values() if fit.held_out_rows] if found else []
        peaks = ", ".join(f"{dtype} {rate / 1e12:.3g}" for dtype, rate in each.peaks.items())
        note = (
            f"{peaks} Tflop/s, {each.bytes_per_s / 1e9:.4g} GB/s; median errors of classes on held-out ops "
        )
        note += f"{min(errors):.1%} to {max(errors):.1%}" if errors else "unknown"
        yield Row("calibration", f"{each.name} ({each.kind})", note=note)
    yield Row("calibration", "host", note=f"{cluster.issue_s * 1e6:.3g} us to issue an op")
    for i, sender in enumerate(cluster.devices):
        for j, receiver in enumerate(cluster.devices):
            if i != j:
                speed, wait = cluster.bytes_per_s[i, j] / 1e9, cluster.latency_s[i, j] * 1e6
                name = f"{sender.name} to {receiver.name}"
                yield Row("calibration", name, note=f"{speed:.3g} GB/s, {wait:.3g} us")


def run_placements(device: str, seconds: float) -> Rows:
    """Runs placements on GPU and host and on two streams of one GPU; losses are the plain model's."""
    for model in ("gpt", "ptb"):
        yield tried("placements", f"{model} on GPU and host", partial(_on_gpu_and_host, model, device))
        for n in (1, 2):
            case = f"{model}, random over {n} of 2 devices on one GPU"
            yield tried("placements", case, partial(_on_one_gpu, case, model, device, n))


def _on_gpu_and_host(name: str, device: str) -> Row:
    import numpy as np

    from agent import place
    from agent.calibration.quick import get_or_measure_cluster
    from envs.cluster.cluster import Cluster
    from tests.envs.runtime.small_models import make

    module, inputs = make(name)
    # Fake tensors of torch before 2.13 have the sums of attention in float64 in float32.
    module, inputs = module.float(), tuple(x.float() if x.is_floating_point() else x for x in inputs)
    cluster, names = get_or_measure_cluster("this"), None
    if not is_gpu(device):
        two = tuple(replace(cluster.devices[0], name=each) for each in ("cpu", "gpu"))
        cluster, names = Cluster("two", two, np.full((2, 2), 1e10), np.full((2, 2), 1e-5)), ["cpu", "cpu"]
    plan = place(module, inputs, cluster=cluster, placer="round-robin", optimizer="sgd")
    n_ops = [int((plan.placement.device_of == index).sum()) for index in range(len(cluster.devices))]
    if not all(n_ops):
        raise AssertionError(f"a device has no ops: {n_ops}")
    with plan.compile(module, devices=names, timeout_s=60, lr=0.1) as runner:
        note = _same_losses(runner, module, inputs)
        measured_s = statistics.median(each.total_s for each in runner.timed_steps(STEPS))
    note = f"{', '.join(map(str, n_ops))} ops on each; {note}"
    return Row("placements", f"{name} on GPU and host", OK, plan.step_time.total_s, measured_s, note=note)


def _on_one_gpu(case: str, name: str, device: str, n_used: int) -> Row:
    """Runs a random placement; the time beside it is that of the plain module."""
    from envs.runtime.backends.processes import DeviceProcesses
    from envs.runtime.runner import StepRunner
    from graphs.capture.capture import capture_step
    from tests.envs.runtime.recorded_streams import RecordedCuda
    from tests.envs.runtime.small_models import make, random_devices
    from tests.gpu.two_on_one import TwoOnOne

    module, inputs = make(name)
    module, inputs = module.float(), tuple(x.float() if x.is_floating_point() else x for x in inputs)
    captured = capture_step(module, inputs, optimizer="sgd")
    device_of = random_devices(captured.graph, n_used, 0)
    cuda = TwoOnOne(device) if is_gpu(device) else RecordedCuda()
    with DeviceProcesses(["cuda:0", "cuda:1"], 60, cuda) as processes:
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 0.1})
        note = _same_losses(runner, module, inputs)
        measured_s = statistics.median(each.total_s for each in runner.timed_steps(STEPS))
    plain_s, _ = measure_step(module, inputs, device, True, False)
    note = f"{note}; the plain module takes {1e3 * plain_s:.3g} ms"
    return Row("placements", case, OK, None, measured_s, note=note)


def _same_losses(runner: Any, module: Any, inputs: Any) -> str:
    """Compares losses with those of the module that is not placed."""
    from tests.envs.runtime.small_models import plain_steps

    losses, _, _ = plain_steps(module, inputs, N_STEPS, "sgd", lr=0.1)
    found = [float(runner.step(*inputs)) for _ in range(N_STEPS)]
    error = max(abs(a / b - 1) for a, b in zip(found, losses, strict=True))
    if not error <= RELATIVE:
        raise AssertionError(f"losses {found} instead of {losses}")
    return f"{N_STEPS} losses as of the plain model (relative error {error:.1g})"


def run_policy(device: str, seconds: float) -> Rows:
    """Decodes by the shipped policy and by an encoder of torch, and updates on the device as on the CPU."""
    yield tried("policy", "decode, shipped policy", partial(_decode_shipped, device))
    for encoder in ("sage", "gat"):
        yield tried("policy", f"decode and update, encoder {encoder}", partial(_update, encoder, device))
    yield tried("policy", "reinforcement, PPO", partial(_reinforce, device))


def _problem() -> Any:
    from envs.problem import Problem
    from tests.agent.placement_cases import make_cluster, training_graph

    return Problem(training_graph(3, 2), make_cluster(2))


def _decode_shipped(device: str) -> Row:
    import numpy as np

    from agent.policy.decoding import decode
    from agent.policy.serialization import read_policy

    problem, policy = _problem(), read_policy("pretrained").policy()
    expected, found = (decode(policy.to(each), problem) for each in ("cpu", device))
    if not np.array_equal(expected, found):
        raise AssertionError("another placement than with weights on the CPU")
    return Row("policy", "decode, shipped policy", note=f"the placement of the CPU, {found.shape[1]} ops")


def _update(encoder: str, device: str) -> Row:
    """Scores decisions and makes one update on a device and on the CPU, from the same weights."""
    import copy

    import torch

    from agent.policy.decoding import decode
    from agent.policy.network import PlacementNetwork
    from agent.policy.policy import Policy
    from agent.policy.shape import current_shape

    problem = _problem()
    torch.manual_seed(0)
    network, made = PlacementNetwork(current_shape(encoder, 16, 2)), []
    for each in ("cpu", device):
        policy = Policy(copy.deepcopy(network)).to(each)
        policy.set_problems([problem])
        observations = {name: rows.to(each) for name, rows in _observations(problem).items()}
        before = policy.scores(observations)[0].cpu()
        n_decided = decode(policy, problem).shape[1]
        logits, values = policy.scores_for_update(observations)
        loss = values.square().mean() - logits.log_softmax(1).amax(1).mean()
        loss.backward()
        # Adam's first step has the sign of each gradient alone, and the sign of one near 0 is the device's.
        torch.optim.SGD(policy.parameters(), lr=1e-2).step()
        made.append((before, policy.scores(observations)[0].cpu(), loss.detach().cpu()))
    for expected, found in zip(*made, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    note = f"{n_decided} ops decided; scores before and after the update and its loss as on the CPU"
    return Row("policy", f"decode and update, encoder {encoder}", note=note)


def _observations(problem: Any) -> dict[str, Any]:
    """What is observed in the first eight decisions of an episode."""
    import numpy as np
    import torch

    from envs.placement.episodes import EpisodeBatch, EpisodeSettings

    batch = EpisodeBatch([problem], 1, EpisodeSettings(["topo"]))
    batch.begin(0, 0, 0, np.random.default_rng(0))
    seen = []
    for number in range(8):
        seen.append({name: rows.copy() for name, rows in batch.observation._asdict().items()})
        batch.step(np.array([number % problem.n_devices]))
    return {name: torch.from_numpy(np.concatenate([rows[name] for rows in seen])) for name in seen[0]}


def _reinforce(device: str) -> Row:
    import sb3_contrib  # noqa: F401

    from agent.learn.train import train
    from tests.agent.learn.train_cases import SMALL, MemoryContext

    with tempfile.TemporaryDirectory() as folder:
        config = replace(SMALL, device=device, timesteps=256)
        result = train(config, MemoryContext(Path(folder) / "run", device=device))
    note = f"{result.timesteps} decisions, {result.updates} updates, score {result.best_score:.3g}"
    return Row("policy", "reinforcement, PPO", note=note)


def compile_kernels(device: str, seconds: float) -> Rows:
    """Compiles the kernels that later parts need, without a row."""
    for rows in (run_placements("cpu", seconds), run_policy("cpu", seconds)):
        for _ in rows:
            pass
    yield from ()


PARTS: dict[str, Callable[[str, float], Rows]] = {
    "compile": compile_kernels,
    "tests": run_tests,
    "calibration": calibrate,
    "models": compare_models,
    "placements": run_placements,
    "policy": run_policy,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a part; what it has found so far is in the file if it is ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.parts")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args(arguments)
    failed = False
    with options.rows.open("a", encoding="utf-8") as file:
        for row in PARTS[options.part](options.device, options.seconds):
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            failed |= row.state == FAILED
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
