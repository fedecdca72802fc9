"""Files are replaced at once, as what they were; errors name the path that was meant."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from threading import Thread

import pytest

from graphs.system.json_files import (
    FileFormatError,
    Journal,
    JournalError,
    read_json,
    write_bytes_atomic,
    write_json_atomic,
)


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


def test_a_pipe_is_no_journal_and_no_input(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(JournalError, match="pipe: is no regular file"):
        Journal(pipe, lambda value, where: None)
    with pytest.raises(FileFormatError, match="pipe: is no regular file"):
        read_json(pipe)
