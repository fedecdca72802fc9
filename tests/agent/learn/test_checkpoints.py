"""Checkpoints: what is read is what was written, and a kill at any moment leaves a good one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save

from agent.learn import checkpoints
from agent.learn.checkpoints import (
    FORMAT,
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    content_of,
    read_checkpoint,
)

TENSORS = {
    "scalar": np.array(2.5, dtype=np.float32),
    "matrix": np.arange(6).reshape(2, 3),
    "none": np.zeros((0, 3)),
    "bytes": np.arange(5, dtype=np.uint8),
}
STATE = {"at": 3, "best": [0.5, 7], "name": "ä"}


def save_numbers(folder: CheckpointFolder, *iterations: int) -> None:
    for iteration in iterations:
        folder.save(iteration, content_of(Checkpoint({"x": torch.tensor([iteration])}, {"at": iteration})))


def write(path: Path) -> None:
    tensors = {name: torch.from_numpy(tensor) for name, tensor in TENSORS.items()}
    path.write_bytes(content_of(Checkpoint(tensors, STATE)))


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path)
    checkpoint = read_checkpoint(path)
    tensors = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
    assert checkpoint.state == STATE
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor, strict=True)


def test_any_changed_byte_and_any_missing_end_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path)
    whole = path.read_bytes()
    end_of_header = 8 + int.from_bytes(whole[:8], "little")
    padding = len(whole[:end_of_header]) - len(whole[:end_of_header].rstrip(b" "))
    significant = [*range(end_of_header - padding), *range(end_of_header, len(whole))]
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in significant]
    damaged += [whole[:length] for length in range(len(whole))] + [whole + b"\0"]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"a\.safetensors: ") as caught:
            read_checkpoint(path)
        assert str(caught.value).isprintable()


CHECKSUM = checkpoints._checksum(TENSORS, json.dumps(STATE))
METADATA = {"format": FORMAT, "state": json.dumps(STATE), "sha256": CHECKSUM}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "is damaged: its checksum is not that of its content"),
        ({"state": '{"at": 4}'}, "is damaged: its checksum is not that of its content"),
        ({"format": "placewalk.ppo/1"}, "so it is of another version"),
        ({"format": "placewalk.policy/2"}, f"is no {FORMAT} file"),
        ({"format": None}, "header has no|is no placewalk"),
        ({"state": None}, "header has no"),
        ({"sha256": None}, "header has no"),
        *(
            ({"state": state, "sha256": checkpoints._checksum(TENSORS, state)}, "a state that is no JSON")
            for state in ("", "{", "[1]")
        ),
    ],
)
def test_changed_metadata_is_refused(tmp_path: Path, change: dict[str, str | None], message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(save(TENSORS, metadata=METADATA))
    assert read_checkpoint(path).state == STATE
    metadata = {key: value for key, value in (METADATA | change).items() if value is not None}
    path.write_bytes(save(TENSORS, metadata=metadata))
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


def test_two_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.latest() is None
    save_numbers(folder, 9, 10, 100)
    latest = folder.latest()
    assert latest is not None
    assert latest.state == {"at": 100}
    assert latest.tensors["x"].tolist() == [100]
    assert [path.stem for path in folder.files] == ["00000010", "00000100"]


def test_damaged_ones_never_push_out_good_ones(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    save_numbers(folder, 9, 10)
    folder.files[-1].write_bytes(b"nonsense")
    (tmp_path / "99999999.safetensors").write_bytes(b"nonsense")
    save_numbers(folder, 11)
    assert [path.stem for path in folder.files] == ["00000010", "00000011"]
    save_numbers(folder, 12)
    assert [int(load_file(path)["x"][0]) for path in folder.files] == [11, 12]


def test_where_none_can_be_read_the_newest_is_named(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    save_numbers(folder, 9, 10)
    for path in folder.files:
        path.write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"00000010.*nor can the one before be read; start a new training under"
    ):
        folder.latest()
    assert len(folder.files) == 2


def killed_at(call: int, work: Callable[[], None]) -> bool:
    """Does the work in a process that is killed at its n-th call that changes names of files, or syncs them.

    Returns:
        Whether it was; else it had come to its end before.
    """
    pid = os.fork()
    if pid == 0:
        left = [call]
        for name in ("replace", "unlink", "fsync", "open", "mkdir"):
            real = getattr(os, name)

            def counted(*arguments: object, real: Callable[..., object] = real, **named: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **named)

            setattr(os, name, counted)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_a_kill_at_any_moment_leaves_a_good_one(tmp_path: Path) -> None:
    call, killed = 0, True
    while killed:
        folder = CheckpointFolder(tmp_path / str(call))
        save_numbers(folder, 1, 2)
        killed = killed_at(call, lambda folder=folder: save_numbers(folder, 3))
        latest = folder.latest(pytest.fail)
        assert latest is not None
        assert latest.state["at"] in (2, 3)
        assert len(folder.files) >= checkpoints.GENERATIONS
        call += 1
    assert call > 5
