"""Whatever a command runs into is one line on stderr and an exit code; some signals wait."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from graphs.system.command_line import NO_MEMORY, interruptible, run_command
from graphs.system.errors import InputError
from graphs.system.interrupts import SIGNALS, interrupts_put_off


def failing(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("op 3: is bad"), 2, "op 3: is bad"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x\n"), 2, "x\\n: File name too long"),
        (PermissionError(errno.EACCES, "Permission denied", b"x"), 2, "x: Permission denied"),
        (OSError(errno.EIO, "Input/output error", "x"), 1, "x: Input/output error"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "No space left on device; free some space, then run the same command again",
        ),
        (MemoryError(), 1, NO_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), 1, NO_MEMORY),
        (KeyboardInterrupt(), 1, "interrupted"),
        (
            ModuleNotFoundError("No module named 'gymnasium.spaces'", name="gymnasium.spaces"),
            2,
            f"{sys.executable} has no 'gymnasium.spaces'; run make setup, then . .venv/bin/activate",
        ),
    ],
)
def test_a_known_error_is_a_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    assert run_command("tool.py", failing(error)) == code
    printed = capsys.readouterr()
    assert printed.err == f"tool.py: {line}\n"
    assert not printed.out


@pytest.mark.parametrize("error", [ValueError("of numpy\nor so"), OSError("without a number")])
def test_an_unknown_error_is_a_line_and_a_file_with_the_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_command("tool.py", failing(error)) == 1
    (file,) = tmp_path.iterdir()
    kind = f"{type(error).__name__}: {error}".replace("\n", "\\n")
    assert capsys.readouterr().err == (
        f"tool.py: an error in the program: {kind}; please report it with {file}\n"
    )
    assert "in failing" not in file.read_text()
    assert "raise error" in file.read_text()


def test_an_unknown_error_is_shown_where_no_file_can_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert run_command("tool.py", failing(TypeError("x"))) == 1
    error = capsys.readouterr().err
    assert "raise error" in error
    assert error.endswith("please report it with the lines above\n")


def test_work_that_ends_gives_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("tool.py", lambda: 7) == 7
    assert capsys.readouterr() == ("", "")
    with pytest.raises(SystemExit):
        run_command("tool.py", failing(SystemExit(3)))


def test_streams_and_handlers_are_given_back() -> None:
    before = sys.stdout, sys.stderr, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def work() -> int:
        assert signal.getsignal(signal.SIGTERM) not in before
        with interruptible():
            assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
        return 0

    assert run_command("tool.py", work) == 0
    after = sys.stdout, sys.stderr, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert after == before


def test_interruptible_work_ends_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    ended = []

    def work() -> int:
        with interruptible():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            finally:
                ended.append(True)
        return 0

    assert run_command("tool.py", work) == 1
    assert ended
    assert capsys.readouterr().err == "tool.py: interrupted\n"


def test_an_interrupt_that_a_callback_swallows_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    class Referenced:
        pass

    def work() -> int:
        with interruptible():
            referenced = Referenced()
            watcher = weakref.ref(referenced, lambda _: signal.raise_signal(signal.SIGINT))
            del referenced
            assert watcher() is None
            time.sleep(60.0)
        return 0

    assert run_command("tool.py", work) == 1
    assert capsys.readouterr().err == "tool.py: interrupted\n"


@pytest.fixture
def raising_handlers() -> Iterator[None]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted(number: signal.Signals, done: list[str], *, fails: bool) -> None:
    with interrupts_put_off():
        signal.raise_signal(number)
        done.append("the rest")
        if fails:
            raise ValueError


@pytest.mark.usefixtures("raising_handlers")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_handled_after_the_block_whether_it_fails_or_not(
    number: signal.Signals, fails: bool
) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(number, done, fails=fails)
    assert done == ["the rest"]
    assert all(signal.getsignal(each) is signal.default_int_handler for each in SIGNALS)


def test_another_thread_just_runs_the_block() -> None:
    done: list[str] = []

    def run() -> None:
        with interrupts_put_off():
            done.append("run")

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert done == ["run"]


def test_what_an_encoding_lacks_is_a_question_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        (tmp_path / "out").open("w", encoding="ascii") as out,
        (tmp_path / "err").open("w", encoding="ascii", errors="backslashreplace") as error,
    ):
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", error)

        def work() -> int:
            print("\N{GREEK SMALL LETTER ALPHA}\udcc3")
            raise InputError("gr\N{LATIN SMALL LETTER A WITH DIAERESIS}: is bad")

        assert run_command("tool.py", work) == 2
    assert (tmp_path / "out").read_text() == "??\n"
    assert (tmp_path / "err").read_text() == "tool.py: gr?: is bad\n"


def test_a_removed_working_directory_is_one_line(tmp_path: Path) -> None:
    code = f"import os; os.mkdir({str(tmp_path / 'gone')!r}); os.chdir({str(tmp_path / 'gone')!r})"
    code += "; os.rmdir(os.getcwd()); import agent.commands"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 2
    assert done.stderr == "-c: the working directory was removed; use another\n"
