"""A disk that is full ends a command with one line; with more space the same command goes on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.processes import EVALUATE, TRAIN, TRAINING, Command, rows_of, table_of, train, trials_of
from tests.training_cases import write_toys

NO_SPACE = ("No space left on device", "File too large")
COMMANDS = {
    "train_agent.py": (TRAIN, [*TRAINING.split(), "--name", "run"]),
    "evaluate.py": (
        EVALUATE,
        "--graphs graphs.jsonl --placers single heft random --budget 300 --out out".split(),  # noqa: SIM905
    ),
}

STUDY = "--context grid --vary hidden=4,6 --name study"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training and an evaluation that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write_toys(folder)
    for module, words in COMMANDS.values():
        command = Command(module, words, folder)
        assert command.wait() == 0, command.output
    return folder


LARGE = 1 << 26
Disk = Callable[[int], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Makes a file system of a given size, or gives it another size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False

    def resize(size_bytes: int) -> Path:
        nonlocal mounted
        options = f"size={size_bytes}" + (",remount" if mounted else "")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("this machine allows no mounting; see the test with limited files")
        mounted = True
        return folder

    if shutil.which("mount") is None:
        pytest.skip("this machine has no mount")
    yield resize
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def assert_no_space(folder: Path, name: str, file_bytes: int | None = None) -> None:
    """Runs a command, and checks that it ends with one line about space."""
    module, words = COMMANDS[name]
    command = Command(module, words, folder, file_bytes=file_bytes)
    assert command.wait() == 1, command.output
    said = [line for line in command.output.splitlines() if line.startswith(f"{name}: ")]
    assert len(said) == 1, command.output
    assert any(reason in said[0] for reason in NO_SPACE), command.output
    begun = name == "train_agent.py" and (folder / "runs" / "run").exists()
    then = "resume with: python train_agent.py --resume --name run" if begun else "run the same command again"
    assert said[0].endswith(f"; free some space, then {then}")
    assert "Traceback" not in command.output


def assert_goes_on(folder: Path, name: str, whole: Path) -> None:
    """Runs a command again, and checks that it leads to what it leads to undisturbed."""
    again = train(folder, "run") if name == "train_agent.py" else Command(*COMMANDS[name], folder)
    assert again.wait() == 0, again.output
    if name == "evaluate.py":
        assert trials_of(folder / "out") == trials_of(whole / "out")
        return
    run, undisturbed = folder / "runs" / "run", whole / "runs" / "run"
    assert (run / "policy.safetensors").read_bytes() == (undisturbed / "policy.safetensors").read_bytes()
    assert rows_of(run) == rows_of(undisturbed)


def used_bytes(folder: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.iterdir())


@pytest.mark.parametrize(
    ("name", "free_kib"),
    [
        *(("train_agent.py", free_kib) for free_kib in (4, 24, 96, 180)),
        *(("evaluate.py", free_kib) for free_kib in (0, 12, 120)),
    ],
)
def test_a_command_on_a_full_disk_goes_on_when_there_is_space(
    disk: Disk, whole: Path, name: str, free_kib: int
) -> None:
    folder = disk(LARGE)
    write_toys(folder)
    disk(used_bytes(folder) + 1024 * free_kib)
    assert_no_space(folder, name)
    disk(LARGE)
    assert_goes_on(folder, name, whole)


@pytest.mark.parametrize(
    ("name", "file_kib"), [("train_agent.py", 2), ("train_agent.py", 20), ("evaluate.py", 4)]
)
def test_a_command_with_limited_files_goes_on_without_the_limit(
    tmp_path: Path, whole: Path, name: str, file_kib: int
) -> None:
    """The same where no disk can be mounted: no file may be longer than so much."""
    write_toys(tmp_path)
    assert_no_space(tmp_path, name, 1024 * file_kib)
    assert_goes_on(tmp_path, name, whole)


@pytest.mark.parametrize("free_kib", [12, 150])
def test_a_study_on_a_full_disk_goes_on_when_there_is_space(disk: Disk, free_kib: int) -> None:
    """The disk is full for the study's own files, for those of a trial, or for both; no trial is lost."""
    folder = disk(LARGE)
    write_toys(folder)
    disk(used_bytes(folder) + 1024 * free_kib)
    words = [*TRAINING.split(), *STUDY.split()]
    full = Command(TRAIN, words, folder)
    assert full.wait() == 1, full.output
    assert any(reason in full.output for reason in NO_SPACE), full.output
    assert "Traceback" not in full.output
    disk(LARGE)
    again = Command(TRAIN, words, folder)
    assert again.wait() == 0, again.output
    rows = table_of(folder / "runs" / "study" / "trials.csv")
    complete = [row["trial"] for row in rows if row["status"] == "complete"]
    assert len(complete) == len(set(complete)) == 2
    assert {row["status"] for row in rows} <= {"complete", "stale"}
    assert [row["attempt"] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]


@pytest.mark.parametrize(("name", "output"), [("train_agent.py", "runs"), ("evaluate.py", "out")])
def test_a_folder_that_is_read_only_is_one_line(disk: Disk, name: str, output: str) -> None:
    folder = disk(LARGE)
    write_toys(folder)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    command = Command(*COMMANDS[name], folder)
    assert command.wait() == 2, command.output
    assert command.output.splitlines()[-1] == f"{name}: {output}: Read-only file system"
