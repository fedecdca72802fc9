"""Registries, and entries from files of the user's and from other packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graphs.io.graph_files import write_graphs
from graphs.op_graph import build_graph
from graphs.system.errors import InputError
from graphs.system.registry import VARIABLE, PluginError, Registry, load_plugins, look_in
from tests.faults.processes import EVALUATE, TRAIN, Command

ROOT = Path(__file__).parents[3]
PLUGIN = """
import numpy as np
import torch
from agent.placers.base import placer
from graphs.families import FAMILIES, family
from graphs.orders import order, topo

FAMILIES.register("of-mine", 1)

@order
def last_first(graph):
    \"\"\"Visits the ops backwards.\"\"\"
    return topo(graph)[::-1]

@placer("coin-toss", uses_rng=True)
def coin_toss(search, rng):
    \"\"\"Scores one placement, drawn at random.\"\"\"
    n_units = len(search.problem.graph.units)
    search.score_units(rng.integers(search.problem.n_devices, size=(1, n_units)))

@family("of-mine")
def of_mine(rng):
    \"\"\"Draws a layer.\"\"\"
    return torch.nn.Linear(8, 8), (torch.randn(4, 8),)
"""


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def graph_file(folder: Path) -> Path:
    ops = [{"name": f"op{index}", "flops": 1e9} for index in range(6)]
    graph = build_graph("chain", "", ops, [(index, 1e3, [index + 1]) for index in range(5)])
    write_graphs(folder / "graph.json", [graph])
    return folder / "graph.json"


class ColourError(InputError):
    """An error of this test's own."""


def test_entries_are_found_in_the_order_of_their_registration_and_no_others() -> None:
    colours = Registry[int]("colour", ColourError, entries={"red": 1})
    assert colours.register("blue", 2) == 2
    assert list(colours.items()) == [("red", 1), ("blue", 2)]
    assert len(colours) == 2
    assert "green" not in colours
    assert colours.check("red") == "red"
    for look_up in (colours.__getitem__, colours.check):
        with pytest.raises(ColourError, match=r"^unknown colour 'green'; use one of red, blue$"):
            look_up("green")
    with pytest.raises(ColourError, match=r"^colour 'red' is registered twice; choose another name$"):
        colours.register("red", 3)
    assert colours["red"] == 1


SLOW = Registry[int]("colour", ColourError, ["slow_red", "slow_blue"])


def test_modules_are_imported_at_the_first_look_up_and_threads_wait_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("slow_red", "slow_blue"):
        (tmp_path / f"{name}.py").write_text(
            f"import sys, time\ntime.sleep(0.05)\nsys.modules[{__name__!r}].SLOW.register('{name}', 1)\n"
        )
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: "slow_blue" in SLOW, range(4))) == [True] * 4
    assert list(SLOW) == ["slow_red", "slow_blue"]


def test_entries_stand_in_the_order_of_the_modules_whichever_is_imported_first() -> None:
    colours = Registry[int]("colour", ColourError, ["json", "math"])
    colours.register("blue", 2, "math")
    colours.register("red", 1, "json")
    colours.register("green", 3)
    assert list(colours) == ["red", "blue", "green"]


COLOURS: dict[str, Registry[int]] = {}
"""Registries that the packages of these tests fill, by group."""


def colours_of(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str | None) -> Registry[int]:
    """A registry with one entry and a group, to which a package, laid as pip does, with this module adds."""
    group, info = f"placewalk.{module}", folder / f"{module}-package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = {module}\n")
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


def test_experiments_take_a_plugin(tmp_path: Path) -> None:
    words = ["-m", "agent.lab", "budgets", "--only", "tables"]
    (tmp_path / "mine.py").write_text("print('imported')")
    done = run(tmp_path, *words, "--plugin", "mine.py")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "imported"), done.stderr


def test_the_graphs_of_a_plugins_family_are_captured_where_they_are_needed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    words = ["--families", "of-mine", "--placers", "single", "--out", str(tmp_path / "out")]
    command = Command(EVALUATE, [*words, "--plugin", "mine.py"], tmp_path)
    assert command.wait() == 0, command.output
    assert "capturing 1 graphs of 'of-mine'; python -m graphs.dataset --build keeps them" in command.output
    assert (tmp_path / "out" / "results.csv").read_text().count("of-mine-00") == 1


@pytest.mark.parametrize("file", ["agent.py", "envs/__init__.py", "graphs/__init__.py"])
def test_a_users_file_that_ours_hide_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / file).parent.mkdir(exist_ok=True)
    for name in (file, "other.py"):
        (tmp_path / name).write_text("")
    look_in(str(tmp_path))
    look_in(str(tmp_path))
    hidden = f"{tmp_path / file}: hidden by Placewalk's package; rename it to import it\n"
    assert capsys.readouterr().err == hidden
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize("file", ["envs.py", "graphs/__init__.py"])
def test_a_users_file_that_hides_ours_is_named(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    done = run(tmp_path, "-c", "import agent")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / file} hides Placewalk's package")


def test_a_run_that_is_resumed_knows_its_plugin(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    words = ["--graphs", str(graph_file(tmp_path)), "--plugin", "mine.py", "--order", "last-first"]
    small = ["--timesteps", "64", "--n-envs", "2"]

    def train(code: int, *words: str) -> str:
        command = Command(TRAIN, words, tmp_path)
        assert command.wait() == code, command.output
        return command.output

    train(0, "--name", "r", *words, *small)
    assert json.loads((tmp_path / "runs/r/config.json").read_text())["plugin"] == ["mine.py"]
    resume = ["--name", "r", "--resume", "--timesteps", "128"]
    train(0, *resume, "--plugin", "mine.py")
    (tmp_path / "mine.py").write_text("open('marker', 'w')")
    for words in (resume, ["--config", "runs/r/config.json", "--name", "other"]):
        assert "names code to run; if you trust it, add --plugin mine.py" in train(2, *words)
    assert "has another --plugin" in train(2, *resume, "--plugin", "yours.py")
    assert not (tmp_path / "marker").exists()


def test_worker_processes_know_a_plugins_placer_and_files_beside_it_hide_no_library(tmp_path: Path) -> None:
    """The folder contains the path separator too, and files that are named as modules of libraries."""
    folder = tmp_path / f"a{os.pathsep}b"
    folder.mkdir()
    for name in ("queue", "numpy", "torch", "pickle", "agent"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported')")
    (folder / "beside.py").write_text("NAME = 'coin-toss'")
    (folder / "mine.py").write_text("import beside\n" + PLUGIN.replace('"coin-toss"', "beside.NAME"))
    words = ["--graphs", str(graph_file(tmp_path)), "--placers", "coin-toss", "--out", str(tmp_path / "out")]
    asked = [str(ROOT / "evaluate.py"), *words, "--plugin", "mine.py", "--seeds", "2", "--jobs", "2"]
    done = run(folder, *asked)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "results.csv").read_text().count("coin-toss") == 2


def test_the_environment_names_plugins(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    code = "from graphs.families import FAMILIES; print(FAMILIES['of-mine'])"
    done = run(tmp_path, "-c", code, PLACEWALK_PLUGINS="mine.py")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "no such file"),
        ("bad.py", "x = 1 / 0", r"bad\.py:1: ZeroDivisionError: division by zero"),
        ("json.py", "", "another module is called 'json'; rename the file"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, message: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(PluginError, match=rf"--plugin .*{message}"):
        load_plugins([str(tmp_path / name)])
    assert VARIABLE not in os.environ
