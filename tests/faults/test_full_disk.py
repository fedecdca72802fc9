"""A disk that is full ends a command with one line; with more space the same command goes on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.processes import EVALUATE, TRAIN, TRAINING, Command, rows_of, train, trials_of
from tests.training_cases import write_toys

NO_SPACE = ("No space left on device", "File too large")
TRAIN_WORDS = [*TRAINING.split(), "--name", "run"]
EVALUATE_WORDS = "--graphs graphs.jsonl --placers single heft random --budget 300 --out out".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training and an evaluation that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write_toys(folder)
    for module, words in ((TRAIN, TRAIN_WORDS), (EVALUATE, EVALUATE_WORDS)):
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


def assert_one_line_about_space(command: Command, name: str) -> None:
    assert command.wait() == 1, command.output
    said = [line for line in command.output.splitlines() if line.startswith(f"{name}: ")]
    assert len(said) == 1, command.output
    assert any(reason in said[0] for reason in NO_SPACE), command.output
    assert "Traceback" not in command.output


def used_bytes(folder: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.iterdir())


def assert_same_training(folder: Path, whole: Path) -> None:
    again = train(folder, "run")
    assert again.wait() == 0, again.output
    run, undisturbed = folder / "runs" / "run", whole / "runs" / "run"
    assert (run / "policy.safetensors").read_bytes() == (undisturbed / "policy.safetensors").read_bytes()
    assert rows_of(run) == rows_of(undisturbed)


@pytest.mark.parametrize("free_kib", [4, 12, 24, 48, 96, 120, 172, 180])
def test_a_training_on_a_full_disk_goes_on_when_there_is_space(
    disk: Disk, whole: Path, free_kib: int
) -> None:
    folder = disk(LARGE)
    write_toys(folder)
    disk(used_bytes(folder) + 1024 * free_kib)
    assert_one_line_about_space(Command(TRAIN, TRAIN_WORDS, folder), "train_agent.py")
    disk(LARGE)
    assert_same_training(folder, whole)


@pytest.mark.parametrize("file_kib", [2, 10, 20])
def test_a_training_with_limited_files_goes_on_without_the_limit(
    tmp_path: Path, whole: Path, file_kib: int
) -> None:
    """The same where no disk can be mounted: no file may be longer than so much."""
    write_toys(tmp_path)
    command = Command(TRAIN, TRAIN_WORDS, tmp_path, file_bytes=1024 * file_kib)
    assert_one_line_about_space(command, "train_agent.py")
    assert_same_training(tmp_path, whole)


def assert_same_evaluation(folder: Path, whole: Path) -> None:
    again = Command(EVALUATE, EVALUATE_WORDS, folder)
    assert again.wait() == 0, again.output
    assert trials_of(folder / "out") == trials_of(whole / "out")


@pytest.mark.parametrize("free_kib", [0, 4, 12, 60, 120])
def test_an_evaluation_on_a_full_disk_goes_on_when_there_is_space(
    disk: Disk, whole: Path, free_kib: int
) -> None:
    folder = disk(LARGE)
    write_toys(folder)
    disk(used_bytes(folder) + 1024 * free_kib)
    assert_one_line_about_space(Command(EVALUATE, EVALUATE_WORDS, folder), "evaluate.py")
    disk(LARGE)
    assert_same_evaluation(folder, whole)


@pytest.mark.parametrize("file_kib", [2, 4])
def test_an_evaluation_with_limited_files_goes_on_without_the_limit(
    tmp_path: Path, whole: Path, file_kib: int
) -> None:
    write_toys(tmp_path)
    command = Command(EVALUATE, EVALUATE_WORDS, tmp_path, file_bytes=1024 * file_kib)
    assert_one_line_about_space(command, "evaluate.py")
    assert_same_evaluation(tmp_path, whole)


@pytest.mark.parametrize(
    ("module", "words", "line"),
    [
        (TRAIN, TRAIN_WORDS, "train_agent.py: runs: Read-only file system"),
        (EVALUATE, EVALUATE_WORDS, "evaluate.py: out: Read-only file system"),
    ],
)
def test_a_folder_that_is_read_only_is_one_line(disk: Disk, module: str, words: list[str], line: str) -> None:
    folder = disk(LARGE)
    write_toys(folder)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    command = Command(module, words, folder)
    assert command.wait() == 2, command.output
    assert command.output.splitlines()[-1] == line
