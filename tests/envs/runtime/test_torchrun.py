"""Placed and pipelined steps over processes of torchrun, as on several machines, equal the plain step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from envs.runtime.backends.device_process import StepRecord
from envs.runtime.backends.packing import pack, unpack
from envs.runtime.backends.torchrun import TorchrunDevices
from envs.runtime.backends.wire import decode, encode
from envs.runtime.device_program import ExecutionError
from tests.agent.contexts.worker_cases import free_port

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
import torch
from agent import place
from envs.runtime.cut import cut
from envs.runtime.device_program import ExecutionError
from envs.placements.placement import Placement
from dataclasses import replace
from tests.envs.runtime.small_models import plain_steps, random_devices
from tests.envs.runtime.torchrun_models import Net, INPUTS

def kinds_sent(programs):
    return {each.spec.sparse for program in programs for each in program.transfers}


torch.manual_seed(0)
module = Net()
plan = place(module, INPUTS, cluster="2xk80", placer="heft", optimizer="sgd")
draws = (random_devices(plan.graph, 2, seed) for seed in range(99))
placed = next(each for each in draws if kinds_sent(cut(plan.captured, each, 2)) == {True, False})
plan = replace(plan, placement=Placement(placed))
losses, gradients, state = plain_steps(module, INPUTS, 3, "sgd", lr=0.1)
runner = plan.compile(module, devices="torchrun", timeout_s=60, lr=0.1)
for expected in losses:
    torch.testing.assert_close(runner.step(*INPUTS).item(), expected, rtol=1e-9, atol=1e-9)
found = runner.state_dict()
assert found.keys() == state.keys()
for key, value in state.items():
    torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9)
for key, value in runner.gradients().items():
    torch.testing.assert_close(value, gradients[key].to_dense(), rtol=1e-9, atol=1e-9)
runner.load_state_dict(module.state_dict())
torch.testing.assert_close(runner.step(*INPUTS).item(), losses[0], rtol=1e-9, atol=1e-9)
if sys.argv[1:] == ["fail"]:
    if runner.processes.rank == 1:
        sys.exit(7)
    try:
        runner.step(*INPUTS)
    except ExecutionError as error:
        print(f"told: {error}", flush=True)
        sys.exit(3)
words = (INPUTS[0].repeat(4, 1) + torch.arange(8)[:, None]) % 7
settings = {"pipeline": "1f1b", "split": 4, "placer": "equal-time", "optimizer": "sgd"}
plan = place(module, words, cluster="4xv100:2", **settings)
losses, _, state = plain_steps(module, [(each,) for each in words.chunk(4)], 2, "sgd", lr=0.1)
runner = plan.compile(module, devices="torchrun", lr=0.1)
for expected in losses:
    torch.testing.assert_close(runner.step(words).item(), expected, rtol=1e-9, atol=1e-9)
for key, value in runner.state_dict().items():
    torch.testing.assert_close(value, state[key], rtol=1e-9, atol=1e-9)
runner.close()
sys.stdout.write(f"rank {runner.processes.rank} equal\\n")  # at once, as two processes write
"""


def torchrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    return subprocess.run(
        [sys.executable, *command, str(folder / "train.py"), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_two_processes_of_torchrun_equal_the_plain_step(tmp_path: Path) -> None:
    ended = torchrun(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {"rank 0 equal", "rank 1 equal"} <= set(ended.stdout.splitlines())


def test_a_rank_that_is_gone_is_noticed(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "fail")
    assert ended.returncode != 0
    assert "told: device 0: another device has ended" in ended.stdout


def test_without_torchrun_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ExecutionError, match="start one process per device by torchrun"):
        TorchrunDevices()


def test_answers_survive_the_wire() -> None:
    values = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    record = StepRecord({0: pack(values)}, 1.5, 2.25, ((0.1, 0.2), (0.3, 0.4)))
    assert decode(encode([record])) == [record]
    state = {"layer.weight": {"step": pack(torch.tensor(3.0)), "count": 2, "none": None}}
    assert decode(encode(state)) == state
    assert decode(encode(None)) is None
    empty = decode(encode({"e": pack(torch.empty(0, 4))}))
    assert unpack(empty["e"]).shape == (0, 4)


@pytest.mark.parametrize(
    "content", [b"", b"12345678", b"\x02\0\0\0\0\0\0\0{}", np.random.default_rng(0).bytes(99)]
)
def test_what_is_no_answer_is_refused(content: bytes) -> None:
    with pytest.raises(ExecutionError, match="another device sent what is no answer"):
        decode(content)
