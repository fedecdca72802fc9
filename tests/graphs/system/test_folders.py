"""Folders are complete or not there, have one writer, and lose the drafts of those that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphs.system import folders
from graphs.system.folders import FolderError, created, locked, remove_drafts


def write_config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def test_a_folder_is_made_with_its_first_files(tmp_path: Path) -> None:
    with created(tmp_path / "runs" / "first", write_config):
        assert (tmp_path / "runs" / "first" / "config.json").exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first"]


@pytest.mark.parametrize("content", [[], ["file"]])
def test_a_folder_that_exists_is_refused_and_left_as_it_is(tmp_path: Path, content: list[str]) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    for name in content:
        (folder / name).touch()
    with (
        pytest.raises(FolderError, match="first: exists already; choose another name"),
        created(folder, write_config),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    assert [path.name for path in folder.iterdir()] == content


def test_a_failure_while_it_is_filled_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write_config(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), created(tmp_path / "first", fail):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with (
        created(tmp_path / "first", write_config),
        pytest.raises(FolderError, match="first: is in use by another process"),
        locked(tmp_path / "first"),
    ):
        pass
    with locked(tmp_path / "first"):
        pass


@pytest.mark.parametrize("where", ["before it is locked", "before it is renamed"])
def test_a_process_killed_while_it_makes_a_folder_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "first"), where], check=False)
    assert killed.returncode == -signal.SIGKILL
    (draft,) = tmp_path.iterdir()
    monkeypatch.setattr(folders, "STALE_S", 0.0)
    with created(tmp_path / "first", write_config):
        assert not draft.exists()
        assert (tmp_path / "first" / "config.json").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from graphs.system import folders

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def fill(folder):
    (folder / "config.json").write_text("{}")
    kill()

if sys.argv[2] == "before it is locked":
    folders._lock = kill
with folders.created(Path(sys.argv[1]), fill):
    pass
"""


def test_a_draft_folder_that_is_locked_or_young_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tmp_path / ".other.1.tmp"
    draft.mkdir()
    with created(tmp_path / "first", write_config):
        assert draft.exists()
    monkeypatch.setattr(folders, "STALE_S", 0.0)
    with locked(draft), created(tmp_path / "second", write_config):
        assert draft.exists()
    with created(tmp_path / "third", write_config):
        assert not draft.exists()


def test_drafts_of_files_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    kept = [tmp_path / ".lock", tmp_path / "below" / "graph.tmp", tmp_path / "below" / ".hidden"]
    drafts = [tmp_path / ".config.json.12.tmp", tmp_path / "below" / ".a.json.99999.tmp"]
    for path in kept + drafts:
        path.touch()
    remove_drafts(tmp_path)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in drafts)


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "runs").touch()
    else:
        (tmp_path / "runs").mkdir(mode=0o500)
    with pytest.raises(OSError, match="runs"), created(tmp_path / "runs" / "first", write_config):
        pass


def test_a_killed_process_frees_its_folder_though_a_child_that_it_forked_lives_on(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"forked\n"
        with pytest.raises(FolderError), locked(tmp_path):
            pass
        killed.kill()
        killed.wait()
        with locked(tmp_path):
            pass  # leaving the block closes the pipe that the child waits for


FORKED = """
import os, sys
from pathlib import Path
from graphs.system.folders import locked

with locked(Path(sys.argv[1])):
    if os.fork() == 0:
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)
    sys.stdin.read()
"""
