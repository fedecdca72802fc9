"""Studies lose no row and no trial, whatever is killed; real processes, real signals."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from agent.learn.checkpoints import CheckpointFolder
from tests.faults.processes import TRAIN, TRAINING, Command, rows_of, table_of
from tests.training_cases import write_toys

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
GRID = "--timesteps 1280 --context grid --vary hidden=4,8 --jobs 2"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with graphs and a study that nothing disturbed, `runs/whole`."""
    folder = tmp_path_factory.mktemp("studies")
    write_toys(folder)
    whole = study(folder, "whole")
    assert whole.wait() == 0, whole.output
    return folder


def study(folder: Path, name: str, flags: str = GRID) -> Command:
    return Command(TRAIN, [*TRAINING.split(), *flags.split(), "--name", name], folder)


def attempts(folder: Path, name: str) -> list[dict[str, str]]:
    return table_of(folder / "runs" / name / "trials.csv")


def outcomes(folder: Path, name: str) -> dict[str, tuple[str, ...]]:
    """What each trial came to, without what depends on the clock and on how often it was begun."""
    kept = ("component", "seed", "config_hash", "graphs_hash", "steps", "decisions", "parameters")
    kept += ("final_score", "best_score", "held_out")
    ended = [row for row in attempts(folder, name) if row["status"] == "complete"]
    found = {row["trial"]: tuple(row[key] for key in kept) for row in ended}
    assert len(found) == len(ended), "a trial ended twice"
    return found


def workers_of(command: Command) -> list[int]:
    """Processes that a command has started."""
    path = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children")
    children = [int(word) for word in path.read_text().split()]
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def progress(folder: Path, name: str) -> int:
    """Bytes of metrics that the trials of a study have written."""
    files = (folder / "runs" / name / "trials").glob("*/metrics.jsonl")
    return sum(file.stat().st_size for file in files)


def test_a_study_survives_any_signal_at_any_moment(here: Path) -> None:
    draw, name = random.Random(0), "disturbed"
    for number in (KILL, TERM):
        before = progress(here, name)
        command = study(here, name)
        # It may have little left to do, and end unseen.
        command.wait_until(
            lambda before=before, process=command.process: (
                progress(here, name) > before or not process.is_alive()
            )
        )
        time.sleep(draw.uniform(0.0, 0.5))
        command.send(number)
        code = command.wait()
        assert code in ((0, -KILL) if number == KILL else (0, 1)), command.output
        assert "Traceback" not in command.output
        if code == 1 and len(outcomes(here, name)) < len(outcomes(here, "whole")):  # else all had ended
            ends = "stopped; run the same command again to resume", "interrupted before it began"
            assert any(end in command.output for end in ends)  # a trial may outlive a killed study a moment
        for trial in (here / "runs" / name / "trials").iterdir():
            CheckpointFolder(trial / "checkpoints").latest()  # can be read
    last = study(here, name)
    assert last.wait() == 0, last.output
    assert outcomes(here, name) == outcomes(here, "whole")
    rows = attempts(here, name)
    assert [row["attempt"] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    retried = [row for row in rows if row["retry_of"]]
    assert retried
    for row in retried:
        before = rows[int(row["retry_of"]) - 1]
        assert (before["trial"], before["status"]) == (row["trial"], "stale")
    for trial in outcomes(here, name):
        own, whole = (here / "runs" / each / "trials" / trial for each in (name, "whole"))
        assert rows_of(own) == rows_of(whole)


def test_a_worker_that_is_killed_costs_an_attempt_and_a_study_has_one_process(here: Path) -> None:
    command = study(here, "workers")
    command.wait_until(lambda: bool(workers_of(command)) and progress(here, "workers") > 0)
    for process in (command.process.pid, *workers_of(command)):  # a name would outlive a kill of all
        assert "/dev/shm/" not in Path(f"/proc/{process}/maps").read_text()
    second = study(here, "workers")
    assert second.wait() == 2
    assert "is being run by another process" in second.output
    os.kill(workers_of(command)[0], KILL)
    assert command.wait() == 0, command.output
    assert outcomes(here, "workers") == outcomes(here, "whole")
    stale = [row for row in attempts(here, "workers") if row["status"] == "stale"]
    assert [row["error"] for row in stale] == ["worker killed by SIGKILL"]


def test_a_trial_that_fails_holds_up_no_other(here: Path) -> None:
    """The learning rate makes one training diverge; its row says so, and the exit code."""
    flags = "--context grid --vary learning_rate=3e-4,1e29"
    command = study(here, "failing", flags)
    assert command.wait() == 1, command.output
    good, bad = attempts(here, "failing")
    assert (good["status"], bad["status"]) == ("complete", "failed")
    assert "training diverged after 0 updates" in bad["error"]
    assert study(here, "failing", flags).wait() == 1
    assert attempts(here, "failing") == [good, bad]


def test_a_study_has_one_meaning(here: Path) -> None:
    done = study(here, "whole")
    assert done.wait() == 0
    assert "it was finished before, so nothing was run" in done.output
    other = study(here, "whole", GRID.replace("4,8", "4,6"))
    assert other.wait() == 2
    assert "study 'whole' was started with another --vary" in other.output
