"""Imports go down from room to room, journeys from file to file; what must start fast loads little."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.sources import MODULES, ROOT, TOPS, modules_after, name_of, tree_of

ROOMS = (
    ("graphs.system",),
    ("graphs",),
    ("envs.cluster",),
    ("envs.costs", "envs.placements"),
    ("envs.problem_arrays", "envs.problem", "envs.domain_randomization"),
    ("envs.simulator",),
    ("envs.objective",),
    ("envs.pipeline",),
    ("envs.placement", "envs.runtime"),
    ("envs",),
    ("agent.calibration", "agent.bounds"),
    ("agent.placers", "agent.instances"),
    ("agent.policy", "agent.adaptation"),
    ("agent.learn", "agent.placing"),
    ("agent.pipeline",),
    ("agent.evaluation",),
    ("agent.contexts",),
    ("agent.studies",),
    ("agent.lab",),
    ("agent.commands", "agent"),
    ("train_agent", "evaluate"),
)
"""Floors of the house, the lowest first. A module imports from lower floors and from its own room; rooms on
one floor do not import each other, but for the modules of `ONE_SUBJECT`, which are one subject."""
ONE_SUBJECT = ROOMS[4]
MOST_MODULES = 20
"""Modules in a folder, `__init__` and `__main__` left out."""
OURS = (*TOPS, "train_agent", "evaluate")
HEAVY = [
    "torch",
    "torch_geometric",
    "stable_baselines3",
    "sb3_contrib",
    "tensorboard",
    "ray",
    "optuna",
    "matplotlib",
    "jinja2",
]


@cache
def imported(path: Path) -> set[str]:
    """Full names that a module imports, anywhere in its code."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.partition(".")[0] in OURS}


def room_of(module: str) -> tuple[int, str]:
    """Floor and room of a module: the longest name of a room that it is in."""
    inside = [
        (len(room), floor, room)
        for floor, rooms in enumerate(ROOMS)
        for room in rooms
        if module == room or module.startswith(f"{room}.")
    ]
    assert inside, f"{module}: is in no room; add it to ROOMS"
    _, floor, room = max(inside)
    return floor, room


def test_imports_go_down() -> None:
    for path in MODULES:
        floor, room = room_of(name_of(path))
        for name in imported(path):
            other_floor, other = room_of(name)
            allowed = other_floor < floor or other == room or {room, other} <= set(ONE_SUBJECT)
            assert allowed, f"{name_of(path)} imports {name}"


def test_no_file_imports_itself_in_a_circle() -> None:
    modules = {name_of(path): path for path in MODULES}
    graph = nx.DiGraph()
    for name, path in modules.items():
        for other in imported(path):
            graph.add_edge(name, other if other in modules else other.rpartition(".")[0])
    circles = [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    assert not circles


def test_no_folder_is_crowded() -> None:
    per_folder = Counter(path.parent for path in MODULES if not path.stem.startswith("__"))
    assert not {folder: count for folder, count in per_folder.items() if count > MOST_MODULES}


def test_the_map_shows_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    on_the_map = set(re.findall(r"`([a-z_/]+)/`: ", text, flags=re.MULTILINE))
    assert on_the_map == {str(path.parent.relative_to(ROOT)) for path in MODULES}


def test_a_package_loads_nothing_heavy() -> None:
    """`__init__` of a package below the top imports no module of ours, but that of former names."""
    exempt = (ROOT / "graphs" / "families", ROOT / "agent" / "training")
    for init in (path for path in MODULES if path.stem == "__init__"):
        if init.parents[1] != ROOT and init.parent not in exempt:
            assert not imported(init), init


def loaded(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    return {name.partition(".")[0] for name in modules_after(code)}


@pytest.mark.parametrize("package", ["graphs", "agent", "graphs.families, graphs.dataset"])
def test_packages_load_no_torch(package: str) -> None:
    assert not loaded(f"import {package}") & set(HEAVY)


def test_importing_envs_registers_the_environment_and_stays_light() -> None:
    code = "import envs, gymnasium; assert 'placewalk/Placement-v1' in gymnasium.registry"
    assert not loaded(code) & {"numba", *HEAVY}


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_help_loads_nothing_heavy(command: str) -> None:
    module = f"agent.commands.{command}"
    asked = f"import {module} as command\ntry:\n    command.main(['--help'])\nexcept SystemExit:\n    pass"
    assert not loaded(asked) & set(HEAVY)


def test_a_first_placement_waits_for_no_solver_and_no_figures() -> None:
    code = "from agent.evaluation import inputs, run, worker; from agent.placing import trial_runner\n"
    code += "from agent.placers.base import PLACERS; list(PLACERS)"
    assert not modules_after(code) & {"scipy.optimize", "matplotlib", "torch"}


ROW = re.compile(r"^\| (.+) \| (\d+) \| (`[\w/]+\.py`(?:, `[\w/]+\.py`)+) \|$", re.MULTILINE)
JOURNEYS = {
    what: (int(count), re.findall(r"`([\w/]+\.py)`", files))
    for what, count, files in ROW.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
}
MOST = {
    "`evaluate.py --model` to a row of `results.csv`": 20,
    "flags of `train_agent.py` to a saved policy": 17,
    "an action of the environment to its reward": 9,
}
"""The most files that a journey may have."""


def dotted(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def names(text: str, file: str) -> bool:
    """Whether a text imports a module, or names it for a registry by the end of its dotted name."""
    package, _, module = dotted(file).rpartition(".")
    forms = (
        rf"from {re.escape(package)} import .*\b{module}\b",
        rf"(?:from|import) {re.escape(dotted(file))} ",
        rf'"{re.escape(".".join(dotted(file).split(".")[-2:]))}"',
    )
    return any(re.search(form, text) for form in forms)


def test_all_journeys_are_told() -> None:
    assert JOURNEYS.keys() == MOST.keys()


@pytest.mark.parametrize("what", MOST)
def test_a_journey_is_short_and_goes_on_from_a_file_before(what: str) -> None:
    count, files = JOURNEYS[what]
    assert count == len(set(files)) == len(files) <= MOST[what]
    seen = ""
    for place, file in enumerate(files):
        assert place == 0 or names(seen, file), f"no file before {file} imports it"
        seen += (ROOT / file).read_text(encoding="utf-8")
