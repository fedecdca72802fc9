"""Settings become flags; whatever a command runs into is one printable line and an exit code."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest

from graphs.system.command_line import NO_MEMORY, interruptible, run_command
from graphs.system.errors import InputError, four_digits, in_ms, printable, shortened, shown
from graphs.system.interrupts import SIGNALS, interrupts_put_off
from graphs.system.settings import Settings, add_flags, option


class PlantError(ValueError):
    """Settings that no plant grows by."""


@dataclass(frozen=True)
class Plant(Settings, error=PlantError):
    """One field of every kind."""

    names: tuple[str, ...] = option((), "what to call it", group="first", metavar="WORD")
    light: tuple[str, ...] | None = option(
        None, "when", group="first", choices=("day", "night"), default_text="always"
    )
    height: float = option(1.0, "in metres, 100 % of it", group="second", above=0, most=90)
    leaves: int | None = option(None, "how many", group="second", least=1)
    kind: str = option("tree", "what it is", group="first", choices=("tree", "herb"))
    evergreen: bool = option(False, "keeps its leaves", group="second")


def parse(*words: str) -> Plant:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_flags(parser, Plant)
    return Plant.from_json(vars(parser.parse_args(words)), "command line")


def test_flags_make_settings() -> None:
    assert parse() == Plant()
    words = ["--names", "a", "b", "--light", "night", "--height", "2", "--leaves", "3"]
    words += ["--kind", "herb", "--evergreen"]
    expected = Plant(("a", "b"), ("night",), 2.0, 3, "herb", evergreen=True)
    assert parse(*words) == expected
    assert Plant.from_json(expected.to_json(), "file") == expected


def test_help_shows_groups_choices_and_defaults() -> None:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    groups = add_flags(parser, Plant)
    assert list(groups) == ["first", "second"]
    shown = parser.format_help()
    for text in (
        "WORD [WORD ...]",
        "day|night",
        "(default: always)",
        "100 % of it (default: 1.0)",
        "tree|herb",
    ):
        assert text in shown
    assert re.search(r"--evergreen +keeps its leaves\n", shown)


def test_values_over_a_base_keep_the_rest() -> None:
    base = Plant(names=("a",), leaves=3)
    assert Plant.from_json({"leaves": None, "height": 3}, "file", base) == Plant(names=("a",), height=3.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (3, "file: holds int, not an object of settings"),
        ({"colour": "red"}, "file: unknown key 'colour'; use names, light, height, leaves, kind, evergreen"),
        ({"height": 0}, "file: height is 0.0; use more than 0"),
        ({"height": float("inf")}, "file: height is inf; use a finite number"),
        ({"height": 91}, "file: height is 91.0; use at most 90"),
        ({"leaves": 0}, "file: leaves is 0; use at least 1"),
        ({"leaves": True}, "file: leaves is True; use a whole number"),
        ({"names": None}, "file: names is None; use a list of strings"),
        ({"light": ["noon"]}, "file: light is 'noon'; use day or night"),
        ({"kind": "fern"}, "file: kind is 'fern'; use tree or herb"),
        ({"evergreen": 1}, "file: evergreen is 1; use true or false"),
    ],
)
def test_bad_values_are_one_line(values: object, message: str) -> None:
    with pytest.raises(PlantError) as caught:
        Plant.from_json(values, "file")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("graph 'é': 日本", "graph 'é': 日本"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\u2028 and \udcff", "\\u2028 and \\udcff"),
    ],
)
def test_what_cannot_be_printed_is_escaped(raw: str, shown: str) -> None:
    assert printable(raw) == shown
    assert str(InputError(raw)) == shown
    assert shown.isprintable()


LONG = "x" * 2_500 + "y" * 2_500
SHORT = f"{'x' * 38}[...]{'y' * 37}"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            f"op 'a', graph '{LONG}': device \"{LONG}\" is full",
            f"op 'a', graph '{SHORT}': device \"{SHORT}\" is full",
        ),
        (f"('{'a name ' * 100}')", f"('{shortened('a name ' * 100)}')"),
        (f"'a (b)' is {'not so ' * 20}'(c)'", f"'a (b)' is {'not so ' * 20}'(c)'"),
        (f"the module's {'name ' * 30} 'a'", f"the module's {'name ' * 30} 'a'"),
        (f"/{LONG}: no such file", f"{shortened(f'/{LONG}:', 250)} no such file"),
        (f"use {'a, ' * 2_000}or b", shortened(f"use {'a, ' * 2_000}or b", 1000)),
    ],
)
def test_names_that_are_long_are_shortened(raw: str, said: str) -> None:
    assert shown(raw) == said
    assert str(InputError(raw)) == said
    assert shown(said) == said
    assert len(said) <= 1000


@pytest.mark.parametrize("piece", [" 'a", "'a' ", "'", "\"'", "\x00"])
def test_a_message_of_any_length_is_shortened_at_once(piece: str) -> None:
    """In time that grows with its length alone; else this would take hours."""
    assert len(shown(piece * 300_000)) <= 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.03, "0.03"), (62.104, "62.1"), (999.94, "999.9"), (1016.2, "1,016"), (16_110.0, "16,110")],
)
def test_numbers_have_four_digits_or_no_decimals(value: float, text: str) -> None:
    assert four_digits(value) == text
    assert in_ms(value / 1e3) == f"{text} ms"


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
