"""The registry that every kind of named thing is kept in, and entries from other packages."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graphs.system.errors import InputError
from graphs.system.registry import PluginError, Registry
from tests.graphs.system.test_plugins import ROOT, graph_file, run


class ColourError(InputError):
    """An error of this test's own."""


def test_entries_are_found_in_the_order_of_their_registration_and_no_others() -> None:
    colours = Registry[int]("colour", ColourError)
    assert colours.register("red", 1) == 1
    colours.register("blue", 2)
    assert list(colours.items()) == [("red", 1), ("blue", 2)]
    assert len(colours) == 2
    assert "green" not in colours
    with pytest.raises(ColourError, match=r"^unknown colour 'green'; use one of red, blue$"):
        colours["green"]
    with pytest.raises(ColourError, match="unknown colour 'green'"):
        colours.check("green")
    assert colours.check("red") == "red"


def test_entries_can_be_known_from_the_start() -> None:
    colours = Registry[int]("colour", ColourError, entries={"red": 1})
    colours.register("blue", 2)
    assert dict(colours) == {"red": 1, "blue": 2}
    with pytest.raises(ColourError, match=r"^colour 'red' is registered twice; choose another name$"):
        colours.register("red", 3)
    assert colours["red"] == 1


def test_modules_are_imported_at_the_first_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "colours_of_a_test.py").write_text(
        f"import sys\nsys.modules[{__name__!r}].LAZY.register('red', 1)\n"
    )
    assert "colours_of_a_test" not in sys.modules
    assert LAZY["red"] == 1
    assert list(LAZY) == ["red"]


def test_threads_wait_until_all_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("slow_red", "slow_blue"):
        (tmp_path / f"{name}.py").write_text(
            f"import sys, time\ntime.sleep(0.05)\nsys.modules[{__name__!r}].SLOW.register('{name}', 1)\n"
        )
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: "slow_blue" in SLOW, range(4))) == [True] * 4


LAZY = Registry[int]("colour", ColourError, ["colours_of_a_test"])
SLOW = Registry[int]("colour", ColourError, ["slow_red", "slow_blue"])


def test_entries_stand_in_the_order_of_the_modules_whichever_is_imported_first() -> None:
    colours = Registry[int]("colour", ColourError, ["json", "math"])
    colours.register("blue", 2, "math")
    colours.register("red", 1, "json")
    colours.register("green", 3)
    assert list(colours) == ["red", "blue", "green"]


PLACER = """
import numpy as np
from agent.placers.base import placer

@placer("{name}")
def all_on_the_first(search, rng):
    \"\"\"Scores the first device alone.\"\"\"
    search.score_units(np.zeros((1, len(search.problem.graph.units)), np.int64))
"""


COLOURS: dict[str, Registry[int]] = {}
"""Registries that the packages of these tests fill, by group."""


def install(folder: Path, package: str, group: str, value: str) -> None:
    """Lays a distribution as pip does, with one entry point."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = {value}\n")


def colours_of(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str | None) -> Registry[int]:
    """A registry with one entry and a group, to which a package with a module of this text adds."""
    group = f"placewalk.{module}"
    install(folder, f"{module}-package", group, module)
    if text is not None:
        (folder / f"{module}.py").write_text(
            text.replace("COLOURS", f"__import__({__name__!r}, fromlist='x').COLOURS")
        )
    monkeypatch.syspath_prepend(folder)
    COLOURS[group] = Registry[int]("colour", ColourError, entries={"red": 1}, group=group)
    return COLOURS[group]


def test_an_entry_of_a_package_is_known_after_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "colours = COLOURS['placewalk.more_colours']\nassert 'red' in colours\ncolours.register('blue', 2)"
    colours = colours_of(tmp_path, monkeypatch, "more_colours", text)
    assert dict(colours) == {"red": 1, "blue": 2}
    assert dict(colours) == {"red": 1, "blue": 2}, "it is loaded once"


@pytest.mark.parametrize(
    ("module", "text", "reason"),
    [
        ("no_colours", None, "ModuleNotFoundError: No module named 'no_colours'"),
        ("bad_colours", "x = 1 / 0", r".*bad_colours\.py:1: ZeroDivisionError: division by zero"),
        (
            "red_colours",
            "COLOURS['placewalk.red_colours'].register('red', 2)",
            "colour 'red' is registered twice; choose another name",
        ),
    ],
)
def test_a_package_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str | None, reason: str
) -> None:
    colours = colours_of(tmp_path, monkeypatch, module, text)
    for _ in range(2):  # it is not forgotten
        with pytest.raises(
            PluginError, match=rf"^{module}-package: placewalk\.{module}: mine = {module}: {reason}$"
        ):
            colours.check("red")


def test_each_documented_group_is_read() -> None:
    from agent.placers.base import PLACERS
    from agent.policy.encoders.base import ENCODERS
    from graphs.families import FAMILIES
    from graphs.orders import ORDERS

    page = (ROOT / "docs/how-to/extend.md").read_text(encoding="utf-8")
    documented = re.findall(r"`(placewalk\.\w+)`", page)
    assert {registry._group for registry in (PLACERS, ORDERS, ENCODERS, FAMILIES)} == set(documented)


def test_a_placer_of_a_package_is_evaluated_by_its_name(tmp_path: Path) -> None:
    install(tmp_path / "site", "first-placer", "placewalk.placers", "first_placer")
    (tmp_path / "site/first_placer.py").write_text(PLACER.format(name="first"))
    words = ["--graphs", str(graph_file(tmp_path)), "--placers", "first", "--out", str(tmp_path / "out")]
    path = f"{ROOT}:{tmp_path / 'site'}"
    done = run(tmp_path, str(ROOT / "evaluate.py"), *words, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert ",first," in (tmp_path / "out" / "results.csv").read_text()
    (tmp_path / "site/first_placer.py").write_text(PLACER.format(name="single"))
    taken = run(tmp_path, str(ROOT / "evaluate.py"), *words, PYTHONPATH=path)
    assert taken.returncode == 2
    assert (
        "first-placer: placewalk.placers: mine = first_placer: placer 'single' is registered twice"
        in (taken.stderr.splitlines()[-1])
    )


def test_experiments_take_a_plugin(tmp_path: Path) -> None:
    words = ["-m", "agent.lab", "budgets", "--only", "tables"]
    (tmp_path / "mine.py").write_text("print('imported')")
    done = run(tmp_path, *words, "--plugin", "mine.py")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "imported"), done.stderr
    gone = run(tmp_path, *words, "--plugin", "gone.py")
    assert gone.returncode == 2
    assert "no such file" in gone.stderr
