"""What the commands meet at their edges: paths, streams, signals, and code of the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.processes import EVALUATE, TRAINING, Command
from tests.training_cases import write_toys

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    write_toys(folder)
    return folder


def test_a_terminal_that_lacks_a_character_still_gets_its_tables(here: Path) -> None:
    (here / "code.py").write_text("raise ValueError")
    words = "evaluate --graphs graphs.jsonl --placers random annealing --budget 50 --seeds 3 --out out"
    done = in_shell(here, f"PYTHONIOENCODING=ascii {words}")
    assert (done.returncode, "an error in the program" in done.stderr) == (0, False), done.stderr
    assert "annealing" in done.stdout
    assert (here / "out" / "report.html").exists()


def in_shell(here: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of shell in which `evaluate` and `train` are the commands."""
    commands = {"evaluate": "evaluate.py", "train": "train_agent.py"}
    functions = [
        f'{name}() {{ "{sys.executable}" "{ROOT / file}" "$@"; }}' for name, file in commands.items()
    ]
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", "\n".join([*functions, line])],
        cwd=here,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("evaluate --print-cluster 4xv100 | head -c 0", 0, ""),
        (
            "evaluate --print-cluster 4xv100 > /dev/full",
            1,
            "evaluate.py: No space left on device; free some space, then run the same command again\n",
        ),
        ("evaluate --graphs graphs.jsonl --placers single --out out >&- 2>&-", 0, ""),
    ],
)
def test_streams_that_are_closed_or_full(here: Path, line: str, code: int, said: str) -> None:
    done = in_shell(here, line)
    assert (done.returncode, done.stderr) == (code, said)
    assert not done.stdout


def test_a_training_goes_on_when_its_stderr_is_closed(here: Path) -> None:
    """Its reader leaves after the first line, as a terminal does that is closed."""
    done = in_shell(here, f"train {TRAINING} --name run 2> >(head -n 1 > first)")
    assert done.returncode == 0
    assert (here / "runs" / "run" / "result.json").exists()
    assert (here / "first").read_text().count("\n") == 1


@pytest.mark.parametrize(("library", "number"), [("numpy", signal.SIGINT), ("torch", signal.SIGTERM)])
def test_a_signal_while_libraries_are_imported_leaves_one_line(
    here: Path, library: str, number: signal.Signals
) -> None:
    command = [sys.executable, str(ROOT / "train_agent.py"), *TRAINING.split(), "--name", "run"]
    running = subprocess.Popen(command, cwd=here, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    maps = Path(f"/proc/{running.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not show what a process has loaded")
    deadline = time.monotonic() + 60
    while f"/{library}/" not in maps.read_text() and time.monotonic() < deadline:
        time.sleep(0.001)
    running.send_signal(number)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 1
    assert error == "train_agent.py: interrupted before it began\n"
    assert not (here / "runs").exists()


MINE = """
import os, sys, torch

class Leaves(torch.nn.Module):
    def forward(self, x):
        sys.exit("bye")

class Exits(torch.nn.Module):
    def forward(self, x):
        os._exit(8)

def leaves():
    return Leaves(), torch.zeros(1, 2)

def exits():
    return Exits(), torch.zeros(1, 2)

def own():
    raise GeneratorExit("enough")

def raises():
    return 1 / 0

def prints():
    print("first\\x1b[31m")
    child = os.fork()
    if not child:
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("last", end="")
    return torch.nn.Linear(2, 2), torch.zeros(1, 2)

def hangs():
    print("now")
    print("now")
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""


def of_mine(here: Path, function: str, text: str = MINE) -> Command:
    """Begins the evaluation of a model of `mine.py`."""
    (here / "mine.py").write_text(text)
    return Command(EVALUATE, ["--model", f"mine:{function}", "--placers", "single", "--out", "out"], here)


@pytest.mark.parametrize(
    ("text", "function", "said"),
    [
        (MINE, "leaves", "mine.py:6: it calls sys.exit('bye')"),
        (MINE, "exits", "mine.py:10: it calls os._exit(8); leave that out"),
        (MINE, "own", "mine.py:19: GeneratorExit: enough\n"),
        (MINE, "raises", "mine.py:22: ZeroDivisionError: division by zero"),
        ("import os\nos._exit(0)\n", "x", "cannot import 'mine': mine.py:2: it calls os._e"),
        ("import sys\nsys.exit(0)\n", "x", "cannot import 'mine': mine.py:2: it calls"),
        ("\nimport absent_one\n", "x", "mine.py:2: ModuleNotFoundError: No module named"),
        ("raise ValueError('a\\x1b[31m\\nb')", "x", "ValueError: a\\x1b[31m b"),
        ("def f(:\n", "x", "SyntaxError: invalid syntax (mine.py, line 1)"),
    ],
)
def test_code_of_the_users_that_fails_is_named_as_theirs(
    here: Path, text: str, function: str, said: str
) -> None:
    command = of_mine(here, function, text)
    assert command.wait() == 2, command.output
    assert command.output.startswith(f"evaluate.py: --model mine:{function}: ")
    assert said in command.output
    assert command.output.count("\n") == 1
    assert not (here / "out").exists()


def test_what_a_model_prints_is_marked_and_a_process_that_it_forks_ends_as_it_says(here: Path) -> None:
    command = of_mine(here, "prints")
    assert command.wait() == 0, command.output
    marked = [line for line in command.output.splitlines() if "mine:prints" in line]
    assert marked == [f"--model mine:prints prints: {said}" for said in ("first\\x1b[31m", "3", "last")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_model_that_hangs_and_catches_everything_can_be_interrupted(
    here: Path, number: signal.Signals
) -> None:
    command = of_mine(here, "hangs")
    command.wait_until(lambda: "now" in command.output)
    command.send(number)
    assert command.wait(10) == 1
    assert command.output.endswith("evaluate.py: interrupted before it began\n")
