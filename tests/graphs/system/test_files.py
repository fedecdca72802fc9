"""Files are replaced at once; folders are complete or not there, have one writer, and lose old drafts."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from graphs.system import folders
from graphs.system.folders import FolderError, created, locked, remove_drafts
from graphs.system.json_files import Journal, JournalError, read_json, write_bytes_atomic, write_json_atomic
from tests.fork_server import context


def test_a_link_leads_to_what_is_written(tmp_path: Path) -> None:
    """Also over several links, and to a file that is not there yet."""
    for name in ("there", "absent"):
        target, link, second = (tmp_path / f"{name}{ending}" for ending in ("", "-link", "-second"))
        link.symlink_to(target.name)
        second.symlink_to(link)
        if name == "there":
            target.write_text("old")
        write_bytes_atomic(second, b"new")
        assert second.is_symlink()
        assert link.is_symlink()
        assert target.read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_mode_and_owner_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret.json"
    path.write_text("old")
    path.chmod(mode)
    if os.getuid() == 0:
        os.chown(path, 1234, 4321)
    before = path.stat()
    write_bytes_atomic(path, b"new")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert path.read_bytes() == b"new"


def test_a_device_or_a_pipe_is_written_to(tmp_path: Path) -> None:
    write_bytes_atomic(os.devnull, b"x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"No such device or address: '.*/pipe'"):
        write_bytes_atomic(pipe, b"x")  # nobody reads
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_bytes_atomic(pipe, b"words")
    assert os.read(reader, 10) == b"words"
    os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_many_threads_of_one_process_do_not_meet(tmp_path: Path) -> None:
    path, faults = tmp_path / "x.json", list[Exception]()
    write_json_atomic(path, [0] * 1000)

    def work(number: int) -> None:
        for _ in range(30):
            try:
                write_json_atomic(path, [number] * 1000)
                read_json(path)
            except (OSError, ValueError) as error:
                faults.append(error)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "Is a directory"),
        ("n" * 256, "File name too long"),
        ("no/x", "No such file"),
        ("loop", "Too many levels"),
    ],
)
def test_an_error_names_the_path_that_was_meant(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=reason) as caught:
        write_bytes_atomic(tmp_path / name, b"x")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / name), None)
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "loop"}


def test_a_name_may_be_as_long_as_the_system_takes(tmp_path: Path) -> None:
    for name in ("n" * 255, "\N{GREEK SMALL LETTER ALPHA}" * 127):
        write_bytes_atomic(tmp_path / name, b"x")
        assert (tmp_path / name).read_bytes() == b"x"


def test_a_full_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_bytes_atomic("/dev/full", b"x")
    journal = Journal(tmp_path / "journal", lambda value, where: None)
    (tmp_path / "journal").unlink()
    (tmp_path / "journal").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*/journal'"):
        journal.append(1)


def test_a_pipe_is_no_journal(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(JournalError, match="pipe: is no regular file"):
        Journal(pipe, lambda value, where: None)


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


def killed_while_it_makes(folder: Path, where: str) -> None:
    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fill(draft: Path) -> None:
        write_config(draft)
        kill()

    if where == "before it is locked":
        folders._lock = kill  # type: ignore[assignment]
    with created(folder, fill):
        pass


@pytest.mark.parametrize("where", ["before it is locked", "before it is renamed"])
def test_a_process_killed_while_it_makes_a_folder_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    killed = context.Process(target=killed_while_it_makes, args=(tmp_path / "first", where))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (draft,) = tmp_path.iterdir()
    monkeypatch.setattr(folders, "STALE_S", 0.0)
    with created(tmp_path / "first", write_config):
        assert not draft.exists()
        assert (tmp_path / "first" / "config.json").exists()


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
